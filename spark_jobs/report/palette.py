"""This module knows which colour stands for which word; a colour never stands without its word.

Every colour has at least 3:1 contrast on the light and on the dark page (WCAG 2.2, graphical objects), so that a chart
needs no second set and keeps its meaning where a viewer blocks style sheets.
"""

from __future__ import annotations

from spark_jobs.taxonomy import FieldVerdict, Outcome, Status, Verdict

__all__ = [
    "DARK_PAGE",
    "FIELD_COLOUR",
    "LIGHT_PAGE",
    "OUTCOME_COLOUR",
    "PROBLEMS",
    "SIDE_COLOUR",
    "STATUS_COLOUR",
    "VERDICT_COLOUR",
]

LIGHT_PAGE, DARK_PAGE = "#fcfcfb", "#14181d"

_GREEN, _SAGE, _BLUE, _SKY, _SLATE, _GREY = "#2f8f5b", "#6f9a3c", "#3f7fc4", "#3b93a8", "#7a8794", "#8b8f96"
_AMBER, _ORANGE, _RED, _ROSE, _VIOLET, _PLUM, _BROWN = (
    *("#b7791f", "#cf6a2b", "#d14343", "#c94f86"),
    *("#8b6bd0", "#a457b5", "#946a4a"),
)

STATUS_COLOUR: dict[str, str] = {
    Status.MATCHED_EXACT.value: _GREEN,
    Status.MATCHED_NORMALISED.value: _SAGE,
    Status.MISMATCHED.value: _ORANGE,
    Status.DUPLICATED_NATIVE.value: _VIOLET,
    Status.DUPLICATED_OTLP.value: _PLUM,
    Status.DUPLICATED_BOTH.value: _BLUE,
    Status.NATIVE_ONLY.value: _RED,
    Status.OTLP_ONLY.value: _ROSE,
    Status.PENDING.value: _SKY,
    Status.OUT_OF_SCOPE.value: _GREY,
    Status.MALFORMED.value: _BROWN,
}
"""One colour per status, in report order."""

PROBLEMS: tuple[str, ...] = tuple(
    status.value
    for status in Status
    if status not in {Status.MATCHED_EXACT, Status.MATCHED_NORMALISED, Status.PENDING, Status.OUT_OF_SCOPE}
)
"""Statuses that may be a finding, in report order."""

FIELD_COLOUR: dict[str, str] = {
    FieldVerdict.EQUAL.value: _GREEN,
    FieldVerdict.EQUAL_NORMALISED.value: _SAGE,
    FieldVerdict.WITHIN_TOLERANCE.value: _SKY,
    FieldVerdict.TRUNCATED.value: _AMBER,
    FieldVerdict.SANITISED.value: _BROWN,
    FieldVerdict.REDACTED.value: _SLATE,
    FieldVerdict.MISSING_NATIVE.value: _ROSE,
    FieldVerdict.MISSING_OTLP.value: _RED,
    FieldVerdict.NOT_COMPARABLE.value: _GREY,
    FieldVerdict.DIFFERENT.value: _ORANGE,
}
"""One colour per field verdict, mildest first."""

OUTCOME_COLOUR: dict[str, str] = {
    Outcome.PASS.value: _GREEN,
    Outcome.WARN.value: _AMBER,
    Outcome.FAIL.value: _RED,
    Outcome.INCONCLUSIVE.value: _SLATE,
}

VERDICT_COLOUR: dict[str, str] = {
    Verdict.PASS.value: _GREEN,
    Verdict.WARN.value: _AMBER,
    Verdict.FAIL.value: _RED,
    Verdict.INCONCLUSIVE.value: _SLATE,
}

SIDE_COLOUR: dict[str, str] = {"native": _BLUE, "otlp": _VIOLET}
