"""This module knows what an interrupt (Ctrl-C) must not do to Spark: orphan a JVM, break a call, fill the terminal.

pyspark's own handler calls the JVM from inside whatever call is waiting for it, which fails; py4j reports each call
that an interrupt ends with its whole stack, though the interrupt itself reaches the caller.
"""

from __future__ import annotations

import logging
import signal
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

    from pyspark.sql import SparkSession

__all__ = ["held_back", "job_group", "unlogged"]

_PY4J_LOGS_TO: Final = ("", "py4j.clientserver", "py4j.java_gateway")  # a filter does not see what children pass up


@contextmanager
def held_back() -> Iterator[None]:
    """Deliver an interrupt behind the block instead of within it, to the handler there was before the block.

    A JVM that is interrupted while it starts would stay behind as an orphan. A second interrupt is not held back.
    """
    before = signal.getsignal(signal.SIGINT)
    pressed: list[int] = []

    def hold(number: int, _frame: FrameType | None) -> None:
        if pressed:
            raise KeyboardInterrupt
        pressed.append(number)

    try:
        signal.signal(signal.SIGINT, hold)
    except ValueError:  # not the main thread, where no signal arrives
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before or signal.SIG_DFL)  # pyspark has set its own meanwhile
    if pressed:
        signal.raise_signal(signal.SIGINT)


@contextmanager
def job_group(spark: SparkSession, name: str, description: str) -> Iterator[None]:
    """Let the jobs of the block belong to a group of Spark's; an interrupt cancels those that still run."""
    context = spark.sparkContext
    context.setJobGroup(name, description)
    try:
        yield
    except KeyboardInterrupt:
        with suppress(Exception):  # the JVM may be gone too
            context.cancelJobGroup(name)
        raise
    finally:
        context.setLocalProperty("spark.jobGroup.id", None)  # type: ignore[arg-type]


@contextmanager
def unlogged() -> Iterator[None]:
    """Keep out of the log what only says that an interrupt interrupted something, and what came of that."""
    loggers = [logging.getLogger(name) for name in _PY4J_LOGS_TO]
    for logger in loggers:
        logger.addFilter(_is_news)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(_is_news)


def _is_news(record: logging.LogRecord) -> bool:
    error = record.exc_info[1] if record.exc_info else None
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__context__
    return error is None
