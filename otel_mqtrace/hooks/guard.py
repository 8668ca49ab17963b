"""Keep our own failures away from the application: counted, and logged once per place and exception type."""

from __future__ import annotations

import functools
import logging
import sys
from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeVar

from otel_mqtrace._errors import is_from_signal_handler, raised_failure

if TYPE_CHECKING:
    from collections.abc import Callable


_P = ParamSpec("_P")
_R = TypeVar("_R")
_log: Final = logging.getLogger(__name__)
_failures: Final[defaultdict[str, int]] = defaultdict(int)
_logged: Final[set[tuple[str, str]]] = set()


def guarded(place: str) -> Callable[[Callable[_P, _R]], Callable[_P, _R | None]]:
    """Make a function return ``None`` instead of raising; ``place`` names it in the log and in :func:`failures`.

    What a signal handler raises passes, and so does an exception that is no ``Exception``: Ctrl-C, ``sys.exit()``.
    """
    is_finalizing = sys.is_finalizing  # held here: at its end the interpreter clears the modules one by one

    def decorate(function: Callable[_P, _R]) -> Callable[_P, _R | None]:
        @functools.wraps(function)
        def call(*args: _P.args, **kwargs: _P.kwargs) -> _R | None:
            try:
                return function(*args, **kwargs)
            except:  # noqa: E722 - the one place between our mistakes, or its hook's KafkaError, and the application
                if not is_finalizing():
                    note_failure(place)
                return None

        return call

    return decorate


def note_failure(place: str) -> None:
    """Count the exception being handled under ``place``; the first of each type is logged with its traceback.

    One that passes (:func:`guarded`) is raised again: it is counted apart, because it may have cost a span.
    """
    error: Any = sys.exc_info()[1]
    is_interrupt = is_from_signal_handler() or (isinstance(error, BaseException) and not isinstance(error, Exception))
    where = f"{place} (a signal handler raised)" if is_interrupt else place
    _failures[where] += 1  # no call between read and write: another thread could come in there
    if is_interrupt:
        raise  # noqa: PLE0704 - as reraise_from_signal_handler()
    kind = place, type(error).__qualname__
    if kind not in _logged:
        _logged.add(kind)
        failure = raised_failure()
        _log.warning("mqtrace: tracing failed in %s; the application is not affected", place, exc_info=failure)


def failures() -> dict[str, int]:
    """Return how often each guarded place failed since the process started."""
    return dict(_failures)
