"""This module knows how a job that failed inside Spark is told: by the first line of what caused it all."""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException, PythonException

from otel_mqtrace._errors import PeerError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["told_by_cause"]

_FAILED_AT_THE_SERVER: Final = "SparkConnectGrpcException"  # by name: its module needs what the connect extra brings
_OWN_WORDS: Final = re.compile(r"^(?:otel_mqtrace\._errors\.\w+: |(?=\w+Error: \[Errno ))(.+)$", re.MULTILINE)
"""The last line of a traceback that ends in an error of ours, or in one of the operating system's."""


@contextmanager
def told_by_cause() -> Iterator[None]:
    """Raise ``PeerError`` for a job that the JVM gave up: a full disk, a file gone, too little memory.

    Spark wraps the cause several times and appends every stack. Our code in an executor that gave up is told by its own
    words, or by the system's. What pyspark has an exception of its own for (a wrong plan, a wrong number) is a defect
    of the plan and passes as it is.
    """
    try:
        yield
    except Py4JJavaError as error:
        raise PeerError(f"Spark gave up: {_cause(error.java_exception)}; mend that and run it again") from error
    except PythonException as error:
        said = _OWN_WORDS.findall(str(error))
        if not said:
            raise
        raise PeerError(f"Spark gave up: {said[-1]}; mend that and run it again") from error
    except PySparkException as error:
        if type(error).__name__ != _FAILED_AT_THE_SERVER:
            raise
        raise PeerError(f"Spark gave up: {_first_line(error)}; mend that and run it again") from error


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]


def _cause(thrown: Any) -> str:
    deepest, deeper = thrown, thrown.getCause()
    while deeper is not None:
        deepest, deeper = deeper, deeper.getCause()
    return str(deepest.toString()).strip().partition("\n")[0]
