"""Read the counters of an application or a Collector from Prometheus text.

Source: the exposition formats of Prometheus (0.0.4) and OpenMetrics, whose timestamps are milliseconds and seconds.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Final

from prometheus_client.parser import text_string_to_metric_families

from otel_mqtrace._errors import UnreadableInputError
from spark_jobs.sources.counters import Point, series

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["is_prometheus_text", "prometheus_points"]

_QUOTED_FIRST: Final = re.compile(r'\{\s*"(?:[^"\\]|\\.)*"\s*[,}]')
_EXEMPLAR: Final = re.compile(r'((?:[^"#]|"(?:[^"\\]|\\.)*")*)#.*')
_NOT_IN_NAMES: Final = re.compile(r"[^A-Za-z0-9_.:]")
_WORDS: Final = 2  # behind name and labels: the value, and perhaps a time
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
        if name != _TARGET and 0 <= value <= _MOST:
            yield Point(series(name, labels, targets.get(_target(labels), lone)), float(value), None, at_ms)


def _target(labels: Mapping[str, str]) -> tuple[str | None, ...]:
    return tuple(labels.get(name) for name in _WHERE)


def _samples(text: str, where: str) -> Iterator[tuple[str, dict[str, str], float, int | None]]:
    for number, line in enumerate(text.splitlines(), start=1):
        bare = line.strip()
        if not bare or bare.startswith("#"):
            continue
        try:
            yield _sample(bare)
        except (ValueError, IndexError, OverflowError):
            raise UnreadableInputError(
                f"--ledger {where}: line {number} is no sample of Prometheus text; give a ledger of mqtrace, OTLP "
                "metrics as JSON lines, or what a /metrics endpoint answers"
            ) from None


def _sample(line: str) -> tuple[str, dict[str, str], float, int | None]:
    # prometheus_client takes an exemplar's value, and the last of many numbers, for the time
    exemplar = _EXEMPLAR.fullmatch(line)
    plain = exemplar[1] if exemplar else line
    _, closed, numbers = plain.rpartition("}")
    if len(numbers.split()) > _WORDS + (not closed):
        raise ValueError(line)
    ((sample,),) = (family.samples for family in text_string_to_metric_families(plain))
    return _NOT_IN_NAMES.sub("_", sample.name), sample.labels, sample.value, _at_ms(sample.timestamp)


def _at_ms(thousandths: object) -> int | None:
    """Return epoch milliseconds; ``prometheus_client`` has divided the number of the text by 1000."""
    if thousandths is None:
        return None
    instant = float(str(thousandths)) * 1000
    if not math.isfinite(instant):
        raise ValueError(thousandths)
    return round(instant if instant >= _LEAST_MS else instant * 1000)
