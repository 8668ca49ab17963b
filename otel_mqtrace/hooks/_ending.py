"""This module knows how a span ends: once, in the process that began it, whatever outcome the application tells."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from opentelemetry import trace
from opentelemetry.trace import Status, StatusCode

from otel_mqtrace.model import ContextCode

if TYPE_CHECKING:
    from opentelemetry.trace import Span

__all__ = ["Ending", "Handling", "code_of", "is_failed", "process_generation", "say_failure", "text_of"]

_log: Final = logging.getLogger(__name__)
_generation: Final = [0]
"""How often the process forked on its way here: what was open before a fork is the parent's to end."""


_one: Final = bytearray(1)


def process_generation() -> int:
    """Return how often the process forked on its way here."""
    return _generation[0]


@dataclass(slots=True)
class Ending:
    """A call under way, whose span exactly one caller ends, however many try; a forked child is never the one."""

    _unclaimed: bytearray = field(default_factory=_one.copy, init=False, repr=False, compare=False)
    _began_in: int = field(default_factory=process_generation, init=False, repr=False)

    @property
    def is_open(self) -> bool:
        """Whether the span is ours to end, and has not ended yet."""
        return self._began_in == _generation[0] and bool(self._unclaimed)

    def claim(self) -> bool:
        """Return ``True`` to exactly one caller: whoever gets it ends the span (``pop`` is atomic).

        Of bytes, because the garbage collector goes through lists, and through locks, of all that is on its way.
        """
        try:
            self._unclaimed.pop()
        except IndexError:
            return False
        return self._began_in == _generation[0]


def _forked() -> None:
    _generation[0] += 1


if hasattr(os, "register_at_fork"):  # a system without fork has no such thing to tell
    os.register_at_fork(after_in_child=_forked)


class Handling:
    """What a handler says about its message; silent means ``SUCCESS``, an exception says ``EXCEPTION`` by itself."""

    __slots__ = ("code", "span")

    def __init__(self, span: Span = trace.INVALID_SPAN) -> None:
        self.span = span
        """The process span, or one that records nothing."""
        self.code = ContextCode.SUCCESS
        """What was said last."""

    def outcome(self, code: ContextCode | str) -> None:
        """Say how it ended: a ``ContextCode`` or its name.

        Never raises into the handler: a word that is none of them is recorded as ``RETURNNULL``, with one warning.
        """
        self.code = code_of(code)

    def failed(self) -> None:
        """Say that the message was not handled and should come again."""
        self.code = ContextCode.FAILED


def is_failed(span: Span) -> bool:
    """Whether somebody has set the status of ``span`` to ERROR; one that does not tell its status has not."""
    status = getattr(span, "status", None)
    return isinstance(status, Status) and status.status_code is StatusCode.ERROR


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
