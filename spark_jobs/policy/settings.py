"""The keys of a policy file: meaning, default, and how each value is read from TOML and written back."""

from __future__ import annotations

import difflib
import json
import sys
from dataclasses import MISSING, dataclass, field, fields
from typing import TYPE_CHECKING, Any, Final

from bridge.addresses import UNIT_MS, parse_duration_ms
from otel_mqtrace._errors import UsageError
from spark_jobs.schemas import COMPARED_FIELDS
from spark_jobs.taxonomy import FieldVerdict, Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

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
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= sys.float_info.max:
        raise UsageError(f"{name}: invalid number {value!r:.60}; write a number from 0")
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
    if not isinstance(value, dict):
        raise UsageError(f'{name}: invalid table {value!r}; write {{ {_VERDICTS[-1]} = "ok" }}')
    _choices("field verdict", _VERDICTS)(list(value), name)
    outcome = _choice("outcome", "ok", "warn", "fail")
    return {verdict: outcome(value[verdict], f"{name}.{verdict}") for verdict in sorted(value)}


def _write_verdicts(value: dict[str, str]) -> str:
    return f"{{ {', '.join(f'{verdict} = {write_toml(outcome)}' for verdict, outcome in value.items())} }}"


# -- the keys ---------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Setting:
    """One key of the file: attribute, reader, writer and meaning; ``example`` is the comment for an absent value."""

    key: str
    attribute: str
    read: Callable[[Any, str], Any]
    description: str
    write: Callable[[Any], str]
    example: str | None


def _key(
    read: Callable[[Any, str], Any], description: str, default: Any = MISSING, *, example: str | None = None
) -> Any:
    """Return a dataclass field that a key of the file sets; the key has its name, for a duration without ``_ms``."""
    return field(default=default, metadata={"read": read, "description": description, "example": example})


_WRITE: Final[dict[Any, Callable[[Any], str]]] = {_duration: _write_duration, _verdicts: _write_verdicts}


def settings_of(kind: type[Any]) -> tuple[Setting, ...]:
    """Return the keys that set fields of a dataclass, in the order they are printed."""
    return tuple(
        Setting(
            key=one.name.removesuffix("_ms") if one.metadata["read"] is _duration else one.name,
            attribute=one.name,
            write=_WRITE.get(one.metadata["read"], write_toml),
            **one.metadata,
        )
        for one in fields(kind)
        if one.metadata
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Tolerances:
    """The keys at the top of the file."""

    grace_ms: int = _key(_duration, "how late a record may arrive (ms, s, m, h or d); --grace goes before it", 60_000)
    late_after_ms: int = _key(_duration, "a record that arrived so long after its event is late", 60_000)
    consume_timeout_ms: int = _key(
        _duration, "a delivery without an end is IN_FLIGHT until then, ABANDONED after", 15 * 60_000
    )
    shutdown_window_ms: int = _key(
        _duration, "before the last event of a process that ended: what is missing there is SHUTDOWN_WINDOW", 5_000
    )
    forget_after_ms: int = _key(
        _duration, "across runs: a key that stayed open so long is waited for no longer", 7 * 86_400_000
    )
    writer_silent_minimum: int = _key(_count, "events of a topic or group before its absence is called silence", 1)
    value_length_limit: int | None = _key(
        _count, "attribute limit of the spans' writer: a prefix as long is TRUNCATED", None, example="128"
    )
    sampling_ratio: float = _key(
        _ratio, "share of messages with spans: of the others as many as chance allows are NOT_SAMPLED", 1.0
    )
    mask_keys: str = _key(
        _choice("way to mask", "none", "mask", "hash"),
        "message keys in all output: none (as they are), mask (mask_text), hash (salted SHA-256)",
        "none",
    )
    mask_text: str = _key(_text, "what stands for a masked value; a side that shows it is REDACTED", "***")
    mask_salt: str = _key(_text, "put before a value that is hashed; a side that shows that hash is REDACTED", "")


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldRule:
    """How a compared field is judged; a tolerance of ``None`` is the profile's."""

    severity: str = _key(
        _choice("severity", "fail", "warn", "ignore"), "what a disagreement does to the run: fail, warn or ignore"
    )
    tolerance_ms: int | None = _key(_count, "start_ms, end_ms and cost_ms: so far apart is WITHIN_TOLERANCE", None)
    verdicts: Mapping[str, str] | None = _key(
        _verdicts,
        "what single verdicts mean for this field: ok, warn or fail",
        None,
        example='{ TRUNCATED = "fail", MISSING_OTLP = "ok" }',
    )


@dataclass(frozen=True, slots=True)
class GateRule:
    """``value op threshold`` must hold, else the gate has this ``severity`` (``fail`` or ``warn``).

    What was measured on fewer than ``minimum_sample`` keys, records or comparisons is inconclusive.
    """

    op: str
    threshold: float = _key(_number, "the bound its value must keep")
    severity: str = _key(_choice("severity", "fail", "warn"), "what it does when the bound is not kept")
    explanation: str = ""
    minimum_sample: int = _key(_count, "measured on fewer keys, records or comparisons it is inconclusive", 0)


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

_SIDE: Final = _choice("side", "native", "otlp")


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterRule:
    """What a writer of ``side`` never records: kinds of events, and fields of those it does record.

    ``writer`` is one of ``--native-writer`` (a version stands for all below it) or ``--profile``.
    """

    writer: str
    side: str = _key(_SIDE, "native (unless NAME is java-agent) or otlp; it distinguishes our two writers of one name")
    never: tuple[str, ...] = _key(
        _choices("kind", [kind.value for kind in Kind]),
        "kinds of events it never records: BY_DESIGN when only the other side has them",
        (),
    )
    never_fields: tuple[str, ...] = _key(
        _choices("field", COMPARED_FIELDS),
        "fields it never records: NOT_COMPARABLE when only the other side has them",
        (),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SilentRule:
    """A part of the system that is known to leave no trace on ``side``; all that is named must agree.

    Such keys are BY_DESIGN.
    """

    side: str = _key(_SIDE, "the side that shows nothing")
    topic: str | None = _key(_text, "of this topic", None)
    group: str | None = _key(_text, "of this producer or consumer group", None)
    service: str | None = _key(_text, "of this service; only spans name one", None)
