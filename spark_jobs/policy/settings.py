"""The keys of a policy file: meaning, default, and how each value is read from TOML and written back."""

from __future__ import annotations

import difflib
import json
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from bridge.addresses import UNIT_MS, parse_duration_ms
from otel_mqtrace._errors import UsageError
from spark_jobs.schemas import COMPARED_FIELDS
from spark_jobs.taxonomy import FieldVerdict, Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

CRITICAL_FIELDS: Final = frozenset(
    {
        *("offset_msg_id", "topic", "group_name", "start_ms", "success", "retry_times", "body_length", "msg_type"),
        *("region_id", "transaction_id", "transaction_state", "from_transaction_check"),
    }
)
"""The fields whose disagreement fails a run; the others warn."""


DISAGREEMENT: Final = frozenset(
    {FieldVerdict.DIFFERENT.value, FieldVerdict.MISSING_NATIVE.value, FieldVerdict.MISSING_OTLP.value}
)
"""The default verdicts that count against a field."""


# -- reading and writing one value ------------------------------------------------------------------------------------
_MOST: Final = (1 << 31) - 1
_MOST_CHARACTERS: Final = 1_000


def _duration(value: Any, name: str) -> int:
    return parse_duration_ms(str(value), name=name)


def _write_duration(value_ms: int) -> str:
    """Return the duration as TOML text in the largest unit that leaves no fraction."""
    unit = next(unit for unit in ("d", "h", "m", "s", "ms") if value_ms % UNIT_MS[unit] == 0)
    return write_toml(f"{value_ms // UNIT_MS[unit]}{unit if value_ms else 's'}")


def _count(value: Any, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _MOST:
        raise UsageError(f"{name}: invalid count {value!r}; write a whole number from 0 to {_MOST}")
    return value


def _number(value: Any, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) or value < 0:
        raise UsageError(f"{name}: invalid number {value!r}; write a number from 0")
    return float(value)


def _ratio(value: Any, name: str) -> float:
    if not 0 < _number(value, name) <= 1:
        raise UsageError(f"{name}: invalid ratio {value!r}; write a number above 0, at most 1")
    return float(value)


def _text(value: Any, name: str) -> str:
    if not isinstance(value, str) or len(value) > _MOST_CHARACTERS:
        raise UsageError(f"{name}: invalid text {value!r:.60}; write at most {_MOST_CHARACTERS} characters in quotes")
    return value


def _choice(what: str, *words: str) -> Callable[[Any, str], str]:
    """Return a reader of one of ``words``; ``what`` is what the error message calls it."""

    def read(value: Any, name: str) -> str:
        if value not in words:
            wanted = ", ".join(f'"{word}"' for word in words[:-1]) + f' or "{words[-1]}"'
            raise UsageError(f"{name}: invalid {what} {value!r}; write {wanted}{suggest(value, words)}")
        return str(value)

    return read


def _choices(what: str, words: Iterable[str]) -> Callable[[Any, str], tuple[str, ...]]:
    """Return a reader of a list of ``words``."""
    known = tuple(words)

    def read(value: Any, name: str) -> tuple[str, ...]:
        if not isinstance(value, list):
            raise UsageError(f'{name}: invalid list {value!r}; write ["{known[0]}"]')
        for each in value:
            if each not in known:
                raise UsageError(f"{name}: invalid {what} {each!r}; known: {', '.join(known)}{suggest(each, known)}")
        return tuple(value)

    return read


def suggest(word: object, known: Iterable[str]) -> str:
    """Return the known word that was probably meant, as the rest of a sentence; nothing where none is close."""
    close = difflib.get_close_matches(str(word), list(known), 1)
    return f" (did you mean '{close[0]}'?)" if close else ""


def write_toml(value: Any) -> str:
    """Return a value as TOML: text, numbers, flags, lists of texts."""
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    if isinstance(value, (tuple, list)):
        return f"[{', '.join(map(write_toml, value))}]"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


_VERDICTS: Final = tuple(verdict.value for verdict in FieldVerdict)


def _verdicts(value: Any, name: str) -> dict[str, str]:
    _choices("field verdict", _VERDICTS)(list(value) if isinstance(value, dict) else value, name)
    outcome = _choice("outcome", "ok", "warn", "fail")
    return {verdict: outcome(value[verdict], f"{name}.{verdict}") for verdict in sorted(value)}


def _write_verdicts(value: dict[str, str]) -> str:
    return f"{{ {', '.join(f'{verdict} = {write_toml(outcome)}' for verdict, outcome in value.items())} }}"


# -- the keys ---------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class GateRule:
    """``value op threshold`` must hold, else the gate has this ``severity`` (``fail`` or ``warn``).

    What was measured on fewer than ``minimum_sample`` keys, records or comparisons is inconclusive.
    """

    op: str
    threshold: float
    severity: str
    explanation: str
    minimum_sample: int = 0


DEFAULT_GATES: Final[dict[str, GateRule]] = {
    "unexplained_loss_native": GateRule("<=", 0, "fail", "keys that only OTLP has, settled and without a reason"),
    "unexplained_loss_otlp": GateRule("<=", 0, "fail", "keys that only the native trace has, settled, no reason"),
    "conflicting_duplicates": GateRule("<=", 0, "fail", "keys with copies on one side that contradict each other"),
    "malformed": GateRule("<=", 0, "fail", "pieces of input on either side that could not be read"),
    "critical_field_agreement": GateRule(">=", 100, "fail", "per cent of compared critical fields that agree"),
    "duplicate_excess": GateRule("<=", 0.1, "fail", "per cent of records beyond the first of their key"),
    "field_agreement": GateRule(">=", 100, "warn", "per cent of the other compared fields that agree"),
    "late": GateRule("<=", 1, "warn", "per cent of keys of which a record arrived late"),
    "attributed_loss_native": GateRule("<=", 1, "warn", "per cent of checked keys that only OTLP has, by a named loss"),
    "attributed_loss_otlp": GateRule("<=", 1, "warn", "per cent of checked keys that only native has, by a named loss"),
    "writer_silent": GateRule("<=", 0, "warn", "keys of a topic or group that shows nothing at all on the other side"),
}
"""Every gate, in report order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterRule:
    """What a writer of ``side`` never records: kinds of events, and fields of those it does record."""

    writer: str
    side: str
    never: tuple[str, ...] = ()
    never_fields: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SilentRule:
    """A part of the system that is known to leave no trace on ``side``; all that is named must agree."""

    side: str
    topic: str | None = None
    group: str | None = None
    service: str | None = None


@dataclass(frozen=True, slots=True)
class Setting:
    """One key of the file: attribute, reader, writer and meaning; ``example`` is the comment for an absent value."""

    key: str
    attribute: str
    read: Callable[[Any, str], Any]
    description: str
    write: Callable[[Any], str] = write_toml
    example: str | None = None


def _timed(key: str, description: str) -> Setting:
    return Setting(key, f"{key}_ms", _duration, description, _write_duration)


def _same(key: str, read: Callable[[Any, str], Any], description: str, **options: Any) -> Setting:
    return Setting(key, key, read, description, **options)


SETTINGS: Final = (
    _timed("grace", "how late a record may arrive (ms, s, m, h or d); --grace goes before it"),
    _timed("late_after", "a record that arrived so long after its event is late"),
    _timed("consume_timeout", "a delivery without an end is IN_FLIGHT until then, ABANDONED after"),
    _timed(
        "shutdown_window",
        "before the last event of a process that ended: what is missing there is SHUTDOWN_WINDOW",
    ),
    _timed("forget_after", "across runs: a key that stayed open so long is waited for no longer"),
    _same("writer_silent_minimum", _count, "events of a topic or group before its absence is called silence"),
    _same(
        "value_length_limit",
        _count,
        "attribute limit of the spans' writer: a prefix as long is TRUNCATED",
        example="128",
    ),
    _same(
        "sampling_ratio",
        _ratio,
        "share of messages with spans: of the others as many as chance allows are NOT_SAMPLED",
    ),
    _same(
        "mask_keys",
        _choice("way to mask", "none", "mask", "hash"),
        "message keys in all output: none (as they are), mask (mask_text), hash (salted SHA-256)",
    ),
    _same("mask_text", _text, "what stands for a masked value; a side that shows it is REDACTED"),
    _same("mask_salt", _text, "put before a value that is hashed; a side that shows that hash is REDACTED"),
)
"""The top-level keys, in the order they are printed."""

FIELD_SETTINGS: Final = (
    _same(
        "severity",
        _choice("severity", "fail", "warn", "ignore"),
        "what a disagreement does to the run: fail, warn or ignore",
    ),
    _same("tolerance_ms", _count, "start_ms, end_ms and cost_ms: so far apart is WITHIN_TOLERANCE"),
    _same(
        "verdicts",
        _verdicts,
        "what single verdicts mean for this field: ok, warn or fail",
        write=_write_verdicts,
        example='{ TRUNCATED = "fail", MISSING_OTLP = "ok" }',
    ),
)
"""The keys of ``[fields.NAME]``."""

GATE_SETTINGS: Final = (
    _same("threshold", _number, "the bound its value must keep"),
    _same("severity", _choice("severity", "fail", "warn"), "what it does when the bound is not kept"),
    _same("minimum_sample", _count, "measured on fewer keys, records or comparisons it is inconclusive"),
)
"""The keys of ``[gates.NAME]``."""

_SIDE: Final = _choice("side", "native", "otlp")

WRITER_SETTINGS: Final = (
    _same(
        "side",
        _SIDE,
        "native (unless NAME is java-agent) or otlp; it distinguishes our two writers of one name",
    ),
    _same(
        "never",
        _choices("kind", [kind.value for kind in Kind]),
        "kinds of events it never records: BY_DESIGN when only the other side has them",
    ),
    _same(
        "never_fields",
        _choices("field", COMPARED_FIELDS),
        "fields it never records: NOT_COMPARABLE when only the other side has them",
    ),
)
"""The keys of ``[writers."NAME"]``; NAME is one of ``--native-writer`` (a version stands for all below it) or
``--profile``."""

SILENT_SETTINGS: Final = (
    _same("side", _SIDE, "the side that shows nothing"),
    _same("topic", _text, "of this topic"),
    _same("group", _text, "of this producer or consumer group"),
    _same("service", _text, "of this service; only spans name one"),
)
"""The keys of one ``[[silent]]``: all that are named must agree; such keys are BY_DESIGN."""
