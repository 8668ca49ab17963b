"""Print a policy: complete TOML with comments, which read back gives the same policy."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, Final

from spark_jobs.policy.policy import OpenWriters
from spark_jobs.policy.settings import (
    FIELD_SETTINGS,
    GATE_SETTINGS,
    SETTINGS,
    SILENT_SETTINGS,
    TIMED_FIELDS,
    WRITER_SETTINGS,
    write_toml,
)
from spark_jobs.schemas import COMPARED_FIELDS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from spark_jobs.policy.policy import Policy
    from spark_jobs.policy.settings import Setting

__all__ = ["hash_policy", "print_policy"]

_NO_EXAMPLE: Final = ('# [writers."rocketmq-5.3.3"]', '# never = ["recall"]', '# never_fields = ["region_id"]')
_NO_SILENCE: Final = ("# [[silent]]", '# side = "otlp"', '# group = "nightly-batch"')
_COLUMN: Final = 34


def print_policy(policy: Policy, *, open_writers: OpenWriters | None = None) -> str:
    """Return the whole policy as TOML; what has no value stands as a comment with an example.

    Args:
        policy: to print.
        open_writers: what the input of a run decides; the policy's own writers count where it is absent.
    """
    return "\n".join(_lines(policy, open_writers=open_writers)) + "\n"


def hash_policy(policy: Policy) -> str:
    """Return SHA-256, in hex, of what decides: the policy without its comments, the writers, strictness."""
    lines = [line for line in _lines(policy, explained=False) if line and not line.startswith("#")]
    lines += [*policy.writer_names, str(policy.strict)]
    lines += ["complete"] if policy.is_complete else []
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _lines(policy: Policy, *, explained: bool = True, open_writers: OpenWriters | None = None) -> Iterator[str]:
    named = open_writers or OpenWriters(*policy.writer_names, frozenset())
    yield f"# --profile {named.profile} --native-writer {named.native_writer}"
    for setting in SETTINGS:
        yield _line(setting, getattr(policy, setting.attribute), says=explained)
    yield from _head("[fields.NAME]", FIELD_SETTINGS)
    for name in COMPARED_FIELDS:
        yield from _table(
            f"[fields.{name}]", _field(policy, name, has_tolerance=name in TIMED_FIELDS and name not in named.timed)
        )
    yield from _head("[gates.NAME]", GATE_SETTINGS)
    for name, rule in policy.gates.items():
        rows = [(each, getattr(rule, each.attribute)) for each in GATE_SETTINGS]
        yield from _table(f"[gates.{name}]", rows, says=f"{rule.explanation}: {rule.op} threshold")
    yield from _head('[writers."NAME"]', WRITER_SETTINGS)
    yield from () if policy.writers else _NO_EXAMPLE
    for writer in policy.writers:
        rows = [(each, getattr(writer, each.attribute)) for each in WRITER_SETTINGS]
        yield from _table(f"[writers.{write_toml(writer.writer)}]", rows)
    yield from _head("[[silent]]", SILENT_SETTINGS)
    yield from () if policy.silent else _NO_SILENCE
    for silent in policy.silent:
        values = [(each, getattr(silent, each.attribute)) for each in SILENT_SETTINGS]
        yield from _table("[[silent]]", [(each, value) for each, value in values if value is not None])


def _field(policy: Policy, name: str, *, has_tolerance: bool) -> Iterator[tuple[Setting, Any]]:
    values = {
        "severity": policy.severity[name],
        "tolerance_ms": policy.tolerance(name) if has_tolerance else None,
        "verdicts": policy.verdicts.get(name),
    }
    return ((each, values[each.key]) for each in FIELD_SETTINGS if values.get(each.key) is not None)


def _head(name: str, settings: Iterable[Setting]) -> Iterator[str]:
    yield ""
    yield f"# {name}"
    for setting in settings:
        yield f"#   {setting.key}: {setting.says}"


def _table(head: str, rows: Iterable[tuple[Setting, Any]], *, says: str = "") -> Iterator[str]:
    yield ""
    yield f"{head}  # {says}" if says else head
    for setting, value in rows:
        yield _line(setting, value)


def _line(setting: Setting, value: Any, *, says: bool = False) -> str:
    absent = value is None
    line = f"{'# ' if absent else ''}{setting.key} = {setting.example if absent else setting.write(value)}"
    return f"{line:<{_COLUMN}}  # {setting.says}" if says else line
