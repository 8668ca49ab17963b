"""The summary of a run and its progress, on terminals of any width, in pipes, and without colours."""

import io
import os
import re
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from spark_jobs.terminal import Tasks, count_active_tasks, print_summary, show_progress
from tests.support.results import groups, result


def printed(made, *, width=80, **options):
    screen = Console(file=io.StringIO(), width=width, **options)
    print_summary(made, {name: Path("out\x07", name) for name in ("report.html", "result.json")}, console=screen)
    return screen.file.getvalue()


def test_summary_shows_verdict_loss_groups_gates_and_report_in_order():
    text = printed(result())
    parts = ("FAIL: native", "The native trace lacks 3 of", "MATCHED_EXACT", "who consumed", "gates", "out⟨U+0007⟩/")
    places = [text.index(part) for part in parts]
    assert places == sorted(places)
    lacked = "The native trace lacks 3 of 5,967 events without explanation and 5 for a named reason; with 95 %"
    assert f"{lacked} confidence the unexplained rate is below 0.15 %." in " ".join(text.split())
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


@pytest.mark.parametrize(
    ("counts", "remark"),
    [
        ({"truncated_tails": 1}, "cut off at the end: 1 otlp input"),
        ({"carried": 8}, "included: 8 events that earlier runs left open; name another --history to start over"),
    ],
)
def test_what_was_cut_off_or_left_open_is_named_before_the_losses(counts, remark):
    made = result()
    text = printed(replace(made, inputs=replace(made.inputs, otlp=replace(made.inputs.otlp, **counts))))
    assert text.index(remark) < text.index("The native trace lacks")


@pytest.mark.parametrize(("width", "terminal"), [(10_000, False), (59, True), (20, True)])
def test_long_topic_is_whole_and_unboxed_in_a_pipe_and_on_a_narrow_terminal(width, terminal):
    name = "a-topic-" + "with-a-long-name-" * 4
    text = _printed_with_group(name, width=width, terminal=terminal)
    assert any(line.startswith(f"{name}  ") for line in text.splitlines())
    assert "[bold]" in text
    assert not set(text) & set("│┃━─┏╭")


def _printed_with_group(topic, *, width, terminal):
    one, *_ = groups()
    hostile = replace(one, topic=topic, group="g\x1b[31m[bold]")
    text = printed(result(groups=(hostile,)), width=width, force_terminal=terminal, no_color=True)
    assert "\x1b[31m" not in text
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def test_summary_has_colours_on_a_terminal_and_none_with_no_color():
    assert "\x1b[1;31mFAIL" in printed(result(), force_terminal=True, color_system="standard")
    assert not re.search(r"\x1b\[(1;)?31m", printed(result(), force_terminal=True, no_color=True))


def terminal(**options):
    return Console(file=io.StringIO(), force_terminal=True, width=80, **options)


def followers():
    return [thread for thread in threading.enumerate() if thread.name == "mqtrace-progress"]


def test_progress_shows_stage_and_tasks_and_its_thread_ends_with_the_run():
    screen, asked = terminal(), threading.Event()

    def tasks():
        asked.set()
        return Tasks(3, 1_200)

    with show_progress(console=screen, tasks=tasks) as progress:
        progress("judging every key")
        assert asked.wait(10)
        assert len(followers()) == 1
    drawn = screen.file.getvalue()
    assert "judging every key" in drawn
    assert "3 of 1,200 tasks" in drawn
    assert followers() == []


def test_error_of_the_run_ends_the_progress_thread():
    with pytest.raises(KeyboardInterrupt), show_progress(console=terminal(), tasks=lambda: None):
        raise KeyboardInterrupt
    assert followers() == []


def test_progress_in_a_pipe_writes_nothing_and_starts_no_thread():
    screen = Console(file=io.StringIO())
    with show_progress(console=screen) as progress:
        progress("judging every key")
        assert followers() == []
    assert screen.file.getvalue() == ""


@pytest.mark.spark
def test_active_tasks_counts_the_tasks_of_a_running_job(spark, tmp_path):
    seen, deadline_s = tmp_path / "seen", time.monotonic() + 120

    def until_seen(_rows):
        while not seen.exists() and time.monotonic() < deadline_s:
            os.sched_yield()
        yield 1

    job = threading.Thread(target=spark.sparkContext.parallelize(range(3), 3).mapPartitions(until_seen).count)
    job.start()
    while count_active_tasks() != Tasks(0, 3):
        assert job.is_alive()
    seen.touch()
    job.join()
    while count_active_tasks() != Tasks(0, 0):  # told some time after the end of a job
        assert time.monotonic() < deadline_s
