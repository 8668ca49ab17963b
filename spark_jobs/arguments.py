"""This module knows how sources, durations and instants are written on the command line. No Spark here."""

from __future__ import annotations

import re
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Final

from otel_mqtrace._clock import LAST_MS
from otel_mqtrace._errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["parse_instant_ms", "parse_settings", "spread"]

_OWN_OPTIONS: Final = {"spark.master": "--master", "spark.remote": "--master", "spark.driver.memory": "--driver-memory"}
_SOURCES: Final = frozenset({"--native", "--otlp", "--ledger"})
_WHOLE_NUMBER = re.compile(r"-?\d+")
_MOST_DIGITS: Final = 15  # those of LAST_MS
_BEYOND: Final = LAST_MS + 1


def spread(arguments: Iterable[str], names: frozenset[str] = _SOURCES) -> list[str]:
    """Repeat an option before each of its values: ``--native a b`` becomes ``--native a --native b``.

    A shell expands ``--native landing/*.jsonl`` into many words; an option parser gives the option one of them.
    """
    spread_out: list[str] = []
    current, fresh = None, False
    for word in arguments:
        if word.startswith("-") and word != "-":
            name, assigned, _ = word.partition("=")
            current, fresh = (name if name in names else None), not assigned
            spread_out.append(word)
            continue
        if current is not None and not fresh:
            spread_out.append(current)
        spread_out.append(word)
        fresh = False
    return spread_out


def parse_settings(texts: Iterable[str]) -> dict[str, str]:
    """Read Spark's settings as ``spark-submit --conf`` takes them; the last one of a name counts.

    Raises:
        UsageError: one is no ``KEY=VALUE``, or says what has an option of its own.
    """
    found: dict[str, str] = {}
    for text in texts:
        name, assigned, value = text.partition("=")
        if not assigned or not name.startswith("spark."):
            raise UsageError(f"--conf '{text}' is no setting of Spark's; write spark.NAME=VALUE")
        if name in _OWN_OPTIONS:
            raise UsageError(f"--conf '{text}': use {_OWN_OPTIONS[name]} for it")
        found[name] = value
    return found


def parse_instant_ms(text: str, *, name: str) -> int:
    """Read epoch milliseconds or ISO 8601 (UTC unless it names an offset), from 1970 to 9999.

    Raises:
        UsageError: it is neither, or out of that range; the line names the option.
    """
    if not _WHOLE_NUMBER.fullmatch(text):
        return _in_range(_iso_ms(text, name), text, name)
    return _in_range(int(text) if len(text) <= _MOST_DIGITS else _BEYOND, text, name)


def _in_range(instant_ms: int, text: str, name: str) -> int:
    if not 0 <= instant_ms <= LAST_MS:
        raise UsageError(f"{name} '{text}' is not between the years 1970 and 9999")
    return instant_ms


def _iso_ms(text: str, name: str) -> int:
    try:
        instant = datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError as error:
        raise UsageError(f"{name} '{text}' is no time; write 2026-11-21T09:30:00Z or epoch milliseconds") from error
    aware = instant if instant.tzinfo else instant.replace(tzinfo=timezone.utc)
    return round(aware.timestamp() * 1000)
