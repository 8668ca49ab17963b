"""Every status, reason and field verdict: label, definition, example, likely cause, action, group and colour.

The words are in ``glossary.toml``. The report and the tables of ``docs/reconciliation/findings.md`` are made from them.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, Final

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

from bridge.page.markup import AMBER, GREEN, GREY, RED, SKY, SLATE
from spark_jobs.taxonomy import FieldVerdict, Outcome, Reason, Status, Verdict

SIDE_NAME: Final = {"native": "native trace", "otlp": "OTLP"}


@dataclass(frozen=True, slots=True)
class Entry:
    """One word of a verdict.

    ``label`` is shown in place of the identifier ``name``; the label of a reason follows that of its status.
    ``problem`` is ``yes``, ``no`` or the condition under which it counts against the run.
    """

    name: str
    label: str
    problem: str
    definition: str
    example: str
    cause: str
    action: str


def _entries(section: str) -> tuple[Entry, ...]:
    return tuple(Entry(name, **fields) for name, fields in _WORDS[section].items())


_WORDS: Final[dict[str, Any]] = tomllib.loads((files(__package__) / "glossary.toml").read_text(encoding="utf-8"))
STATUSES, REASONS, FIELD_VERDICTS = map(_entries, ("status", "reason", "field_verdict"))
_ENTRIES = {entry.name: entry for entry in (*STATUSES, *REASONS, *FIELD_VERDICTS)}


def find_entry(name: str | None) -> Entry | None:
    """Return the entry of an identifier, or ``None`` if it is in no closed list."""
    return _ENTRIES.get(name or "")


def label_finding(status: str, reason: str | None = None) -> str:
    """Return the label of a status and its reason; an unknown identifier is its own label."""
    words = [entry.label if (entry := find_entry(name)) else name for name in (status, reason) if name]
    other = {Status.NATIVE_ONLY.value: "its span", Status.OTLP_ONLY.value: "its native record"}.get(status)
    return ": ".join(words).replace("its counterpart", other or "its counterpart")


# -- groups and colours
FINE, WAITING, EXPLAINED, PROBLEM = GROUPS = ("fine", "waiting", "explained", "problem")

GROUP_COLOUR: Final = {FINE: GREEN, WAITING: SKY, EXPLAINED: GREY, PROBLEM: RED}

_STATUS_GROUP: Final = {
    Status.MATCHED_EXACT.value: FINE,
    Status.MATCHED_NORMALISED.value: FINE,
    Status.PENDING.value: WAITING,
    Status.OUT_OF_SCOPE.value: EXPLAINED,
}
_REASON_GROUP: Final = {
    **{reason.value: EXPLAINED for reason in Reason},
    Reason.IN_FLIGHT.value: WAITING,
    Reason.UNEXPLAINED.value: PROBLEM,
    Reason.WRITER_SILENT.value: PROBLEM,
}
_ONE_SIDED: Final = (Status.NATIVE_ONLY.value, Status.OTLP_ONLY.value)
_AGREEING: Final = (FieldVerdict.EQUAL, FieldVerdict.EQUAL_NORMALISED, FieldVerdict.WITHIN_TOLERANCE)
_DISAGREEING: Final = (FieldVerdict.DIFFERENT, FieldVerdict.MISSING_NATIVE, FieldVerdict.MISSING_OTLP)

OUTCOME_COLOUR: Final = {
    Outcome.PASS.value: GREEN,
    Outcome.WARN.value: AMBER,
    Outcome.FAIL.value: RED,
    Outcome.INCONCLUSIVE.value: SLATE,
}
VERDICT_COLOUR: Final = {verdict.value: OUTCOME_COLOUR[verdict.value.lower()] for verdict in Verdict}


def group_finding(status: str, reason: str | None = None) -> str:
    """Return the group of an event, one of ``GROUPS``: by its reason where one side lacks it, else by its status."""
    if status in _ONE_SIDED:
        return _REASON_GROUP.get(reason or "", PROBLEM)
    return _STATUS_GROUP.get(status, PROBLEM)


def rank_finding(status: str, reason: str | None = None) -> tuple[bool, int, str, str]:
    """Return the key that sorts findings by what matters: the unexplained first, then other problems, then the rest."""
    is_explained = reason != Reason.UNEXPLAINED.value
    return is_explained, -GROUPS.index(group_finding(status, reason)), status, reason or ""


def group_field_verdict(verdict: str) -> str:
    """Return the group of a compared field, one of ``GROUPS``."""
    if verdict in _AGREEING:
        return FINE
    return PROBLEM if verdict in _DISAGREEING else EXPLAINED
