"""The page of an answer: one file that needs no network and no script, with a swimlane of the timeline."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from markupsafe import Markup

from bridge.page.lanes import Bar, Lane, draw_lanes, pack_rows, scale_of
from bridge.page.markup import AMBER, GREEN, RED, SLATE, content_policy, element, open_templates, style_sheet
from bridge.page.wording import ABSENT, duration, plural, utc, visible
from bridge.query import details
from bridge.query.findings import describe_bad, findings, summarise
from bridge.query.search import rows_of
from bridge.query.timeline import Kind, Tone

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from bridge.query.search import Answer
    from bridge.query.timeline import Event


_COLOURS: Final = {Tone.GOOD: GREEN, Tone.BAD: RED, Tone.CARE: AMBER, Tone.OPEN: SLATE}


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


def legend(timeline: Sequence[Event]) -> Iterator[tuple[Markup, str]]:
    """Yield the marks of ``timeline``, each with the outcomes that it stands for."""
    for tone in Tone:
        if outcomes := dict.fromkeys(event.outcome for event in timeline if event.tone is tone):
            yield dot(tone), "; ".join(outcomes)
    bars = [bar for each in _lanes(timeline).values() for bar in each]
    if bars and scale_of(bars).gaps:
        yield element("span", class_="dot cut"), "a pause that is cut short"


def dot(tone: Tone) -> Markup:
    """Return the round mark of a tone, to stand before its word; drawn, so that it needs no style."""
    circle = element("circle", cx=5, cy=5, r=5, fill=_COLOURS[tone])
    return element("svg", circle, class_="dot", width=10, height=10, aria_hidden="true")


def _lanes(timeline: Sequence[Event]) -> dict[str, list[Bar]]:
    lanes: dict[str, list[Bar]] = {}
    rank = {kind: number for number, kind in enumerate(Kind)}
    for event in sorted(timeline, key=lambda one: rank[one.kind]):
        if event.from_ms is not None:
            title = visible(details.title_of(event.kind, event.group), limit=100)
            lanes.setdefault(title, []).append(_bar(event, event.from_ms))
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
        f"begin {'' if event.begin_known else details.ESTIMATED}{utc(event.from_ms)}",
        f"end {utc(event.until_ms)}" if event.took_ms is not None and event.until_ms is not None else None,
        f"took {duration(event.took_ms)}" if event.took_ms is not None else None,
        f"store host {visible(event.store_host)}" if event.store_host else None,
        f"client host {visible(event.client_host)}" if event.client_host else None,
    )
    return "\n".join(part for part in parts if part)


def page(answer: Answer) -> str:
    """Return the page as HTML. Texts of the trace are text in it, never markup."""
    style = style_sheet("bridge.query")
    template = open_templates("bridge.query", _FILTERS, _NAMES).get_template("page.html.j2")
    title = plural(len(answer.stories), "message")
    if len(answer.stories) == 1:
        title = visible(answer.stories[0].msg_id, limit=60)
    return template.render(answer=answer, title=title, style=style, policy=content_policy(style))


_FILTERS: Final = {"plural": plural, "utc": utc, "visible": visible}
_USED: Final = (describe_bad, dot, findings, summarise, legend, rows_of, swimlane)
_NAMES: Final = {"absent": ABSENT, "words": details} | {each.__name__: each for each in _USED}
"""What the template uses."""
