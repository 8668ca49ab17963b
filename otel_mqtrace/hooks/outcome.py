"""How a span ends: once, in the process that began it, with an outcome, at once or by the next hook."""

from __future__ import annotations

import asyncio
import logging
import threading
import weakref
from collections import deque
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import count
from typing import TYPE_CHECKING, Any, Final, Protocol

from opentelemetry import trace
from opentelemetry.trace import Status, StatusCode

from otel_mqtrace._errors import reraise_from_signal_handler
from otel_mqtrace._workers import at_child_exit, process_generation
from otel_mqtrace.hooks.guard import guarded
from otel_mqtrace.model import ContextCode

if TYPE_CHECKING:
    from asyncio import Future
    from collections.abc import Callable

    from opentelemetry.trace import Span


_log: Final = logging.getLogger(__name__)


# -- one end ----------------------------------------------------------------------------------------------------
@dataclass(slots=True, eq=False)
class SingleEnd:
    """A call whose span exactly one caller ends, and never a forked child."""

    began_in: int = field(default_factory=process_generation, init=False, repr=False)
    """The generation of the process that began it, until it ends."""

    @property
    def is_open(self) -> bool:
        """Return whether the span belongs to this process and has not ended."""
        return getattr(self, "began_in", None) == process_generation()

    def try_end(self) -> bool:
        """Return ``True`` to exactly one caller, which ends the span (``del`` is atomic)."""
        try:
            began_in = self.began_in
            del self.began_in
        except AttributeError:
            return False
        return began_in == process_generation()


# -- the application's outcome ----------------------------------------------------------------------------------
class Handling:
    """A handler's outcome of its message: by default ``SUCCESS``, after an exception ``EXCEPTION``.

    A failure that is set later, when the message is over, is counted.
    """

    __slots__ = ("code", "is_over", "span")

    def __init__(self, span: Span = trace.INVALID_SPAN, *, is_over: bool = False) -> None:
        self.span = span
        """The process span, or one that records nothing."""
        self.code = ContextCode.SUCCESS
        """The last outcome that was set."""
        self.is_over = is_over
        """Whether the message's block has ended, or is known to have lost its span to the next poll."""

    @property
    def handling(self) -> Handling:
        """Itself: what stands in the context of a handler has a ``handling``."""
        return self

    def outcome(self, code: ContextCode | str) -> None:
        """Set the outcome: a ``ContextCode`` or its name; an unknown word becomes ``RETURNNULL`` with one warning."""
        self.code = code_of(code)
        if self.code is not ContextCode.SUCCESS and (self.is_over or self._has_ended()):
            count_missing(OUTCOME_TOO_LATE)
            _warn_of_late_outcome()

    def _has_ended(self) -> bool:
        """Return whether the span shows that the message is over: that of a block is over with the block alone."""
        return False

    def failed(self) -> None:
        """Set the outcome of a message that was not handled and should be delivered again."""
        self.outcome(ContextCode.FAILED)


class PolledHandling(Handling):
    """The outcome of a message whose span ends with its consumer's next poll."""

    __slots__ = ()

    def _has_ended(self) -> bool:
        return self.span.get_span_context().trace_flags.sampled and not self.span.is_recording()


def code_of(outcome: object) -> ContextCode:
    """Return the ``ContextCode`` of one or of its name; for anything else warn once and return ``RETURNNULL``."""
    if isinstance(outcome, ContextCode):
        return outcome
    if isinstance(outcome, str) and outcome in ContextCode.__members__:
        return ContextCode[outcome]
    _warn(outcome[:40] if isinstance(outcome, str) else f"a {type(outcome).__qualname__}")
    return ContextCode.RETURNNULL


@lru_cache(maxsize=64)
def _warn(word: str) -> None:
    known = ", ".join(ContextCode.__members__)
    _log.warning("mqtrace: unknown outcome %s: use one of %s; RETURNNULL is recorded", word, known)


@lru_cache(maxsize=1)
def _warn_of_late_outcome() -> None:
    _log.warning(
        "mqtrace: an outcome was set after its message had ended, with its block or at the next poll: handle messages "
        "of other threads and tasks in process(message), and set it there (logged once; counted as %s in unrecorded)",
        OUTCOME_TOO_LATE,
    )


def is_failed(span: Span) -> bool:
    """Return whether the status of ``span`` is ERROR."""
    status = getattr(span, "status", None)
    return isinstance(status, Status) and status.status_code is StatusCode.ERROR


def text_of(exception: BaseException) -> str:
    """Return the text of an exception, or its class name when its own ``__str__`` raises."""
    try:
        return str(exception)
    except Exception:  # noqa: BLE001 - its own __str__ raised
        return type(exception).__qualname__


def record_failure(span: Span, description: str | None, exception: BaseException | None) -> None:
    """Set the status to ERROR and record ``exception``; one that cannot be printed is recorded by its type."""
    if exception is not None:
        try:
            span.record_exception(exception)
        except Exception:  # noqa: BLE001 - the SDK prints the exception
            reraise_from_signal_handler()
            span.add_event("exception", {"exception.type": type(exception).__qualname__})
    span.set_status(Status(StatusCode.ERROR, description))


def failure_of(future: Future[Any]) -> BaseException | None:
    """Return the failure of a done future, a ``CancelledError`` for a cancelled one.

    ``exception()`` would silence asyncio's report of a failure that the application never retrieved.
    """
    if future.cancelled():
        return asyncio.CancelledError()
    failure: BaseException | None = future._exception if hasattr(future, "_exception") else future.exception()  # noqa: SLF001 - see above
    return failure


@guarded("end_ns")
def read_time(end_ns: Any) -> int:
    """Return a time that the application gave, in whole nanoseconds; ``None`` for what is no number."""
    return int(end_ns)


# -- ends that are left to the next hook ------------------------------------------------------------------------
class _Hook(Protocol):
    """A hook that ends a call as of ``end_ns``."""

    @property
    def after(self) -> Callable[..., object]: ...

    def now_ns(self) -> int: ...


deferred_ends: Final[deque[tuple[_Hook, SingleEnd, dict[str, Any]]]] = deque()
"""Calls to be ended by the next hook: ``if deferred_ends: drain_deferred_ends()``.

A finaliser may run while its own thread holds a lock of the SDK, so it must not end a span itself.
"""
_at_exit: Final[list[int]] = []
"""The generations, of this process and its parents, whose exit ends what is open."""
ends_at_exit: Final[list[Callable[[], object]]] = []
"""Functions that defer the end of what is still open when the process exits."""
_finalizers: Final[dict[int, weakref.finalize[Any, Any]]] = {}
_numbers: Final = count()
_BEFORE_CHILDREN_ARE_JOINED: Final = 0  # a processor that gets its first span then can still have its turn


@guarded("outcome.defer_end")
def defer_end(hook: _Hook, call: SingleEnd, **outcome: Any) -> None:
    """Have ``hook.after(call, **outcome)`` called by the next hook, with the time of now; takes no lock."""
    if call.is_open:
        drain_at_exit()
        deferred_ends.append((hook, call, {"end_ns": hook.now_ns(), **outcome}))


def drain_deferred_ends() -> None:
    """End every call that was deferred; never call this from a finaliser."""
    taken: deque[tuple[_Hook, SingleEnd, dict[str, Any]]] = deque()
    try:
        while deferred_ends:  # all first: each ``after`` looks here, too, and would recurse
            taken.append(deferred_ends.popleft())
    except IndexError:
        pass  # another thread took the last one
    try:
        while taken:
            hook, call, outcome = taken.popleft()
            hook.after(call, **outcome)
    finally:
        deferred_ends.extend(taken)  # interrupted by a BaseException: the next hook ends the rest


def when_collected(client: object, end: Callable[[], object]) -> None:
    """Call ``end`` when ``client`` is collected or the process exits; it must do no more than :func:`defer_end`."""
    drain_at_exit()  # before the first client: at exit the finaliser made first is called last
    number = next(_numbers)
    _finalizers[number] = weakref.finalize(client, _collected, number, end)


def _collected(number: int, end: Callable[[], object]) -> None:
    _finalizers.pop(number, None)
    end()


def drain_at_exit() -> None:
    """Have this process end at its exit what is open and what was deferred; called again it does nothing."""
    generation = process_generation()
    if generation not in _at_exit:
        if not _at_exit:
            weakref.finalize(deferred_ends, _end_last)
        _at_exit.append(generation)
        at_child_exit(end_all, priority=_BEFORE_CHILDREN_ARE_JOINED)


def end_all() -> None:
    """End what is open, unless other threads outlive the exit, and what was deferred."""
    others = (each for each in threading.enumerate() if each is not threading.current_thread())
    if all(each.daemon for each in others):  # any other thread outlives multiprocessing's exit, and ends its own calls
        for finalizer in list(_finalizers.values()):  # the garbage collector may take one out meanwhile
            finalizer()
        _end_last()
    drain_deferred_ends()


def _end_last() -> None:
    for end in ends_at_exit:
        end()
    drain_deferred_ends()


# -- what never became a span -----------------------------------------------------------------------------------
UNHANDLED: Final = "handed_over_unhandled"
"""Messages left to ``process()`` blocks that never came."""
OUTCOME_TOO_LATE: Final = "outcome_too_late"
"""Failures, of blocks or by ``process.failed()``, of messages whose spans or blocks had ended."""
TOO_LONG: Final = "transaction_too_long"
"""Messages whose transaction was too long for each of them to have a span of its end."""
_missing: Final = dict.fromkeys((TOO_LONG, UNHANDLED, OUTCOME_TOO_LATE), 0)


def count_missing(reason: str) -> None:
    """Count one; without a lock, because a finaliser may call this."""
    _missing[reason] += 1  # no call between read and write: a finaliser or another thread could come in there


def missing_counts() -> dict[str, int]:
    """Return how often each happened since the process started."""
    return _missing.copy()
