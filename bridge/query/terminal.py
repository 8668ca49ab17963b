"""An answer on a terminal: one message with its timeline and details, several as a list."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from bridge.page.wording import ABSENT, duration, offset, plural, utc, utc_time, visible
from bridge.query.details import about, details_of, link_of, places_of, trace_of
from bridge.query.findings import findings, in_one_sentence
from bridge.query.search import ALWAYS, CONSUMER, PRODUCER, rows_of
from bridge.query.timeline import OUTCOME_TONES, Tone, events, first_ms
from otel_mqtrace._terminal import open_console, print_table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console

    from bridge.query.search import Answer, ArrivalRange, Row, Searched
    from bridge.query.timeline import Event, MessageTimeline


_FROM_WIDTH: Final = {"group": 76, "at": 120, "host": 120}
"""From how many columns on the timeline has a column for it; a group without one stands below what it did."""
_MOST_BAD: Final = 10
_STYLES: Final = {Tone.GOOD: "green", Tone.BAD: "bold red", Tone.CARE: "yellow", Tone.OPEN: "yellow"}
_LIST_HEADS: Final = ("time (UTC)", "message id", "topic", "group", "outcome", "attempts")
_LONGEST_NAME: Final = 1_000
_VERBS: Final = {PRODUCER: "send", CONSUMER: "consume"}
_MARKS: Final = {Tone.GOOD: "✓", Tone.BAD: "✗", Tone.CARE: "!", Tone.OPEN: "?"}


def print_answer(answer: Answer, *, console: Console | None = None) -> None:
    """Print the story of one message, or the list of several, and what was searched for it."""
    screen = console or open_console()
    if len(answer.stories) == 1:
        _print_story(screen, answer, answer.stories[0])
    elif answer.stories:
        print_table(_list(answer), screen)
    if answer.pages > 1:
        older = f"; {plural(answer.left_off, 'older message')}: --page {answer.page + 1}" if answer.left_off else ""
        screen.print(Text(f"Page {answer.page:,} of {answer.pages:,}, {plural(answer.total, 'message')}{older}"))
    screen.print(Text(describe_search(answer.searched), style="dim"))
    for remark in answer.searched.remarks:
        screen.print(Text(f"  {visible(remark, limit=400)}", style="dim"))


def nothing_found(answer: Answer, arrivals: ArrivalRange = ALWAYS) -> str:
    """Return the one line of an answer without a message: what was searched, and what could not be."""
    searched, (first, *more) = answer.searched, answer.searched.remarks or ("",)
    if answer.total:
        return f"page {answer.page} is empty: {plural(answer.total, 'message')} on {plural(answer.pages, 'page')}"
    others = f", and {plural(len(more), 'more remark')}" if more else ""
    remark = f" {visible(first, limit=400)}{others};" if first else ""
    key = " (--key is one of the message's KEYS, not Kafka's record key)" if answer.query.key is not None else ""
    ends = {"--begin": arrivals.begin_ms, "--end": arrivals.end_ms}
    given = " and ".join(name for name, end_ms in ends.items() if end_ms is not None)
    about = f", and {given} against the arrival of trace messages" if given else ""
    return (
        f"nothing found; s{describe_search(searched)[1:].removesuffix('.')};{remark} "
        f"check the search options{key}{about}"
    )


def describe_search(searched: Searched) -> str:
    """Return what was looked through, as a sentence."""
    arrived = ""
    if searched.first_arrival_ms is not None and searched.last_arrival_ms is not None:
        arrived = f", arrived {utc(searched.first_arrival_ms)} to {utc(searched.last_arrival_ms)}"
    return f"Searched {plural(searched.messages, 'trace message')} of {visible(searched.where)}{arrived}."


def _list(answer: Answer) -> Table:
    """Return a row for each message and group, those of the newest message first."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for name in _LIST_HEADS:
        table.add_column(name, overflow="fold")
    for row in (row for story in reversed(answer.stories) for row in rows_of(story, answer.query)):
        names = (row.msg_id, row.topic or ABSENT, row.group or ABSENT)
        table.add_row(
            Text(utc(row.time_ms).removesuffix(" UTC")),
            *(Text(visible(name, limit=_LONGEST_NAME)) for name in names),
            Text(f"{_VERBS[row.role]} {row.outcome.value}", style=_STYLES[OUTCOME_TONES[row.outcome]]),
            Text(describe_attempts(row)),
        )
    return table


def describe_attempts(row: Row) -> str:
    """Return ``3 (2 failed)``; the failures only where the outcome does not show them."""
    return f"{row.attempts} ({row.failed} failed)" if row.failed and row.attempts > 1 else str(row.attempts)


def _print_story(screen: Console, answer: Answer, story: MessageTimeline) -> None:
    """Print one message; in a pipe without frames, with every column, and with no name broken."""
    is_plain = not screen.is_terminal
    screen.print(*_head(answer, story), sep="\n", soft_wrap=is_plain)
    width = max(_FROM_WIDTH.values()) if is_plain else screen.width
    print_table(_timeline(events(story), width=width), screen)
    tree = _tree(story)
    screen.print(*map(Text, _plain_tree(tree)) if is_plain else (tree,), "", sep="\n", soft_wrap=is_plain)


def _head(answer: Answer, story: MessageTimeline) -> list[Text]:
    """Return what the message is, how it went, and what is noteworthy."""
    head = [
        Text.assemble(("Message ", "bold"), (visible(story.msg_id), "bold cyan")),
        Text("   ".join(f"{name} {visible(value)}" for name, value in about(story))),
        *([Text(f"trace id of mqtrace forward {trace_id}")] if (trace_id := trace_of(story)) else []),
        *([Text(link)] if (link := link_of(answer, story)) else []),
        Text(in_one_sentence(story), style="bold"),
    ]
    for finding in findings(story):
        mark, style = ("!", "yellow") if finding.problem else ("·", "")
        head.append(Text(f"{mark} {finding.text}", style=style))
    return head


def _plain_tree(tree: Tree, depth: int = 0) -> Iterator[str]:
    yield "  " * depth + (tree.label.plain if isinstance(tree.label, Text) else str(tree.label))
    for child in tree.children:
        yield from _plain_tree(child, depth + 1)


def _timeline(timeline: tuple[Event, ...], *, width: int) -> Table:
    begin_ms = first_ms(timeline)
    title = f"Timeline from {utc(begin_ms)}" if begin_ms is not None else "Timeline"
    table = Table(title=title, title_justify="left", title_style="dim", box=SIMPLE_HEAD, pad_edge=False)
    columns: dict[str, dict[str, Any]] = {
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
        table.add_column(name, **columns[name])
    for event in timeline:
        cells = _cells(event, begin_ms)
        if "group" not in shown:
            cells["what"].append(f"\n{cells['group']}")
        table.add_row(*(cells[name] for name in shown))
    return table


def _cells(event: Event, begin_ms: int | None) -> dict[str, Text]:
    host = event.store_host or event.client_host
    return {
        "after": Text(f"{'' if event.begin_known else '≈ '}{offset(event.since(begin_ms))}"),
        "what": Text(event.name),
        "group": Text(visible(event.group) if event.group else ABSENT),
        "took": Text(duration(event.took_ms)),
        "outcome": Text(f"{_MARKS[event.tone]} {event.outcome}", style=_STYLES[event.tone]),
        "at": Text(utc_time(event.from_ms)),
        "host": Text(visible(host) if host else ABSENT),
    }


def _tree(story: MessageTimeline) -> Tree:
    root = Tree(Text("Details", style="dim"), guide_style="dim")
    for title, items in details_of(story):
        branch = root.add(Text(visible(title), style="bold"))
        for event, facts in items:
            facts_text = "   ".join(f"{name} {visible(value)}" for name, value in facts)
            branch.add(Text.assemble((event, ""), "   ", (facts_text, "dim")))
    if story.bad:
        branch = root.add(Text("Bad records beside them", style="bold red"))
        for bad in story.bad[:_MOST_BAD]:
            where = places_of((bad.place,))
            branch.add(Text(f"{where}: {bad.field_name or 'record'}: {bad.reason}: {visible(bad.text, limit=80)}"))
        if len(story.bad) > _MOST_BAD:
            branch.add(Text(f"and {len(story.bad) - _MOST_BAD:,} more"))
    folded = f", {plural(story.repeats, 'repeat')} of them folded" if story.repeats else ""
    root.add(Text(f"{plural(story.records, 'record')}{folded}", style="dim"))
    return root
