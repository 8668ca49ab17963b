"""This module knows what a policy may rule: every key of the file, its meaning, its default, how it is read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from spark_jobs.policy.values import (
    choice,
    choices,
    count,
    duration_ms,
    flag,
    in_duration,
    in_toml,
    number,
    text,
)
from spark_jobs.policy.values import ratio as share
from spark_jobs.schemas import COMPARED_FIELDS
from spark_jobs.taxonomy import FieldVerdict, Kind

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "CRITICAL_FIELDS",
    "DEFAULT_GATES",
    "DISAGREEMENT",
    "FIELD_SETTINGS",
    "GATE_SETTINGS",
    "SETTINGS",
    "SILENT_SETTINGS",
    "TIMED_FIELDS",
    "WRITER_SETTINGS",
    "GateRule",
    "Setting",
    "SilentRule",
    "WriterRule",
]

CRITICAL_FIELDS: Final = frozenset(
    {
        *("offset_msg_id", "topic", "group_name", "start_ms", "success", "retry_times", "body_length", "msg_type"),
        *("region_id", "transaction_id", "transaction_state", "from_transaction_check"),
    }
)
"""The fields whose disagreement fails a run; the others warn."""

TIMED_FIELDS: Final = ("start_ms", "end_ms", "cost_ms")
"""The fields that are compared with a tolerance."""

DISAGREEMENT: Final = frozenset(
    {FieldVerdict.DIFFERENT.value, FieldVerdict.MISSING_NATIVE.value, FieldVerdict.MISSING_OTLP.value}
)
"""The verdicts that count against a field unless the policy says otherwise."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One key of the file: where its value goes, how it is read and written, what it says.

    ``example`` is shown as a comment where the value is absent.
    """

    key: str
    attribute: str
    read: Callable[[Any, str], Any]
    says: str
    write: Callable[[Any], str] = in_toml
    example: str | None = None


SETTINGS: Final = (
    Setting(
        key="grace",
        attribute="grace_ms",
        read=duration_ms,
        write=in_duration,
        says="how late a record may arrive (ms, s, m, h or d); --grace goes before it",
    ),
    Setting(
        key="late_after",
        attribute="late_after_ms",
        read=duration_ms,
        write=in_duration,
        says="a record that arrived so long after its event is late",
    ),
    Setting(
        key="consume_timeout",
        attribute="consume_timeout_ms",
        read=duration_ms,
        write=in_duration,
        says="a delivery without an end is IN_FLIGHT until then, ABANDONED after",
    ),
    Setting(
        key="shutdown_window",
        attribute="shutdown_window_ms",
        read=duration_ms,
        write=in_duration,
        says="before the last event of a process that ended: what is missing there is SHUTDOWN_WINDOW",
    ),
    Setting(
        key="forget_after",
        attribute="forget_after_ms",
        read=duration_ms,
        write=in_duration,
        says="across runs: a key that stayed open so long is waited for no longer",
    ),
    Setting(
        key="writer_silent_minimum",
        attribute="writer_silent_minimum",
        read=count,
        says="events of a topic or group before its absence is called silence",
    ),
    Setting(
        key="value_length_limit",
        attribute="value_length_limit",
        read=count,
        says="attribute limit of the spans' writer: a prefix as long is TRUNCATED",
        example="128",
    ),
    Setting(
        key="sampling_ratio",
        attribute="sampling_ratio",
        read=share,
        says="share of messages with spans: of the others as many as chance allows are NOT_SAMPLED",
    ),
    Setting(
        key="mask_keys",
        attribute="mask_keys",
        read=choice("way to mask", "none", "mask", "hash"),
        says="message keys in all output: none (as they are), mask (mask_text), hash (salted SHA-256)",
    ),
    Setting(
        key="mask_text",
        attribute="mask_text",
        read=text,
        says="what stands for a masked value; a side that shows it is REDACTED",
    ),
    Setting(
        key="mask_salt",
        attribute="mask_salt",
        read=text,
        says="put before a value that is hashed; a side that shows that hash is REDACTED",
    ),
)
"""The top-level keys, in the order they are printed."""

_OUTCOME: Final = choice("outcome", "ok", "warn", "fail")
_VERDICTS: Final = tuple(verdict.value for verdict in FieldVerdict)


def _outcomes(value: Any, name: str) -> dict[str, str]:
    verdict = choices("field verdict", _VERDICTS)
    if not isinstance(value, dict):
        verdict(value, name)
    verdict(list(value), name)
    return {key: _OUTCOME(said, f"{name}.{key}") for key, said in sorted(value.items())}


def _in_outcomes(value: dict[str, str]) -> str:
    return f"{{ {', '.join(f'{verdict} = {in_toml(said)}' for verdict, said in value.items())} }}"


FIELD_SETTINGS: Final = (
    Setting(
        key="severity",
        attribute="severity",
        read=choice("severity", "fail", "warn", "ignore"),
        says="what a disagreement does to the run: fail, warn or ignore",
    ),
    Setting(
        key="tolerance_ms",
        attribute="tolerance_ms",
        read=count,
        says="start_ms, end_ms and cost_ms: so far apart is WITHIN_TOLERANCE",
    ),
    Setting(
        key="verdicts",
        attribute="verdicts",
        read=_outcomes,
        write=_in_outcomes,
        says="what single verdicts mean for this field: ok, warn or fail",
        example='{ TRUNCATED = "fail", MISSING_OTLP = "ok" }',
    ),
    Setting(
        key="critical",
        attribute="severity",
        read=flag,
        says='older spelling: true is severity = "fail", false is "warn"',
    ),
)
"""The keys of ``[fields.NAME]``."""

GATE_SETTINGS: Final = (
    Setting(key="threshold", attribute="threshold", read=number, says="the bound its value must keep"),
    Setting(
        key="severity",
        attribute="severity",
        read=choice("severity", "fail", "warn"),
        says="what it does when the bound is not kept",
    ),
    Setting(
        key="minimum_sample",
        attribute="minimum_sample",
        read=count,
        says="measured on fewer keys, records or comparisons it is inconclusive",
    ),
)
"""The keys of ``[gates.NAME]``."""

_SIDE: Final = choice("side", "native", "otlp")

WRITER_SETTINGS: Final = (
    Setting(
        key="side",
        attribute="side",
        read=_SIDE,
        says="native (unless NAME is java-agent) or otlp; it tells our two writers apart, which share a name",
    ),
    Setting(
        key="never",
        attribute="never",
        read=choices("kind", [kind.value for kind in Kind]),
        says="kinds of events it never records: BY_DESIGN when only the other side has them",
    ),
    Setting(
        key="never_fields",
        attribute="never_fields",
        read=choices("field", COMPARED_FIELDS),
        says="fields it never records: NOT_COMPARABLE when only the other side has them",
    ),
)
"""The keys of ``[writers."NAME"]``; NAME is one of ``--native-writer`` (a version stands for all below it) or
``--profile``."""

SILENT_SETTINGS: Final = (
    Setting(key="side", attribute="side", read=_SIDE, says="the side that shows nothing"),
    Setting(key="topic", attribute="topic", read=text, says="of this topic"),
    Setting(key="group", attribute="group", read=text, says="of this producer or consumer group"),
    Setting(key="service", attribute="service", read=text, says="of this service; only spans name one"),
)
"""The keys of one ``[[silent]]``: all that are named must agree; such keys are BY_DESIGN."""
