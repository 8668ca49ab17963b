"""This module knows how a span ends: once, and whatever exception or outcome the application hands us for it."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from opentelemetry.trace import Status, StatusCode

from otel_mqtrace.model import ContextCode

if TYPE_CHECKING:
    from opentelemetry.trace import Span

__all__ = ["Ending", "code_of", "say_failure", "text_of"]

_log: Final = logging.getLogger(__name__)


@dataclass(slots=True)
class Ending:
    """A call under way, whose span exactly one caller ends, however many try."""

    _open: list[None] = field(default_factory=[None].copy, init=False, repr=False)

    @property
    def is_open(self) -> bool:
        """Whether the span has not ended yet."""
        return bool(self._open)

    def claim(self) -> bool:
        """Return ``True`` to exactly one caller: whoever gets it ends the span (list.pop is atomic)."""
        try:
            self._open.pop()
        except IndexError:
            return False
        return True


def text_of(exception: BaseException) -> str:
    """Return what an exception says, or the name of its class when it cannot be printed."""
    try:
        return str(exception)
    except Exception:  # noqa: BLE001 - its own __str__ raised
        return type(exception).__qualname__


def say_failure(span: Span, description: str | None, exception: BaseException | None) -> None:
    """Set the status to ERROR and record ``exception``; one that cannot be printed is recorded by its type."""
    if exception is not None:
        try:
            span.record_exception(exception)
        except Exception:  # noqa: BLE001 - as above: the SDK prints it
            span.add_event("exception", {"exception.type": type(exception).__qualname__})
    span.set_status(Status(StatusCode.ERROR, description))


def code_of(said: object) -> ContextCode:
    """Return a ``ContextCode`` for one, or for its name; ``RETURNNULL`` and one warning for anything else.

    That is what RocketMQ writes when a listener says nothing that it knows.
    """
    if isinstance(said, ContextCode):
        return said
    if isinstance(said, str) and said in ContextCode.__members__:
        return ContextCode[said]
    _warn(said[:40] if isinstance(said, str) else f"a {type(said).__qualname__}")
    return ContextCode.RETURNNULL


@lru_cache(maxsize=64)
def _warn(said: str) -> None:
    known = ", ".join(ContextCode.__members__)
    _log.warning("mqtrace: %s is no outcome of a message (%s): RETURNNULL is recorded", said, known)
