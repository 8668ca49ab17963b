"""The page of an answer: one file that needs no network and no script, with a swimlane of the timeline."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from bridge.page.lanes import Bar, Lane, draw_lanes, pack_rows, scale_of
from bridge.page.markup import AMBER, GREEN, RED, SLATE, Markup, content_policy, element, joined, style_sheet, void
from bridge.page.wording import ABSENT, duration, offset, plural, utc, visible
from bridge.query.details import UNKNOWN_GROUP, about, details_of, link_of, places_of, trace_id_hex
from bridge.query.findings import findings, in_one_sentence
from bridge.query.search import rows_of
from bridge.query.terminal import describe_attempts, describe_search
from bridge.query.timeline import Kind, Tone, events, first_ms

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from bridge.query.details import Detail
    from bridge.query.evidence import BadSighting
    from bridge.query.search import Answer
    from bridge.query.timeline import Event, Finding, MessageTimeline


_COLOURS: Final = {Tone.GOOD: GREEN, Tone.BAD: RED, Tone.CARE: AMBER, Tone.OPEN: SLATE}
_WORDS: Final = {
    Tone.GOOD: "success, commit",
    Tone.BAD: "failure, rollback",
    Tone.CARE: "success after the time-out",
    Tone.OPEN: "undecided, or no end in the trace",
}
_NAMES: Final = {Kind.SEND: "sent by", Kind.TRANSACTION_END: "transaction of", Kind.RECALL: "recalled by"}


def swimlane(timeline: Sequence[Event]) -> Markup:
    """Return the picture of ``timeline``; nothing where no event has a time."""
    lanes = _lanes(timeline)
    bars = [bar for each in lanes.values() for bar in each]
    if not bars:
        return Markup("")
    scale = scale_of(bars)
    first_ms, last_ms = scale.first_ms, max(bar.until_ms or bar.from_ms for bar in bars)
    caption = f"{plural(len(bars), 'event')} over {duration(last_ms - first_ms)}; the table below has all of them"
    rows = {name: tuple(("", row) for row in pack_rows(each, scale)) for name, each in lanes.items()}
    return draw_lanes([Lane(name, row) for name, row in rows.items()], scale, text=caption)


def legend(timeline: Sequence[Event]) -> Markup:
    """Return what the colours of ``timeline`` mean."""
    tones = [tone for tone in Tone if any(event.tone is tone for event in timeline)]
    items = [element("li", dot(tone), f" {_WORDS[tone]}") for tone in tones]
    bars = [bar for each in _lanes(timeline).values() for bar in each]
    if bars and scale_of(bars).gaps:
        items.append(element("li", element("span", class_="dot cut"), " a pause that is cut short"))
    return element("ul", items, class_="legend")


def dot(tone: Tone) -> Markup:
    """Return the round mark of a tone, to stand before its word; drawn, so that it needs no style."""
    circle = element("circle", cx=5, cy=5, r=5, fill=_COLOURS[tone])
    return element("svg", circle, class_="dot", width=10, height=10, aria_hidden="true")


def _lanes(timeline: Sequence[Event]) -> dict[str, list[Bar]]:
    lanes: dict[str, list[Bar]] = {}
    rank = {kind: number for number, kind in enumerate(Kind)}
    for event in sorted(timeline, key=lambda one: rank[one.kind]):
        if event.from_ms is not None:
            group = visible(event.group or UNKNOWN_GROUP, limit=90)
            lanes.setdefault(f"{_NAMES.get(event.kind, 'consumed by')} {group}", []).append(_bar(event, event.from_ms))
    return lanes


def _bar(event: Event, from_ms: int) -> Bar:
    words = event.outcome
    if event.took_ms is not None:
        words = f"{duration(event.took_ms)}{'' if event.tone is Tone.GOOD else f', {event.outcome}'}"
    return Bar(
        from_ms=from_ms,
        until_ms=event.until_ms,
        colour=_COLOURS[event.tone],
        words=words,
        title=_event_title(event),
        instant=event.took_ms is None and event.until_ms is not None,
        faint=not event.begin_known,
    )


def _event_title(event: Event) -> str:
    parts = (
        f"{event.name}: {event.outcome}",
        f"{'begin' if event.begin_known else 'begin (estimated)'} {utc(event.from_ms)}",
        f"end {utc(event.until_ms)}" if event.took_ms is not None and event.until_ms is not None else None,
        f"took {duration(event.took_ms)}" if event.took_ms is not None else None,
        f"store host {visible(event.store_host)}" if event.store_host else None,
        f"client host {visible(event.client_host)}" if event.client_host else None,
    )
    return "\n".join(part for part in parts if part)


def page(answer: Answer) -> str:
    """Return the page as HTML. Texts of the trace are text in it, never markup."""
    title, style = _title(answer), style_sheet("bridge.query")
    head = element(
        "head",
        void("meta", charset="utf-8"),
        void("meta", http_equiv="Content-Security-Policy", content=content_policy(style)),
        void("meta", name="viewport", content="width=device-width, initial-scale=1"),
        void("meta", name="color-scheme", content="light dark"),
        element("title", f"{title} · message trace"),
        void("link", rel="icon", href="data:,"),
        element("style", Markup(style)),
    )
    remarks = [element("li", visible(remark, limit=400)) for remark in answer.searched.remarks]
    searched = element("p", describe_search(answer.searched)), element("ul", remarks) if remarks else None
    body = element(
        "body",
        element("a", "Skip to the message", class_="skip", href="#main"),
        element("header", element("p", "mqtrace query · message trace", class_="kicker"), _heading(answer)),
        element("main", [_message(answer, number, story) for number, story in enumerate(answer.stories)], id="main"),
        element("footer", *searched),
    )
    return f"<!doctype html>\n{element('html', head, body, lang='en')}\n"


def _title(answer: Answer) -> str:
    if len(answer.stories) == 1:
        return visible(answer.stories[0].msg_id, limit=60)
    return plural(len(answer.stories), "message") if answer.stories else "Nothing found"


def _heading(answer: Answer) -> Markup:
    """Return what the page begins with: the one message's id, or a list of all that were found."""
    if len(answer.stories) == 1:
        return Markup("")
    rows = [
        element(
            "tr",
            element("td", utc(row.time_ms), class_="n"),
            element("th", element("a", element("bdi", visible(row.msg_id)), href=f"#m{number}"), scope="row"),
            element("td", element("bdi", visible(row.topic or ABSENT))),
            element("td", element("bdi", visible(row.group or ABSENT)), class_="group"),
            element("td", f"{row.role} {row.outcome.value}"),
            element("td", describe_attempts(row), class_="n"),
        )
        for number, story in reversed(list(enumerate(answer.stories)))
        for row in rows_of(story, answer.query)
    ]
    heads = ("Time", "Message", "Topic", "Group", "Outcome", "Attempts")
    left = f"{plural(answer.left_off, 'older message')} left off." if answer.left_off else None
    return joined(
        (
            element("h1", _title(answer)),
            _table("Messages, newest first", heads, rows, numeric=(0, 5)) if rows else None,
            element("p", left) if left else None,
        )
    )


def _message(answer: Answer, number: int, story: MessageTimeline) -> Markup:
    timeline, link = events(story), link_of(answer, story)
    trace_id = element("code", trace_id_hex(story.msg_id))
    known = (element("span", f"{name} ", element("b", element("bdi", visible(text)))) for name, text in about(story))
    folded = f"; {plural(story.repeats, 'repeat')} folded" if story.repeats else ""
    parts = [
        element("p", joined(known), class_="about"),
        element(
            "p", "trace id of mqtrace forward ", element("a", trace_id, href=link) if link else trace_id, class_="about"
        ),
        element("p", in_one_sentence(story), class_="summary"),
        _findings(findings(story)),
        element("h3", f"Timeline from {utc(first_ms(timeline))}"),
        element("div", swimlane(timeline), class_="scroll", role="region", aria_label="Timeline", tabindex=0),
        legend(timeline),
        _timeline(timeline),
        *(_part(title, items) for title, items in details_of(story)),
        _bad(story.bad) if story.bad else None,
        element("p", f"From {plural(story.records, 'record')}{folded}.", class_="quiet"),
    ]
    heading = element(
        "h1" if len(answer.stories) == 1 else "h2",
        element("bdi", visible(story.msg_id)),
        id=f"m{number}-h",
        class_="id",
    )
    return element("section", heading, parts, id=f"m{number}", aria_labelledby=f"m{number}-h")


def _findings(findings: Iterable[Finding]) -> Markup | None:
    items = [
        element(
            "li",
            element("b", "Look here: ") if one.problem else None,
            one.text,
            class_="problem" if one.problem else None,
        )
        for one in findings
    ]
    return element("ul", items, class_="findings") if items else None


def _timeline(timeline: Sequence[Event]) -> Markup:
    begin_ms = first_ms(timeline)
    rows = []
    for event in timeline:
        since = None if event.from_ms is None or begin_ms is None else event.from_ms - begin_ms
        hosts = " → ".join(visible(host) for host in (event.client_host, event.store_host) if host)
        rows.append(
            element(
                "tr",
                element("td", f"{'' if event.begin_known else '≈ '}{offset(since)}", class_="n"),
                element("td", utc(event.from_ms), class_="n"),
                element("th", event.name, scope="row"),
                element("td", element("bdi", visible(event.group) if event.group else ABSENT), class_="group"),
                element("td", duration(event.took_ms), class_="n"),
                element("td", dot(event.tone), f" {event.outcome}"),
                element("td", element("bdi", hosts or ABSENT)),
            )
        )
    return _table(
        "Every event in order", ("After", "At", "What", "Group", "Took", "Outcome", "Hosts"), rows, numeric=(0, 1, 4)
    )


def _part(title: str, details: Sequence[Detail]) -> Markup:
    """Return one part's facts, folded: the table above has every attempt as a row."""
    cards = []
    for event, facts in details:
        pairs = [
            element("div", element("dt", name), element("dd", element("bdi", visible(value)))) for name, value in facts
        ]
        cards.append(joined((element("p", event, class_="event"), element("dl", pairs))))
    summary = element("summary", f"{visible(title)}: {plural(len(details), 'event')}")
    return element("details", summary, cards, class_="card")


def _bad(bad: Sequence[BadSighting]) -> Markup:
    rows = [
        element(
            "tr",
            element("th", places_of((one.place,)), scope="row"),
            element("td", one.field_name or ABSENT),
            element("td", one.reason),
            element("td", element("bdi", visible(one.text)), class_="v"),
        )
        for one in bad
    ]
    title = "Bad records beside this message's"
    return joined((element("h3", title), _table(title, ("Where", "Field", "Reason", "Text"), rows)))


def _table(caption: str, heads: Sequence[str], rows: Sequence[Markup], *, numeric: Sequence[int] = ()) -> Markup:
    cells = [
        element("th", head, scope="col", class_="n" if number in numeric else None) for number, head in enumerate(heads)
    ]
    table = element(
        "table", element("caption", caption), element("thead", element("tr", cells)), element("tbody", list(rows))
    )
    return element("div", table, class_="scroll", role="region", aria_label=caption, tabindex=0)
