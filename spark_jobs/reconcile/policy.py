"""This module knows what a run tolerates: the policy file, its defaults, and one line for each thing wrong in it.

A policy is TOML: top-level ``grace``, ``late_after``, ``consume_timeout``, ``writer_silent_minimum`` and
``value_length_limit``; a table ``[fields.NAME]`` with ``critical`` and ``tolerance_ms``; a table ``[gates.NAME]`` with
``threshold`` and ``severity``.
"""

from __future__ import annotations

import math
import re
import sys
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

if sys.version_info >= (3, 11):
    import tomllib
else:  # the 'spark' extra brings the package the standard library's was made from
    import tomli as tomllib

from otel_mqtrace._errors import UnreadableInputError, UsageError
from spark_jobs.reconcile.profiles import PROFILES, Profile, parse_native_writer
from spark_jobs.schemas import COMPARED_FIELDS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

__all__ = ["CRITICAL_FIELDS", "DEFAULT_GATES", "GateRule", "Policy", "parse_duration_ms", "read_policy"]

_UNITS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_LONGEST_MS: Final = 36_500 * _UNITS["d"]
_MOST: Final = (1 << 31) - 1
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)?")

CRITICAL_FIELDS: Final = frozenset(
    {
        *("offset_msg_id", "topic", "group_name", "start_ms", "success", "retry_times", "body_length", "msg_type"),
        *("region_id", "transaction_id", "transaction_state", "from_transaction_check"),
    }
)
"""The fields whose disagreement fails a run; the others warn."""


@dataclass(frozen=True, slots=True)
class GateRule:
    """``value op threshold`` must hold, else the gate has this ``severity`` (``fail`` or ``warn``)."""

    op: str
    threshold: float
    severity: str
    explanation: str


DEFAULT_GATES: Final[dict[str, GateRule]] = {
    "unexplained_loss_native": GateRule("<=", 0, "fail", "keys that only OTLP has, settled and without a reason"),
    "unexplained_loss_otlp": GateRule("<=", 0, "fail", "keys that only the native trace has, settled, no reason"),
    "conflicting_duplicates": GateRule("<=", 0, "fail", "keys with copies on one side that contradict each other"),
    "malformed": GateRule("<=", 0, "fail", "pieces of input on either side that could not be read"),
    "critical_field_agreement": GateRule(">=", 100, "fail", "per cent of compared critical fields that agree"),
    "duplicate_excess": GateRule("<=", 0.1, "fail", "per cent of records beyond the first of their key"),
    "field_agreement": GateRule(">=", 100, "warn", "per cent of the other compared fields that agree"),
    "late": GateRule("<=", 1, "warn", "per cent of keys of which a record arrived late"),
    "writer_silent": GateRule("<=", 0, "warn", "keys of a topic or group that shows nothing at all on the other side"),
}
"""Every gate, in report order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Everything a run tolerates; durations in milliseconds."""

    profile: Profile = PROFILES["mqtrace"]
    native_writer: str = "mqtrace"
    grace_ms: int = 60_000
    late_after_ms: int = 60_000
    consume_timeout_ms: int = 15 * 60_000
    writer_silent_minimum: int = 1
    value_length_limit: int | None = None
    critical: frozenset[str] = CRITICAL_FIELDS
    tolerance_ms: Mapping[str, int] = field(default_factory=dict)
    gates: Mapping[str, GateRule] = field(default_factory=lambda: dict(DEFAULT_GATES))
    begin_ms: int | None = None
    end_ms: int | None = None
    strict: bool = False

    def tolerance(self, name: str) -> int:
        """Return the tolerance of a time field: the policy file's, else the profile's for this pair of writers."""
        shared = self.profile.name == "mqtrace" and self.native_writer == "mqtrace"
        start_ms = self.profile.shared_clock_ms if shared else self.profile.start_ms
        defaults = {"start_ms": start_ms, "end_ms": self.profile.end_ms, "cost_ms": self.profile.cost_ms}
        return self.tolerance_ms.get(name, defaults[name])


def parse_duration_ms(text: str, *, name: str) -> int:
    """Read ``60s``, ``5m``, ``1.5h``, ``250ms`` or ``0`` (bare numbers are seconds), at most ``36500d``.

    Raises:
        UsageError: it is no duration, or a longer one; the line names the option.
    """
    found = _DURATION.fullmatch(text.strip())
    if not found:
        raise UsageError(f"{name} '{text}' is no duration; write seconds, or a number and ms, s, m, h or d, as in 60s")
    wanted_ms = float(found[1]) * _UNITS[found[2] or "s"]
    if wanted_ms > _LONGEST_MS:
        raise UsageError(f"{name} '{text}' is longer than a hundred years; write at most 36500d")
    return round(wanted_ms)


def read_policy(path: Path | None, *, profile: str = "mqtrace", native_writer: str = "mqtrace") -> Policy:
    """Return the policy in ``path`` over the defaults of ``profile``; raise ``UsageError`` if it is wrong."""
    if profile not in PROFILES:
        raise UsageError(f"--profile '{profile}' is unknown; choose one of {', '.join(PROFILES)}")
    if parse_native_writer(native_writer) is None:
        raise UsageError(f"--native-writer '{native_writer}' is unknown; write mqtrace, rocketmq or rocketmq-5.3.3")
    policy = Policy(profile=PROFILES[profile], native_writer=native_writer)
    return policy if path is None else _apply(policy, _load(path), str(path))


def _load(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"--policy {path} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UnreadableInputError(f"--policy {path} is no TOML: {error}") from error


def _apply(policy: Policy, wanted: Mapping[str, Any], where: str) -> Policy:
    _refuse_unknown(wanted, {*_SCALARS, "fields", "gates"}, where)
    changes: dict[str, Any] = {
        _SCALARS[name][0]: _SCALARS[name][1](value, f"{where}: {name}")
        for name, value in wanted.items()
        if name in _SCALARS
    }
    changes |= _field_changes(policy, _table(wanted, "fields", where), where)
    changes["gates"] = _gate_changes(policy, _table(wanted, "gates", where), where)
    return replace(policy, **changes)


def _duration(value: Any, name: str) -> int:
    return parse_duration_ms(str(value), name=name)


def _count(value: Any, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise UsageError(f"{name} = {value!r} is no count; write a whole number from 0")
    if value > _MOST:
        raise UsageError(f"{name} = {value!r} is too large; write at most {_MOST}")
    return value


def _number(value: Any, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise UsageError(f"{name} = {value!r} is no number")
    return float(value)


def _flag(value: Any, name: str) -> bool:
    if not isinstance(value, bool):
        raise UsageError(f"{name} = {value!r} is neither true nor false")
    return value


def _severity(value: Any, name: str) -> str:
    if value not in {"fail", "warn"}:
        raise UsageError(f'{name} = {value!r} is no severity; write "fail" or "warn"')
    return str(value)


_SCALARS: Final[dict[str, tuple[str, Callable[[Any, str], Any]]]] = {
    "grace": ("grace_ms", _duration),
    "late_after": ("late_after_ms", _duration),
    "consume_timeout": ("consume_timeout_ms", _duration),
    "writer_silent_minimum": ("writer_silent_minimum", _count),
    "value_length_limit": ("value_length_limit", _count),
}
_FIELD_KEYS: Final[dict[str, Callable[[Any, str], Any]]] = {"critical": _flag, "tolerance_ms": _count}
_GATE_KEYS: Final[dict[str, Callable[[Any, str], Any]]] = {"threshold": _number, "severity": _severity}
_TIMED: Final = ("start_ms", "end_ms", "cost_ms")


def _refuse_unknown(table: Mapping[str, Any], known: set[str], where: str) -> None:
    unknown = sorted(set(table) - known)
    if unknown:
        raise UsageError(f"{where}: unknown key '{unknown[0]}'; known are {', '.join(sorted(known))}")


_EXAMPLES: Final = {"fields": "[fields.start_ms]", "gates": "[gates.malformed]"}


def _table(wanted: Mapping[str, Any], name: str, where: str) -> dict[str, dict[str, Any]]:
    table = wanted.get(name, {})
    if not isinstance(table, dict) or not all(isinstance(row, dict) for row in table.values()):
        raise UsageError(f"{where}: {name} must be tables, as in {_EXAMPLES[name]}")
    return table


def _field_changes(policy: Policy, fields: Mapping[str, Mapping[str, Any]], where: str) -> dict[str, Any]:
    _refuse_unknown(fields, set(COMPARED_FIELDS), f"{where}: [fields]")
    critical, tolerance = set(policy.critical), dict(policy.tolerance_ms)
    for name, row in fields.items():
        place = f"{where}: [fields.{name}]"
        _refuse_unknown(row, set(_FIELD_KEYS) if name in _TIMED else {"critical"}, place)
        values = {key: _FIELD_KEYS[key](value, f"{place} {key}") for key, value in row.items()}
        if "critical" in values:
            (critical.add if values["critical"] else critical.discard)(name)
        if "tolerance_ms" in values:
            tolerance[name] = values["tolerance_ms"]
    return {"critical": frozenset(critical), "tolerance_ms": tolerance}


def _gate_changes(policy: Policy, gates: Mapping[str, Mapping[str, Any]], where: str) -> dict[str, GateRule]:
    _refuse_unknown(gates, set(policy.gates), f"{where}: [gates]")
    changed = dict(policy.gates)
    for name, row in gates.items():
        place = f"{where}: [gates.{name}]"
        _refuse_unknown(row, set(_GATE_KEYS), place)
        changed[name] = replace(changed[name], **{key: _GATE_KEYS[key](row[key], f"{place} {key}") for key in row})
    return changed
