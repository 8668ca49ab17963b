"""This module knows how a job that failed inside Spark is told: by the first line of what caused it all."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]

from otel_mqtrace._errors import PeerError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["told_by_cause"]


@contextmanager
def told_by_cause() -> Iterator[None]:
    """Raise ``PeerError`` for a job that the JVM gave up: a full disk, a file gone, too little memory.

    Spark wraps the cause several times and appends every stack. What pyspark has an exception of its own for (a wrong
    plan, a wrong number) is a defect of the plan and passes as it is.
    """
    try:
        yield
    except Py4JJavaError as error:
        raise PeerError(f"Spark gave up: {_cause(error.java_exception)}; mend that and run it again") from error


def _cause(thrown: Any) -> str:
    deepest, deeper = thrown, thrown.getCause()
    while deeper is not None:
        deepest, deeper = deeper, deeper.getCause()
    return str(deepest.toString()).strip().partition("\n")[0]
