"""Sampled events on the page: both sides field by field, differences marked, with the position of each record."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from markupsafe import Markup, escape

from bridge.page.lanes import Bar, Lane, draw_lanes, pack_rows, scale_of
from bridge.page.markup import RED, SIDE_COLOUR, SLATE, fill_template
from bridge.page.wording import TITLES, UNKNOWN_GROUP
from spark_jobs.report.glossary import FINE, group_field_verdict, label_finding, rank_finding
from spark_jobs.report.templating import environment
from spark_jobs.report.wording import ABSENT, duration, plural, utc, value_text, visible
from spark_jobs.taxonomy import FieldVerdict, Kind

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from spark_jobs.report.result import Finding, Sample

EventKey = tuple[object, object, object, object]

_EVIDENCE_FIELDS: Final = ("path", "line", "record_index", "raw_hash")
"""Fields of a side that give its position in the input, not its content."""

LINK_FIELDS: Final = ("trace_id", "span_id", "msg_id", "topic", "group", "service")
"""The names that a link template may contain in braces."""

_MOST_DIFFERENCES, _LONGEST_VALUE = 2, 36
_FACTS = (
    ("msg_id", "Message"),
    ("reason_detail", "Rule"),
    ("attempt_id", "Attempt"),
    ("retry_times", "Retry"),
    ("key_level", "Key level"),
    ("timing", "Timing"),
    ("native_count", "Native records"),
    ("otlp_count", "OTLP spans"),
    ("duplicates", "Duplicates"),
)


class _FieldRow(NamedTuple):
    """One field of both sides; ``same`` when one cell can stand for both, ``marked`` when it is a finding."""

    name: str
    native: Markup
    otlp: Markup
    verdict: str
    same: bool
    marked: bool


@dataclass(frozen=True, slots=True)
class ShownSamples:
    """The rendered samples of a page by finding, problems first; ``anchors`` map an event to its element id."""

    findings: dict[Finding, list[Markup]]
    anchors: dict[EventKey, str]

    @property
    def count(self) -> int:
        """The number of samples."""
        return sum(map(len, self.findings.values()))


NONE_SHOWN = ShownSamples({}, {})


def render_samples(
    samples: Iterable[Sample],
    timelines: Mapping[str, tuple[Sample, ...]],
    *,
    room_bytes: int,
    link_template: str | None,
) -> ShownSamples:
    """Return as many of ``samples``, in their order, as fit into ``room_bytes``."""
    template = environment().get_template("sample.html.j2")
    findings: defaultdict[Finding, list[Markup]] = defaultdict(list)
    anchors: dict[EventKey, str] = {}
    for at, sample in enumerate(samples, start=1):
        anchor = f"sample-{at}"
        view = _view(sample, anchor, timelines.get(str(sample.verdict.get("msg_id")), ()))
        link = fill_template(link_template, partial(_id_of, sample)) if link_template else None
        html = template.render(view=view, link=link)
        room_bytes -= len(html.encode("utf-8", "backslashreplace"))
        if room_bytes < 0:
            break
        findings[view["finding"]].append(Markup(html))  # noqa: S704 - rendered with autoescape
        anchors[_event_key(sample)] = anchor
    return ShownSamples(dict(sorted(findings.items(), key=lambda each: rank_finding(*each[0]))), anchors)


def _event_key(sample: Sample) -> EventKey:
    verdict = sample.verdict
    return verdict.get("msg_id"), verdict.get("kind"), verdict.get("group"), verdict.get("event_ms")


def drop_repeated(samples: Iterable[Sample]) -> list[Sample]:
    """Return ``samples`` with each event once, though it may also be among the slowest."""
    first: dict[tuple[EventKey, object], Sample] = {}
    for sample in sorted(samples, key=lambda each: each.stratum.startswith("slowest ")):
        first.setdefault((_event_key(sample), sample.verdict.get("attempt_id")), sample)
    return list(first.values())


def choose_in_turns(samples: Iterable[Sample], *, at_most: int, per_stratum: int) -> list[Sample]:
    """Return up to ``at_most`` samples, one of every stratum in turn, so that rare findings stay."""
    strata: defaultdict[str, list[Sample]] = defaultdict(list)
    for sample in samples:
        if len(strata[sample.stratum]) < per_stratum:
            strata[sample.stratum].append(sample)
    turns = (sample for turn in zip_longest(*strata.values()) for sample in turn if sample is not None)
    return [sample for sample, _ in zip(turns, range(at_most), strict=False)]


def _view(sample: Sample, anchor: str, timeline: Sequence[Sample]) -> dict[str, Any]:
    verdict = sample.verdict
    finding = (_field_text(verdict, "status"), value_text("reason", verdict.get("reason")) or None)
    is_consume = verdict.get("kind") == Kind.CONSUME.value
    who = "Consumer group" if is_consume else "Producer group or client id"
    way = ("topic", "group") if is_consume else ("group", "topic")
    facts = ((label, value_text(name, verdict.get(name))) for name, label in (*_FACTS, ("group", who)))
    rows = tuple(_rows(sample))
    return {
        "finding": finding,
        "label": label_finding(*finding),
        "anchor": anchor,
        "msg_id": _field_text(verdict, "msg_id"),
        "kind": _field_text(verdict, "kind"),
        "time": utc(verdict.get("event_ms")),
        "place": tuple(visible(str(verdict[name]), limit=80) for name in way if verdict.get(name)) or (ABSENT,),
        "differs": tuple(_differences(sample, rows)),
        "facts": tuple((label, text) for label, text in facts if text is not None),
        "rows": rows,
        "evidence": tuple(_evidence(sample)),
        "topic": _field_text(verdict, "topic"),
        "group": _field_text(verdict, "group"),
        "lane": _lane(sample, timeline),
    }


def _field_text(fields: dict[str, Any], name: str) -> str:
    return value_text(name, fields.get(name)) or ABSENT


def _differences(sample: Sample, rows: Sequence[_FieldRow]) -> Iterator[str]:
    """Yield what distinguishes this sample within its finding: fields that differ, copies, else the keys."""
    marked = [row for row in rows if row.marked]
    for row in marked[:_MOST_DIFFERENCES]:
        left, right = (_cut(text.striptags()) for text in (row.native, row.otlp))
        yield f"{row.name}: {left} ≠ {right}"
    if len(marked) > _MOST_DIFFERENCES:
        yield f"{plural(len(marked) - _MOST_DIFFERENCES, 'more field')}"
    copies = [int(sample.verdict.get(f"{side}_count") or 0) for side in ("native", "otlp")]
    if max(copies) > 1:
        yield f"{plural(copies[0], 'native record')}, {plural(copies[1], 'span')}"
    keys = next((side["keys"] for side in (sample.native, sample.otlp) if side and side.get("keys")), None)
    if keys and not marked:
        yield f"keys {_cut(value_text('keys', keys) or '')}"


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST_VALUE else f"{text[: _LONGEST_VALUE - 1]}…"


def _rows(sample: Sample) -> Iterator[_FieldRow]:
    native, otlp = sample.native or {}, sample.otlp or {}
    verdicts = sample.verdict.get("field_verdicts") or {}
    for name in dict.fromkeys((*native, *otlp)):
        if name in _EVIDENCE_FIELDS:
            continue
        left, right = value_text(name, native.get(name)), value_text(name, otlp.get(name))
        if left is None and right is None:
            continue
        verdict = str(verdicts.get(name) or "")
        marked = bool(verdict) and group_field_verdict(verdict) != FINE and verdict != FieldVerdict.NOT_COMPARABLE
        cells = _mark_differences(left, right) if marked else (escape(left or ABSENT), escape(right or ABSENT))
        yield _FieldRow(visible(name), *cells, visible(verdict), same=left == right and not marked, marked=marked)


def _mark_differences(left: str | None, right: str | None) -> tuple[Markup, Markup]:
    if left is None or right is None:
        return _mark(left or ABSENT, 0, 0), _mark(right or ABSENT, 0, 0)
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


def _lane(sample: Sample, timeline: Sequence[Sample]) -> Markup:
    this = next((event for event in timeline if _identity(event) == _identity(sample)), sample)
    return swimlane(timeline if this is not sample else (*timeline, sample), this)


def _identity(event: Sample) -> list[Any]:
    own = [event.verdict.get(name) for name in ("kind", "group", "attempt_id", "retry_times")]
    return [*own, *(_interval(side) for side in (event.native, event.otlp))]


# -- links
def _id_of(sample: Sample, name: str) -> Any:
    values = (fields[name] for fields in (sample.verdict, sample.otlp, sample.native) if fields and fields.get(name))
    return next(values, None)


# -- the lanes of one message: each sender and consumer group, by the native trace and by OTLP -------------------------
_KINDS: Final = (Kind.PUBLISH, Kind.TRANSACTION_END, Kind.RECALL, Kind.CONSUME)
_PARTY: Final = {kind.value: title for kind, title in zip(_KINDS, TITLES, strict=True)}
_SIDES: Final = (("native", "native"), ("otlp", "OTLP"))
_BROKER: Final = "Broker"


def swimlane(events: Sequence[Sample], this: Sample | None = None) -> Markup:
    """Return the drawing with ``this`` event outlined, or an empty one where no side has a time.

    An event that one side did not record is a dotted box in its row; a failure has a red outline.
    """
    lanes = {name: rows for name, rows in _lanes(events, this).items() if any(rows.values())}
    bars = [bar for rows in lanes.values() for row in rows.values() for bar in row]
    if not bars:
        return Markup("")
    scale = scale_of(bars, words_at_left=True)
    packed = [
        Lane(name, tuple((word, row) for word, bars in rows.items() for row in pack_rows(bars, scale)))
        for name, rows in lanes.items()
    ]
    return draw_lanes(packed, scale, text="; ".join(map(_describe, events)))


def _lanes(events: Sequence[Sample], this: Sample | None) -> dict[str, dict[str, list[Bar]]]:
    """Return lane → row → bars: sends, then the answer of the broker, then deliveries."""
    lanes: dict[str, dict[str, list[Bar]]] = {}
    rank = {kind: at for at, kind in enumerate(_PARTY)}
    for event in sorted(events, key=lambda one: rank.get(str(one.verdict.get("kind")), len(rank))):
        rows = lanes.setdefault(_name(event), {word: [] for _, word in _SIDES})
        for side, word in _SIDES:
            rows[word] += _bars(event, side, outlined=event is this)
        if event.verdict.get("kind") == Kind.PUBLISH.value:
            lanes.setdefault(_BROKER, {"stored": []})["stored"] += _stored(event)
    return lanes


def _name(event: Sample) -> str:
    kind, group = str(event.verdict.get("kind")), event.verdict.get("group")
    return f"{_PARTY.get(kind, visible(kind, limit=40))} {visible(group or UNKNOWN_GROUP, limit=60)}"


def _describe(event: Sample) -> str:
    sides = [word for side, word in _SIDES if getattr(event, side)]
    return f"{_name(event)}: recorded by {' and '.join(sides) or 'neither side'}"


def _interval(fields: Mapping[str, Any] | None) -> tuple[int | None, int | None, bool | None] | None:
    """Return start, end and success of an event as one side recorded it, ``None`` without a record."""
    return (fields.get("start_ms"), fields.get("end_ms"), fields.get("success")) if fields else None


def _bars(event: Sample, side: str, *, outlined: bool) -> Iterator[Bar]:
    own, other = map(_interval, (event.native, event.otlp) if side == "native" else (event.otlp, event.native))
    times = [ms for ms in (own or other or ())[:2] if ms is not None]
    if own and times:
        start_ms, end_ms, success = own
        differs = any(None not in pair and pair[0] != pair[1] for pair in zip(own, other or own, strict=True))
        yield Bar(
            from_ms=times[0],
            until_ms=end_ms,
            colour=SIDE_COLOUR[side],
            words=f"{'≠ ' if differs else ''}{_bar_text(*own)}",
            title=_title(event, *own),
            instant=start_ms is None,
            outline=RED if success is False else "currentColor" if outlined else None,
        )
    elif times:
        yield Bar(
            from_ms=times[0],
            until_ms=times[-1],
            colour="currentColor",
            words="not recorded",
            title=f"not recorded by this side: {event.verdict.get('status')}",
            ghost=True,
        )


def _bar_text(start_ms: int | None, end_ms: int | None, success: bool | None) -> str:  # noqa: FBT001 - as recorded
    failed = ", failed" if success is False else ""
    if start_ms is None:
        return f"end only{failed}"
    return f"{'no end' if end_ms is None else duration(end_ms - start_ms)}{failed}"


def _title(event: Sample, start_ms: int | None, end_ms: int | None, success: bool | None) -> str:  # noqa: FBT001
    outcome = {True: ", success", False: ", failed", None: ""}[success]
    attempt_id, retry_times = (event.verdict.get(name) for name in ("attempt_id", "retry_times"))
    attempt = f"\nattempt {visible(attempt_id, limit=60)}" if attempt_id else ""
    retry = f"\nretry {retry_times}" if retry_times else ""
    return f"{utc(start_ms)} to {utc(end_ms)}{outcome}{attempt}{retry}"


def _stored(event: Sample) -> Iterator[Bar]:
    """Yield the moment at which the broker answered a successful send, if a side recorded it."""
    sides = [side for side in (event.native, event.otlp) if side]
    end_ms, host = (
        next((side[name] for side in sides if side.get(name) is not None), None) for name in ("end_ms", "store_host")
    )
    if end_ms is not None and host and not any(side.get("success") is False for side in sides):
        host = visible(host, limit=60)
        yield Bar(from_ms=end_ms, until_ms=end_ms, colour=SLATE, words=host, title=f"stored by {host}", instant=True)
