"""This module knows what becomes of calls whose client was collected: nothing is recorded while the collector runs.

The collector runs in any thread, in the middle of anything: a finaliser that measured or ended a span could wait for a
lock its own thread holds (OpenTelemetry's metrics have such ones, span processors may). So a finaliser leaves the call
here, which takes no lock; it is ended by the next hook that is called, by ``uninstrument()``, or at exit.
"""

from __future__ import annotations

import weakref
from collections import deque
from typing import TYPE_CHECKING, Any, Final, Protocol

from otel_mqtrace.hooks._guard import guarded

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_mqtrace.hooks._ending import Ending

__all__ = ["end_left_behind", "leave", "left_behind", "when_collected"]


class _Hook(Protocol):
    """A hook that ends a call as of ``end_ns``."""

    @property
    def after(self) -> Callable[..., object]: ...

    def now_ns(self) -> int: ...


left_behind: Final[deque[tuple[_Hook, Ending, dict[str, Any]]]] = deque()
"""The calls to be ended; a hook looks here first of all: ``if left_behind: end_left_behind()``."""
_until_exit: Final[list[weakref.finalize[Any, Any]]] = []


@guarded("left_behind.leave")
def leave(hook: _Hook, call: Ending, **how: Any) -> None:
    """Have ``hook.after(call, **how)`` called later, with the time of now; what has ended already stays as it is."""
    if call.is_open:
        _see_to_the_exit()
        left_behind.append((hook, call, {"end_ns": hook.now_ns(), **how}))


def end_left_behind() -> None:
    """End all that was left; to be called by no finaliser."""
    taken: deque[tuple[_Hook, Ending, dict[str, Any]]] = deque()
    try:
        while left_behind:  # all at first: each ``after`` looks here, too, and would go one level deeper for the next
            taken.append(left_behind.popleft())
    except IndexError:
        pass  # another thread took the last one
    try:
        while taken:
            hook, call, how = taken.popleft()
            hook.after(call, **how)
    finally:
        left_behind.extend(taken)  # broken off by what is no Exception: for the next to end


def when_collected(client: object, end: Callable[[], object]) -> None:
    """Call ``end`` when ``client`` is collected or the process exits; it must do no more than :func:`leave`."""
    _see_to_the_exit()  # before the first of them: at exit the one made first is called last
    weakref.finalize(client, end)


def _see_to_the_exit() -> None:
    if not _until_exit:
        _until_exit.append(weakref.finalize(left_behind, end_left_behind))
