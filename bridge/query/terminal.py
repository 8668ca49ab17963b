"""An answer on a terminal: one message with its timeline and details, several as a list."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from bridge.page.wording import ABSENT, plural, visible
from bridge.query import details
from bridge.query.findings import describe_bad, findings, summarise
from bridge.query.search import ALWAYS, rows_of
from bridge.query.timeline import OUTCOME_TONES, Tone
from otel_mqtrace._terminal import open_console, print_table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console

    from bridge.query.search import Answer, ArrivalRange
    from bridge.query.timeline import MessageTimeline


_FROM_WIDTH: Final = {"group": 76, "at": 120, "hosts": 120}
"""From how many columns on the timeline has a column for it; a group without one stands below what it did."""
_MOST_BAD: Final = 10
_STYLES: Final = {Tone.GOOD: "green", Tone.BAD: "bold red", Tone.CARE: "yellow", Tone.OPEN: "yellow"}
_LONGEST_NAME: Final = 1_000
_MARKS: Final = {Tone.GOOD: "✓", Tone.BAD: "✗", Tone.CARE: "!", Tone.OPEN: "?"}


def print_answer(answer: Answer, *, console: Console | None = None) -> None:
    """Print the story of one message, or the list of several, and what was searched for it."""
    screen = console or open_console()
    if len(answer.stories) == 1:
        _print_story(screen, answer, answer.stories[0])
    elif answer.stories:
        print_table(_list(answer), screen)
    if answer.pages > 1:
        screen.print(Text(details.describe_page(answer)))
    screen.print(*(Text(line, style="dim") for line in details.describe_search(answer.searched)), sep="\n  ")


def nothing_found(answer: Answer, arrivals: ArrivalRange = ALWAYS) -> str:
    """Return the one line of an answer without a message: what was searched, and what could not be."""
    sentence, *remarks = details.describe_search(answer.searched)
    if answer.total:
        return f"page {answer.page} is empty: {plural(answer.total, 'message')} on {plural(answer.pages, 'page')}"
    others = f", and {plural(len(remarks) - 1, 'more remark')}" if len(remarks) > 1 else ""
    remark = f" {remarks[0]}{others};" if remarks else ""
    key = " (--key is one of the message's KEYS, not Kafka's record key)" if answer.query.key is not None else ""
    ends = {"--begin": arrivals.begin_ms, "--end": arrivals.end_ms}
    given = " and ".join(name for name, end_ms in ends.items() if end_ms is not None)
    about = f", and {given} against the arrival of trace messages" if given else ""
    return f"nothing found; s{sentence[1:].removesuffix('.')};{remark} check the search options{key}{about}"


def _list(answer: Answer) -> Table:
    """Return a row for each message and group, those of the newest message first."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for name in details.LIST_HEADS:
        table.add_column(name, overflow="fold")
    for row in (row for story in reversed(answer.stories) for row in rows_of(story, answer.query)):
        cells = [Text(visible(text or ABSENT, limit=_LONGEST_NAME)) for text in details.list_cells(row)]
        cells[details.LIST_HEADS.index("outcome")].style = _STYLES[OUTCOME_TONES[row.outcome]]
        table.add_row(*cells)
    return table


def _print_story(screen: Console, answer: Answer, story: MessageTimeline) -> None:
    """Print one message; in a pipe without frames, with every column, and with no name broken."""
    is_plain = not screen.is_terminal
    screen.print(*_head(answer, story), sep="\n", soft_wrap=is_plain)
    width = max(_FROM_WIDTH.values()) if is_plain else screen.width
    print_table(_timeline(story, width=width), screen)
    tree = _tree(story)
    screen.print(*map(Text, _plain_tree(tree)) if is_plain else (tree,), "", sep="\n", soft_wrap=is_plain)


def _head(answer: Answer, story: MessageTimeline) -> list[Text]:
    """Return what the message is, how it went, and what is noteworthy."""
    head = [
        Text.assemble(("Message ", "bold"), (visible(story.msg_id), "bold cyan")),
        Text("   ".join(f"{name} {visible(value)}" for name, value in details.describe_message(story))),
        *([Text(f"{details.TRACE_ID} {trace_id}")] if (trace_id := details.trace_of(story)) else []),
        *([Text(link)] if (link := details.link_of(answer, story)) else []),
        Text(summarise(story), style="bold"),
    ]
    for finding in findings(story):
        mark, style = ("!", "yellow") if finding.problem else ("·", "")
        head.append(Text(f"{mark} {finding.text}", style=style))
    return head


def _plain_tree(tree: Tree, depth: int = 0) -> Iterator[str]:
    yield "  " * depth + (tree.label.plain if isinstance(tree.label, Text) else str(tree.label))
    for child in tree.children:
        yield from _plain_tree(child, depth + 1)


def _timeline(story: MessageTimeline, *, width: int) -> Table:
    title, rows = details.timeline_of(story)
    table = Table(title=title, title_justify="left", title_style="dim", box=SIMPLE_HEAD, pad_edge=False)
    columns: dict[str, dict[str, Any]] = {
        "after": {"justify": "right", "no_wrap": True},
        "what": {"overflow": "fold"},
        "group": {"overflow": "fold", "ratio": 1},
        "took": {"justify": "right", "no_wrap": True},
        "outcome": {"overflow": "fold"},
        "at": {"no_wrap": True},
        "hosts": {"overflow": "fold"},
    }
    shown = [name for name in columns if width >= _FROM_WIDTH.get(name, 0)]
    for name in shown:
        table.add_column(name, **columns[name])
    for event, texts in rows:
        cells = {name: Text(text) for name, text in texts.items()}
        cells["outcome"] = Text(f"{_MARKS[event.tone]} {event.outcome}", style=_STYLES[event.tone])
        if "group" not in shown:
            cells["what"].append(f"\n{cells['group']}")
        table.add_row(*(cells[name] for name in shown))
    return table


def _tree(story: MessageTimeline) -> Tree:
    root = Tree(Text("Details", style="dim"), guide_style="dim")
    for title, items in details.details_of(story):
        branch = root.add(Text(visible(title), style="bold"))
        for event, facts in items:
            facts_text = "   ".join(f"{name} {visible(value)}" for name, value in facts)
            branch.add(Text.assemble((event, ""), "   ", (facts_text, "dim")))
    if story.bad:
        branch = root.add(Text(describe_bad(story), style="bold red"))
        for bad in story.bad[:_MOST_BAD]:
            where = details.places_of((bad.place,))
            branch.add(Text(f"{where}: {bad.field_name or 'record'}: {bad.reason}: {visible(bad.text, limit=80)}"))
        if len(story.bad) > _MOST_BAD:
            branch.add(Text(f"and {len(story.bad) - _MOST_BAD:,} more: --html and --json have them"))
    root.add(Text(details.describe_records(story), style="dim"))
    return root
