"""This module knows which hue of the pages stands for which word of the closed lists."""

from __future__ import annotations

from bridge.page.palette import AMBER, BLUE, BROWN, GREEN, GREY, ORANGE, PLUM, RED, ROSE, SAGE, SKY, SLATE, VIOLET
from spark_jobs.taxonomy import FieldVerdict, Outcome, Status, Verdict

__all__ = [
    "FIELD_COLOUR",
    "OUTCOME_COLOUR",
    "PROBLEMS",
    "STATUS_COLOUR",
    "VERDICT_COLOUR",
]

STATUS_COLOUR: dict[str, str] = {
    Status.MATCHED_EXACT.value: GREEN,
    Status.MATCHED_NORMALISED.value: SAGE,
    Status.MISMATCHED.value: ORANGE,
    Status.DUPLICATED_NATIVE.value: VIOLET,
    Status.DUPLICATED_OTLP.value: PLUM,
    Status.DUPLICATED_BOTH.value: BLUE,
    Status.NATIVE_ONLY.value: RED,
    Status.OTLP_ONLY.value: ROSE,
    Status.PENDING.value: SKY,
    Status.OUT_OF_SCOPE.value: GREY,
    Status.MALFORMED.value: BROWN,
}
"""One colour per status, in report order."""

PROBLEMS: tuple[str, ...] = tuple(
    status.value
    for status in Status
    if status not in {Status.MATCHED_EXACT, Status.MATCHED_NORMALISED, Status.PENDING, Status.OUT_OF_SCOPE}
)
"""Statuses that may be a finding, in report order."""

FIELD_COLOUR: dict[str, str] = {
    FieldVerdict.EQUAL.value: GREEN,
    FieldVerdict.EQUAL_NORMALISED.value: SAGE,
    FieldVerdict.WITHIN_TOLERANCE.value: SKY,
    FieldVerdict.TRUNCATED.value: AMBER,
    FieldVerdict.SANITISED.value: BROWN,
    FieldVerdict.REDACTED.value: SLATE,
    FieldVerdict.MISSING_NATIVE.value: ROSE,
    FieldVerdict.MISSING_OTLP.value: RED,
    FieldVerdict.NOT_COMPARABLE.value: GREY,
    FieldVerdict.DIFFERENT.value: ORANGE,
}
"""One colour per field verdict, mildest first."""

OUTCOME_COLOUR: dict[str, str] = {
    Outcome.PASS.value: GREEN,
    Outcome.WARN.value: AMBER,
    Outcome.FAIL.value: RED,
    Outcome.INCONCLUSIVE.value: SLATE,
}

VERDICT_COLOUR: dict[str, str] = {
    Verdict.PASS.value: GREEN,
    Verdict.WARN.value: AMBER,
    Verdict.FAIL.value: RED,
    Verdict.INCONCLUSIVE.value: SLATE,
}
