"""This module knows that no exception of ours reaches the caller: it is counted, and logged once per place and type."""

from __future__ import annotations

import functools
import logging
import sys
from typing import TYPE_CHECKING, Final, ParamSpec, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["failures", "guarded", "note_failure"]

_P = ParamSpec("_P")
_R = TypeVar("_R")
_log: Final = logging.getLogger(__name__)
_failures: Final[dict[str, int]] = {}
_told: Final[set[tuple[str, str]]] = set()
_MAX_TOLD: Final = 1_000
"""An application that makes a class for each exception must not fill the memory."""


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
    """Count the exception being handled under ``place``; the first of each type is logged with its traceback."""
    _failures[place] = _failures.get(place, 0) + 1
    kind = place, getattr(sys.exc_info()[0], "__qualname__", "")
    if kind not in _told and len(_told) < _MAX_TOLD:
        _told.add(kind)
        _log.warning("mqtrace: tracing failed in %s; the application goes on untouched", place, exc_info=True)


def failures() -> dict[str, int]:
    """Return how often each guarded place failed since the process started."""
    return dict(_failures)
