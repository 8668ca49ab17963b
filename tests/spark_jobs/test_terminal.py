"""The summary of a run in a terminal of eighty columns, and without colours."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from spark_jobs.terminal import print_summary
from tests.support.results import groups, result


def printed(made, *, width=80, **options):
    screen = Console(file=io.StringIO(), width=width, **options)
    print_summary(
        made, {"report.html": Path("out/report.html"), "result.json": Path("out/result.json")}, console=screen
    )
    return screen.file.getvalue()


def test_verdict_loss_groups_gates_and_the_report_are_told():
    """In the order in which somebody asks."""
    text = printed(result())
    places = [
        text.index(said)
        for said in (
            "FAIL: native",
            "The native trace lacks 3 of",
            "MATCHED_EXACT",
            "who consumed",
            "gates",
            "report.html:",
        )
    ]
    assert places == sorted(places)
    assert "result.json" not in text


@pytest.mark.parametrize("width", [60, 80, 120])
def test_long_topic_is_folded_on_a_terminal_and_never_cut(width):
    name = "a-topic-" + "with-a-long-name-" * 4
    text = _printed_with_group(name, width=width, terminal=True)
    table = text.split("who consumed what")[1].split("gates")[0]
    cells = [line.split("│")[1].strip() for line in table.splitlines() if line.startswith("│")]
    assert "".join(cells).replace(" ", "") == name
    assert max(map(len, table.splitlines())) <= width
    assert "[bold]" in "".join(line.split("│")[2].strip() for line in table.splitlines() if line.startswith("│"))


def test_long_topic_is_whole_and_unboxed_in_a_pipe():
    name = "a-topic-" + "with-a-long-name-" * 4
    text = _printed_with_group(name, width=10_000, terminal=False)
    assert any(line.startswith(f"{name}  ") for line in text.splitlines())
    assert "[bold]" in text
    assert not set(text) & set("│┃━─┏╭")


def _printed_with_group(topic, *, width, terminal):
    one, *_ = groups()
    hostile = replace(one, topic=topic, group="g\x1b[31m[bold]")
    text = printed(result(groups=(hostile,)), width=width, force_terminal=terminal, no_color=True)
    assert "\x1b[31m" not in text
    return text


def test_no_more_than_ten_groups_are_listed_and_the_rest_is_counted():
    """The report has them all."""
    one, *_ = groups()
    text = printed(result(groups=tuple(replace(one, group=f"group-{at:03}") for at in range(500))))
    assert text.count("group-") == 10
    assert "490 more in the report" in " ".join(text.replace("│", " ").split())


def test_colours_only_where_they_are_wanted():
    """A terminal gets them, NO_COLOR takes them away; the words are the same."""
    coloured = printed(result(), force_terminal=True, color_system="standard")
    plain = printed(result(), force_terminal=True, no_color=True)
    assert "\x1b[1;31mFAIL" in coloured
    assert "\x1b[31m" not in plain
    assert "\x1b[1;31m" not in plain
