"""This module knows how one sampled event is laid open: both sides field by field, the difference marked, its place."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from markupsafe import Markup, escape

from spark_jobs.report.svg.swimlane import MOST_LANES, Lane, Stay, swimlane
from spark_jobs.report.wording import ABSENT, value_text, visible
from spark_jobs.taxonomy import FieldVerdict

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from spark_jobs.report.result import Sample

__all__ = ["EVIDENCE_FIELDS", "FieldRow", "SampleView", "by_turns", "sample_views"]

EVIDENCE_FIELDS = ("path", "line", "record_index", "raw_hash")
"""Fields of a side that say where it was read, not what it says."""

_MILD = {
    FieldVerdict.EQUAL.value,
    FieldVerdict.EQUAL_NORMALISED.value,
    FieldVerdict.WITHIN_TOLERANCE.value,
    FieldVerdict.NOT_COMPARABLE.value,
}
_FACTS = (
    ("reason_detail", "Rule"),
    ("attempt_id", "Attempt"),
    ("retry_times", "Retry"),
    ("key_level", "Key level"),
    ("timing", "Timing"),
    ("native_count", "Native records"),
    ("otlp_count", "OTLP spans"),
    ("duplicates", "Duplicates"),
)


@dataclass(frozen=True, slots=True)
class FieldRow:
    """One field of both sides; ``same`` when one cell can stand for both, ``marked`` when it is a finding."""

    name: str
    native: Markup
    otlp: Markup
    verdict: str
    same: bool
    marked: bool


@dataclass(frozen=True, slots=True)
class SampleView:
    """One sample, ready to be read."""

    stratum: str
    anchor: str
    msg_id: str
    kind: str
    place: str
    status: str
    reason: str
    facts: tuple[tuple[str, str], ...]
    rows: tuple[FieldRow, ...]
    evidence: tuple[tuple[str, str], ...]
    lane: Markup


def sample_views(samples: Sequence[Sample]) -> Iterator[SampleView]:
    """Yield a view of every sample; samples of one message share the lanes of all of them."""
    messages: defaultdict[object, list[Sample]] = defaultdict(list)
    for sample in samples:
        messages[sample.verdict.get("msg_id") or id(sample)].append(sample)
    for at, sample in enumerate(samples, start=1):
        yield _view(sample, f"sample-{at}", messages[sample.verdict.get("msg_id") or id(sample)])


def by_turns(samples: Iterable[Sample], *, at_most: int, per_stratum: int) -> list[Sample]:
    """Return up to ``at_most`` samples, one of every stratum in turn: a cut never silences a rare kind of finding."""
    strata: defaultdict[str, list[Sample]] = defaultdict(list)
    for sample in samples:
        if len(strata[sample.stratum]) < per_stratum:
            strata[sample.stratum].append(sample)
    turns = (sample for turn in zip_longest(*strata.values()) for sample in turn if sample is not None)
    return [sample for sample, _ in zip(turns, range(at_most), strict=False)]


def _view(sample: Sample, anchor: str, message: Sequence[Sample]) -> SampleView:
    verdict = sample.verdict
    facts = ((label, value_text(name, verdict.get(name))) for name, label in _FACTS)
    return SampleView(
        stratum=visible(sample.stratum),
        anchor=anchor,
        msg_id=_said(verdict, "msg_id"),
        kind=_said(verdict, "kind"),
        place=_place(verdict),
        status=_said(verdict, "status"),
        reason=_said(verdict, "reason") if verdict.get("reason") else "",
        facts=tuple((label, text) for label, text in facts if text is not None),
        rows=tuple(_rows(sample)),
        evidence=tuple(_evidence(sample)),
        lane=swimlane(_lanes(sample, message)),
    )


def _said(fields: dict[str, Any], name: str) -> str:
    return value_text(name, fields.get(name)) or ABSENT


def _place(verdict: dict[str, Any]) -> str:
    """Return ``topic``, or ``topic → group`` on the consuming side."""
    names = [visible(str(verdict[name]), limit=80) for name in ("topic", "group") if verdict.get(name)]
    return " → ".join(names) or ABSENT


def _rows(sample: Sample) -> Iterator[FieldRow]:
    native, otlp = sample.native or {}, sample.otlp or {}
    verdicts = sample.verdict.get("field_verdicts") or {}
    for name in dict.fromkeys((*native, *otlp)):
        if name in EVIDENCE_FIELDS:
            continue
        left, right = value_text(name, native.get(name)), value_text(name, otlp.get(name))
        if left is None and right is None:
            continue
        yield _row(name, left, right, str(verdicts.get(name) or ""))


def _row(name: str, left: str | None, right: str | None, verdict: str) -> FieldRow:
    marked = bool(verdict) and verdict not in _MILD
    native, otlp = _marked(left, right) if marked else (escape(left or ABSENT), escape(right or ABSENT))
    return FieldRow(visible(name), native, otlp, visible(verdict), same=left == right and not marked, marked=marked)


def _marked(left: str | None, right: str | None) -> tuple[Markup, Markup]:
    """Return both texts with what differs between their common start and end inside ``<mark>``."""
    if left is None or right is None:
        return tuple(_mark(text or ABSENT, 0, 0) for text in (left, right))  # type: ignore[return-value]
    shortest = min(len(left), len(right))
    start = next((at for at in range(shortest) if left[at] != right[at]), shortest)
    room = shortest - start
    end = next((at for at in range(room) if left[-1 - at] != right[-1 - at]), room)
    return _mark(left, start, end), _mark(right, start, end)


def _mark(text: str, start: int, end: int) -> Markup:
    stop = len(text) - end
    return Markup("{}<mark>{}</mark>{}").format(text[:start], text[start:stop], text[stop:])


def _evidence(sample: Sample) -> Iterator[tuple[str, str]]:
    for side, fields in (("Native", sample.native), ("OTLP", sample.otlp)):
        if not fields:
            yield side, "no record"
            continue
        parts = [visible(str(fields["path"]))] if fields.get("path") else ["source not recorded"]
        parts += [f"line {fields['line']}"] if fields.get("line") is not None else []
        parts += [f"record {fields['record_index']}"] if fields.get("record_index") is not None else []
        yield side, ", ".join(parts)


def _lanes(this: Sample, message: Sequence[Sample]) -> list[Lane]:
    """Return the lanes of a message, earliest first; ``this`` is among them however many there are."""
    others = [other for other in message if other is not this][: MOST_LANES - 1]
    ordered = sorted((this, *others), key=_first_ms)
    return [
        Lane(_lane_name(sample.verdict), _stay(sample.native), _stay(sample.otlp), this=sample is this)
        for sample in ordered
    ]


def _first_ms(sample: Sample) -> int:
    starts = [side["start_ms"] for side in (sample.native, sample.otlp) if side and side.get("start_ms") is not None]
    return min(starts, default=0)


def _lane_name(verdict: dict[str, Any]) -> str:
    return visible(" ".join(str(verdict[name]) for name in ("kind", "group") if verdict.get(name)), limit=40)


def _stay(fields: dict[str, Any] | None) -> Stay | None:
    return Stay(fields.get("start_ms"), fields.get("end_ms"), fields.get("success")) if fields else None
