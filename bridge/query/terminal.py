"""This module knows how an answer looks in a terminal: what happened in order, then each part with its details."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from bridge.page.wording import ABSENT, counted, duration, offset, utc, utc_time, visible
from bridge.query.details import about, details_of, places_of
from bridge.query.findings import findings, in_one_sentence
from bridge.query.timeline import Tone, events, first_ms

if TYPE_CHECKING:
    from rich.console import RenderableType

    from bridge.query.search import Answer, Searched
    from bridge.query.story import MessageStory
    from bridge.query.timeline import Event

__all__ = ["print_answer", "searched_in_words"]

_WIDTH_WITHOUT_TERMINAL: Final = 100
_FROM_WIDTH: Final = {"group": 76, "at": 120, "host": 120}
"""From how many columns on the timeline has a column for it; a group without one stands below what it did."""
_MOST_BAD: Final = 10
_STYLES: Final = {Tone.GOOD: "green", Tone.BAD: "bold red", Tone.CARE: "yellow", Tone.OPEN: "yellow"}
_MARKS: Final = {Tone.GOOD: "✓", Tone.BAD: "✗", Tone.CARE: "!", Tone.OPEN: "?"}


def print_answer(answer: Answer, *, console: Console | None = None) -> None:
    """Print every story of ``answer``, and what was searched for it."""
    screen = console or _console()
    for story in answer.stories:
        screen.print(_story(story, width=screen.width))
    if answer.left_off:
        screen.print(Text(f"{counted(answer.left_off, 'older message')} left off: raise --limit", style="yellow"))
    screen.print(Text(searched_in_words(answer.searched), style="dim"))
    for remark in answer.searched.remarks:
        screen.print(Text(f"  {visible(remark, limit=400)}", style="dim"))


def searched_in_words(searched: Searched) -> str:
    """Return what was looked through, as a sentence."""
    arrived = ""
    if searched.first_arrival_ms is not None and searched.last_arrival_ms is not None:
        arrived = f", arrived {utc(searched.first_arrival_ms)} to {utc(searched.last_arrival_ms)}"
    return f"Searched {counted(searched.messages, 'trace message')} of {visible(searched.where)}{arrived}."


def _story(story: MessageStory, *, width: int) -> RenderableType:
    timeline = events(story)
    parts: list[RenderableType] = [
        Text.assemble(("Message ", "bold"), (visible(story.msg_id), "bold cyan")),
        Text(_about(story)),
        Text(in_one_sentence(story), style="bold"),
    ]
    for finding in findings(story):
        mark, style = ("!", "yellow") if finding.problem else ("·", "")
        parts.append(Text(f"{mark} {finding.text}", style=style))
    parts += [_timeline(timeline, width=width), Padding(_tree(story), (0, 0, 1, 0))]
    return Group(*parts)


def _about(story: MessageStory) -> str:
    return "   ".join(f"{name} {visible(said)}" for name, said in about(story))


def _timeline(timeline: tuple[Event, ...], *, width: int) -> Table:
    begin_ms = first_ms(timeline)
    title = f"Timeline from {utc(begin_ms)}" if begin_ms is not None else "Timeline"
    table = Table(title=title, title_justify="left", title_style="dim", box=SIMPLE_HEAD, pad_edge=False)
    columns = {
        "after": {"justify": "right", "no_wrap": True},
        "what": {"overflow": "fold"},
        "group": {"overflow": "fold", "ratio": 1},
        "took": {"justify": "right", "no_wrap": True},
        "outcome": {"overflow": "fold"},
        "at": {"no_wrap": True},
        "host": {"overflow": "fold"},
    }
    shown = [name for name in columns if width >= _FROM_WIDTH.get(name, 0)]
    for name in shown:
        table.add_column(name, **columns[name])  # type: ignore[arg-type]
    for event in timeline:
        cells = _cells(event, begin_ms)
        if "group" not in shown:
            cells["what"].append(f"\n{cells['group']}")
        table.add_row(*(cells[name] for name in shown))
    return table


def _cells(event: Event, begin_ms: int | None) -> dict[str, Text]:
    since = None if event.from_ms is None or begin_ms is None else event.from_ms - begin_ms
    host = event.store_host or event.client_host
    return {
        "after": Text(f"{'' if event.begin_known else '≈ '}{offset(since)}"),
        "what": Text(event.name),
        "group": Text(visible(event.group) if event.group else ABSENT),
        "took": Text(duration(event.took_ms)),
        "outcome": Text(f"{_MARKS[event.tone]} {event.outcome}", style=_STYLES[event.tone]),
        "at": Text(utc_time(event.from_ms)),
        "host": Text(visible(host) if host else ABSENT),
    }


def _tree(story: MessageStory) -> Tree:
    root = Tree(Text("Details", style="dim"), guide_style="dim")
    for title, items in details_of(story):
        branch = root.add(Text(visible(title), style="bold"))
        for event, facts in items:
            said = "   ".join(f"{name} {visible(value)}" for name, value in facts)
            branch.add(Text.assemble((event, ""), "   ", (said, "dim")))
    if story.bad:
        branch = root.add(Text("Bad records beside them", style="bold red"))
        for bad in story.bad[:_MOST_BAD]:
            where = places_of((bad.place,))
            branch.add(Text(f"{where}: {bad.field or 'record'}: {bad.reason}: {visible(bad.text, limit=80)}"))
        if len(story.bad) > _MOST_BAD:
            branch.add(Text(f"and {len(story.bad) - _MOST_BAD:,} more"))
    told = f"{counted(story.records, 'record')}"
    root.add(Text(f"{told}, {counted(story.repeats, 'repeat')} of them folded" if story.repeats else told, style="dim"))
    return root


def _console() -> Console:
    console = Console()
    told = console.is_terminal or "COLUMNS" in os.environ
    return console if told else Console(width=_WIDTH_WITHOUT_TERMINAL)
