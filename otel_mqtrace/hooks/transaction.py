"""This module knows the end of a transaction: one ``end_transaction T`` span for each message that was sent in it."""

from __future__ import annotations

import logging
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from otel_mqtrace import semconv
from otel_mqtrace.hooks._guard import guarded
from otel_mqtrace.hooks.end_transaction import EndTransactionHook
from otel_mqtrace.spans.mapping import bean_of

if TYPE_CHECKING:
    from otel_mqtrace.hooks.send import SendCall
    from otel_mqtrace.hooks.tracing import ClientFacts, Tracing
    from otel_mqtrace.model import TransactionState
    from otel_mqtrace.spans.mapping import Attributes

__all__ = ["MAX_MESSAGES", "TransactionHook", "overflowed"]

MAX_MESSAGES: Final = 1_000
"""How many messages of one open transaction are remembered; the ones above are counted by :func:`overflowed`.

Their ends all come in one burst, on the thread that commits: less than the smallest preset's queue (1024), half of a
queue that is set smaller.
"""

_log: Final = logging.getLogger(__name__)
_overflowed: Final[Counter[TransactionState]] = Counter()


def overflowed() -> int:
    """Return how many messages of this process got no end span because their transaction was too long."""
    return sum(_overflowed.values())


@dataclass(slots=True)
class _Transaction:
    """One transaction. Messages come from any thread, until ``end`` is there and after: each is taken by one."""

    id: str
    sent: deque[SendCall] = field(default_factory=deque)
    above: int = 0
    end: tuple[TransactionState, int] | None = None
    """How it ended, and when that was asked for."""


class TransactionHook:
    """The open transaction of one producer. Only an end that succeeded is recorded; a failed one may be tried again."""

    def __init__(self, tracing: Tracing, facts: ClientFacts, *, max_messages: int = MAX_MESSAGES) -> None:
        self._tracing = tracing
        self._end = EndTransactionHook(tracing, facts)
        queue_size = tracing.settings.queue_size
        self._max_messages = max_messages if queue_size is None else min(max_messages, max(1, queue_size // 2))
        self._latest: _Transaction | None = None
        self.transaction_id: str | None = None

    @guarded("TransactionHook.begin")
    def begin(self) -> None:
        """A transaction was opened: messages sent from now on belong to it."""
        self._latest = latest = _Transaction(self._tracing.new_id())
        self.transaction_id = latest.id

    @guarded("TransactionHook.joined")
    def joined(self, call: SendCall) -> None:
        """Remember a message of the transaction it was sent in; one that has just ended is ended for it, too."""
        latest = self._latest
        if latest is None or call.transaction_id != latest.id:
            return
        if len(latest.sent) >= self._max_messages:
            latest.above += 1
            return
        latest.sent.append(call)
        if latest.end is not None:
            self._end_sent(latest, *latest.end)

    @guarded("TransactionHook.ended")
    def ended(self, state: TransactionState, *, start_ns: int) -> None:
        """Record for each message that the transaction ended; ``start_ns`` is when commit or abort was called."""
        latest = self._latest
        if latest is None or self.transaction_id is None:
            return
        self.transaction_id = None
        shown, above = len(latest.sent), latest.above
        latest.end = state, start_ns
        if above:
            if not overflowed():
                _log.warning(
                    "mqtrace: a transaction of %d messages shows the end of its first %d; the rest is only counted",
                    shown + above,
                    shown,
                )
            _overflowed[state] += above
        self._end_sent(latest, state, start_ns)

    def _end_sent(self, transaction: _Transaction, state: TransactionState, start_ns: int) -> None:
        """Record the end of every message that nobody has taken yet."""
        while True:
            try:
                call = transaction.sent.popleft()
            except IndexError:
                return
            self._identify(call)
            self._end.ended(bean_of(call.attributes), state, start_ns=start_ns, creation=call.span_context)

    def now_ns(self) -> int:
        """Return the wall clock of this hook: when a commit or an abort was called."""
        return self._tracing.clock.wall_ns()

    def _identify(self, call: SendCall) -> None:
        """A message that goes by its physical id, and has no place yet, gets another now: one for both its spans."""
        if semconv.MESSAGING_MESSAGE_ID not in call.attributes:
            named: Attributes = {semconv.MESSAGING_MESSAGE_ID: self._tracing.new_id()}
            call.opened_with = {**call.opened_with, **named}
            self._tracing.say(call.span, named)
