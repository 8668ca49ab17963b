"""This module knows that an exception of ours never reaches the caller: it is counted, and logged once per place."""

from __future__ import annotations

import functools
import logging
from typing import TYPE_CHECKING, Final, ParamSpec, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["failures", "guarded", "note_failure"]

_P = ParamSpec("_P")
_R = TypeVar("_R")
_log: Final = logging.getLogger(__name__)
_failures: Final[dict[str, int]] = {}


def guarded(place: str) -> Callable[[Callable[_P, _R]], Callable[_P, _R | None]]:
    """Make a function answer ``None`` instead of raising; ``place`` names it in the log and in :func:`failures`."""

    def decorate(function: Callable[_P, _R]) -> Callable[_P, _R | None]:
        @functools.wraps(function)
        def call(*args: _P.args, **kwargs: _P.kwargs) -> _R | None:
            try:
                return function(*args, **kwargs)
            except Exception:  # noqa: BLE001 - the one place that stands between our mistakes and the application
                note_failure(place)
                return None

        return call

    return decorate


def note_failure(place: str) -> None:
    """Count the exception being handled under ``place``; the first one of a place is logged with its traceback."""
    seen = _failures.get(place, 0)
    _failures[place] = seen + 1
    if not seen:
        _log.warning("mqtrace: tracing failed in %s; the application goes on untouched", place, exc_info=True)


def failures() -> dict[str, int]:
    """Return how often each guarded place failed since the process started."""
    return dict(_failures)
