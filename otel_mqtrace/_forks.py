"""What starts over in a forked child, and how often the process forked on its way here."""

from __future__ import annotations

import os
import weakref
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable


class _Restarting(Protocol):
    def after_fork(self) -> None: ...


_forks: Final[list[None]] = []
_restarting: Final[weakref.WeakValueDictionary[int, _Restarting]] = weakref.WeakValueDictionary()
process_generation: Final[Callable[[], int]] = _forks.__len__
"""Return how often the process forked on its way here: a child does not end what its parent began."""


def restart_in_child(item: _Restarting) -> None:
    """Have ``item.after_fork()`` called in each forked child, for as long as ``item`` exists."""
    _restarting[id(item)] = item


def _after_fork() -> None:
    _forks.append(None)
    for reference in _restarting.valuerefs():
        item = reference()
        if item is not None:
            item.after_fork()


if hasattr(os, "register_at_fork"):  # can never be taken back: one for all
    os.register_at_fork(after_in_child=_after_fork)
