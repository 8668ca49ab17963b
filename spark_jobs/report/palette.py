"""Four groups for everything that was found, and the colours of groups, outcomes and verdicts."""

from __future__ import annotations

from typing import Final

from bridge.page.palette import AMBER, GREEN, GREY, RED, SKY, SLATE
from spark_jobs.taxonomy import FieldVerdict, Outcome, Reason, Status, Verdict

__all__ = ["GROUPS", "GROUP_COLOUR", "OUTCOME_COLOUR", "VERDICT_COLOUR", "group_field_verdict", "group_finding"]

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
    """Return which of ``GROUPS`` an event belongs to; the reason decides where one side lacks it."""
    if status in _ONE_SIDED:
        return _REASON_GROUP.get(reason or "", PROBLEM)
    return _STATUS_GROUP.get(status, PROBLEM)


def group_field_verdict(verdict: str) -> str:
    """Return which of ``GROUPS`` a compared field belongs to."""
    if verdict in _AGREEING:
        return FINE
    return PROBLEM if verdict in _DISAGREEING else EXPLAINED
