"""This module knows Prometheus' text exposition format as far as counters need it: samples with labels, perhaps a time.

Source: the exposition formats of Prometheus (0.0.4) and OpenMetrics, whose timestamps are milliseconds and seconds.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Final

from otel_mqtrace._errors import UnreadableInputError
from spark_jobs.sources.counters import Point, series

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["is_prometheus_text", "prometheus_points"]

_SAMPLE: Final = re.compile(
    r'(?P<name>[^\s{#"]+)\s*(?:\{(?P<labels>(?:[^"}]|"(?:[^"\\]|\\.)*")*)\})?'
    r"\s+(?P<value>[^\s#]+)(?:\s+(?P<at>[^\s#]+))?\s*(?:#.*)?"
)
_LABEL: Final = re.compile(
    r'\s*(?:"(?P<quoted>(?:[^"\\]|\\.)*)"|(?P<name>[^\s="{},]+))\s*(?:=\s*"(?P<value>(?:[^"\\]|\\.)*)")?\s*,?'
)
_QUOTED_NAME: Final = re.compile(r'\{\s*"((?:[^"\\]|\\.)*)"\s*,?\s*(.*)')
_QUOTED_FIRST: Final = re.compile(r'\{\s*"(?:[^"\\]|\\.)*"\s*[,}]')
_ESCAPES: Final = {"\\n": "\n", '\\"': '"', "\\\\": "\\"}
_ESCAPED: Final = re.compile(r'\\[n"\\]')
_TARGET: Final = "target_info"
_WHERE: Final = ("job", "instance")
_LEAST_MS: Final = 100_000_000_000  # a smaller time is in seconds: 1973 in milliseconds, the year 5138 in seconds
_MOST: Final = float(1 << 53)


def is_prometheus_text(text: str) -> bool:
    """Tell samples from JSON objects, by the first thing in the text."""
    start = text.lstrip()
    return not start.startswith("{") or bool(_QUOTED_FIRST.match(start))


def prometheus_points(text: str, where: str) -> Iterator[Point]:
    """Yield every sample of ``text`` as a cumulative point; ``target_info`` gives the samples of its target a resource.

    Raises:
        UnreadableInputError: a line is no sample; ``where`` is the file's name in the message.
    """
    samples = list(_samples(text, where))
    targets = {_target(labels): labels for name, labels, _, _ in samples if name == _TARGET}
    lone = next(iter(targets.values())) if len(targets) == 1 else {}
    for name, labels, value, at_ms in samples:
        if name == _TARGET or not math.isfinite(value) or not 0 <= value <= _MOST:
            continue
        yield Point(series(name, labels, targets.get(_target(labels), lone)), value, None, at_ms)


def _target(labels: Mapping[str, str]) -> tuple[str | None, ...]:
    return tuple(labels.get(name) for name in _WHERE)


def _samples(text: str, where: str) -> Iterator[tuple[str, dict[str, str], float, int | None]]:
    for number, line in enumerate(text.splitlines(), start=1):
        bare = line.strip()
        if bare and not bare.startswith("#"):
            sample = _sample(bare)
            if sample is None:
                raise UnreadableInputError(
                    f"--ledger {where}: line {number} is no sample of Prometheus text; give a ledger of mqtrace, OTLP "
                    "metrics as JSON lines, or what a /metrics endpoint answers"
                )
            yield sample


def _sample(line: str) -> tuple[str, dict[str, str], float, int | None] | None:
    quoted = _QUOTED_NAME.match(line)
    if quoted:  # names that are no identifiers stand quoted among the labels
        line = f"{re.sub(r'[^A-Za-z0-9_.:]', '_', quoted[1])}{{{quoted[2]}"
    found = _SAMPLE.fullmatch(line)
    if not found:
        return None
    try:
        value, at_ms = float(found["value"]), _at_ms(found["at"])
    except ValueError:
        return None
    return found["name"], _labels(found["labels"] or ""), value, at_ms


def _labels(text: str) -> dict[str, str]:
    return {
        _plain(each["quoted"] if each["name"] is None else each["name"]): _plain(each["value"] or "")
        for each in _LABEL.finditer(text)
    }


def _plain(text: str) -> str:
    return _ESCAPED.sub(lambda hit: _ESCAPES[hit[0]], text)


def _at_ms(text: str | None) -> int | None:
    if text is None:
        return None
    instant = float(text)
    if not math.isfinite(instant):
        raise ValueError(text)
    return round(instant if instant >= _LEAST_MS else instant * 1000)
