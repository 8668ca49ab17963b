"""This module knows how to read what a future ended with, so that asyncio does not count it as looked at.

asyncio complains of an exception that nobody ever looked at; the public ``exception()`` would take that complaint away.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from asyncio import Future

__all__ = ["failure_of"]


def failure_of(future: Future[Any]) -> BaseException | None:
    """Return what a future that is done failed with, a ``CancelledError`` for one that was cancelled, or ``None``."""
    if future.cancelled():
        return asyncio.CancelledError()
    failure: BaseException | None = future._exception if hasattr(future, "_exception") else future.exception()  # noqa: SLF001
    return failure
