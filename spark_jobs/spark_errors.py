"""Failures and interrupts of Spark: one line for a failed job, no orphaned JVM and no stack traces on Ctrl-C.

pyspark's own handler calls the JVM from inside the call that waits for it, which fails. py4j logs the whole stack of
every call that an interrupt ends, although the interrupt itself reaches the caller.
"""

from __future__ import annotations

import logging
import re
import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from otel_mqtrace._errors import PeerError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

_FAILED_AT_THE_SERVER: Final = "SparkConnectGrpcException"  # by name: its module needs the connect extra
_OWN_MESSAGE: Final = re.compile(r"^(?:otel_mqtrace\._errors\.\w+: |(?=\w+Error: \[Errno ))(.+)$", re.MULTILINE)
"""The last line of a traceback that ends in an error of ours or of the operating system."""

_PY4J_LOGGERS: Final = ("", "py4j.clientserver", "py4j.java_gateway")  # a filter does not see what children pass up


@contextmanager
def peer_errors() -> Iterator[None]:
    """Raise ``PeerError`` for a failed job: a full disk, a missing file, too little memory.

    The message is that of the root cause, which Spark wraps several times. An exception of pyspark itself (a wrong
    plan, a wrong number) is a defect of ours and passes.
    """
    from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]  # noqa: PLC0415  (optional extra)
    from pyspark.errors import PySparkException, PythonException  # noqa: PLC0415

    try:
        yield
    except Py4JJavaError as error:
        raise PeerError(f"Spark failed: {_root_cause(error.java_exception)}; fix that and run it again") from error
    except PythonException as error:
        messages = _OWN_MESSAGE.findall(str(error))
        if not messages:
            raise
        raise PeerError(f"Spark failed: {messages[-1]}; fix that and run it again") from error
    except PySparkException as error:
        if type(error).__name__ != _FAILED_AT_THE_SERVER:
            raise
        raise PeerError(f"Spark failed: {_first_line(error)}; fix that and run it again") from error


def _first_line(error: object) -> str:
    return str(error).strip().partition("\n")[0]


def _root_cause(thrown: Any) -> str:
    while (cause := thrown.getCause()) is not None:
        thrown = cause
    return _first_line(thrown.toString())


@contextmanager
def delay_interrupt() -> Iterator[None]:
    """Deliver an interrupt after the block, to the handler that was set before it.

    A JVM that is interrupted while it starts would stay behind as an orphan. A second interrupt is not delayed.
    """
    before = signal.getsignal(signal.SIGINT)
    pressed: list[int] = []

    def hold(number: int, _frame: FrameType | None) -> None:
        if pressed:
            raise KeyboardInterrupt
        pressed.append(number)

    try:
        signal.signal(signal.SIGINT, hold)
    except ValueError:  # not the main thread, which alone gets signals
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before or signal.SIG_DFL)  # pyspark has set its own meanwhile
    if pressed:
        signal.raise_signal(signal.SIGINT)


@contextmanager
def mute_interrupted_calls() -> Iterator[None]:
    """Keep log records of errors that an interrupt caused out of the log."""
    loggers = [logging.getLogger(name) for name in _PY4J_LOGGERS]
    for logger in loggers:
        logger.addFilter(_is_not_interrupt)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(_is_not_interrupt)


def _is_not_interrupt(record: logging.LogRecord) -> bool:
    error = record.exc_info[1] if record.exc_info else None
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__context__
    return error is None
