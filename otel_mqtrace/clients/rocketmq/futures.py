"""This module knows how an answer is heard before the application hears it, and where its callbacks then run."""

from __future__ import annotations

from concurrent.futures import CancelledError, Future
from typing import TYPE_CHECKING, Any

from otel_mqtrace.hooks._scope import EnteredScope

if TYPE_CHECKING:
    from collections.abc import Callable

    from opentelemetry.context import Context

__all__ = ["heard_first"]


def heard_first(answer: Any, hear: Callable[[Any, BaseException | None], None], ambient: Context | None) -> Any:
    """Return a future that is done as ``answer`` is, after ``hear(result, exception)``; that must not raise.

    Its callbacks run in ``ambient`` where that is given. What is no future is heard now and returned as it is.
    """
    if not isinstance(answer, Future):
        hear(answer, None)
        return answer
    told: Future[Any] = Future()

    def pass_on(done: Future[Any]) -> None:
        exception = CancelledError() if done.cancelled() else done.exception()
        result = None if exception is not None else done.result()
        hear(result, exception)
        scope = None if ambient is None else EnteredScope(ambient)
        try:
            if done.cancelled() or not told.set_running_or_notify_cancel():
                told.cancel()
            elif exception is not None:
                told.set_exception(exception)
            else:
                told.set_result(result)
        finally:
            if scope is not None:
                scope.leave()

    answer.add_done_callback(pass_on)
    return told
