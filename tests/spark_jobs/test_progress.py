"""What a terminal shows while Spark works, and that it shows nothing anywhere else."""

from __future__ import annotations

import io
import os
import threading

import pytest
from rich.console import Console

from spark_jobs.progress import Tasks, active_tasks, shown_progress


def terminal(**options):
    return Console(file=io.StringIO(), force_terminal=True, width=80, **options)


def followers():
    return [thread for thread in threading.enumerate() if thread.name == "mqtrace-progress"]


def test_stage_and_tasks_are_shown_and_the_thread_ends_with_the_run():
    """The name of the stage, how many tasks are done of how many, and no thread left behind."""
    screen, asked = terminal(), threading.Event()

    def tasks():
        asked.set()
        return Tasks(3, 1_200)

    with shown_progress(console=screen, tasks=tasks) as progress:
        progress("judging every key")
        assert asked.wait(10)
        assert len(followers()) == 1
    drawn = screen.file.getvalue()
    assert "judging every key" in drawn
    assert "3 of 1,200 tasks" in drawn
    assert followers() == []


def test_an_error_of_the_run_ends_the_thread_too():
    """What the run raises reaches the caller as it is."""
    with pytest.raises(KeyboardInterrupt), shown_progress(console=terminal(), tasks=lambda: None):
        raise KeyboardInterrupt
    assert followers() == []


def test_nothing_is_drawn_where_nobody_looks():
    """A pipe, a file, a CI log: not a byte, not a thread."""
    screen = Console(file=io.StringIO())
    with shown_progress(console=screen) as progress:
        progress("judging every key")
        assert followers() == []
    assert screen.file.getvalue() == ""


def test_colours_are_left_out_when_asked():
    """NO_COLOR: the bar is drawn without any."""
    screen = terminal(no_color=True)
    with shown_progress(console=screen, tasks=lambda: Tasks(1, 2)) as progress:
        progress("adding up")
    assert "\x1b[3" not in screen.file.getvalue().replace("\x1b[?", "")


@pytest.mark.spark
def test_spark_says_how_many_tasks_it_runs(spark, tmp_path):
    """Asked in the middle of a job of three tasks; idle again, it runs none."""
    seen = tmp_path / "seen"

    def until_seen(_rows):
        while not seen.exists():
            os.sched_yield()
        yield 1

    job = threading.Thread(target=spark.sparkContext.parallelize(range(3), 3).mapPartitions(until_seen).count)
    job.start()
    while (found := active_tasks()) is None or not found.known:
        assert job.is_alive()
    seen.touch()
    job.join()
    assert found == Tasks(0, 3)
    assert active_tasks() == Tasks(0, 0)
