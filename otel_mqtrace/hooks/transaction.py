"""This module knows the end of a transaction: one ``end_transaction T`` span for each message that was sent in it."""

from __future__ import annotations

import logging
from collections import Counter
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


class TransactionHook:
    """The open transaction of one producer. Only an end that succeeded is recorded; a failed one may be tried again."""

    def __init__(self, tracing: Tracing, facts: ClientFacts, *, max_messages: int = MAX_MESSAGES) -> None:
        self._tracing = tracing
        self._end = EndTransactionHook(tracing, facts)
        queue_size = tracing.settings.queue_size
        self._max_messages = max_messages if queue_size is None else min(max_messages, max(1, queue_size // 2))
        self._sent: list[SendCall] = []
        self._above = 0
        self.transaction_id: str | None = None

    @guarded("TransactionHook.begin")
    def begin(self) -> None:
        """A transaction was opened: messages sent from now on belong to it."""
        self._sent, self._above = [], 0
        self.transaction_id = self._tracing.new_id()

    @guarded("TransactionHook.joined")
    def joined(self, call: SendCall) -> None:
        """Remember a message of the open transaction."""
        if self.transaction_id is None:
            return
        if len(self._sent) >= self._max_messages:
            self._above += 1
            return
        self._sent.append(call)

    @guarded("TransactionHook.ended")
    def ended(self, state: TransactionState, *, start_ns: int) -> None:
        """Record for each message that the transaction ended; ``start_ns`` is when commit or abort was called."""
        sent, self._sent = self._sent, []
        above, self._above = self._above, 0
        self.transaction_id = None
        if above:
            if not overflowed():
                _log.warning(
                    "mqtrace: a transaction of %d messages shows the end of its first %d; the rest is only counted",
                    len(sent) + above,
                    len(sent),
                )
            _overflowed[state] += above
        for call in sent:
            self._identify(call)
            self._end.ended(bean_of(call.attributes), state, start_ns=start_ns, creation=call.span_context)

    def now_ns(self) -> int:
        """Return the wall clock of this hook: when a commit or an abort was called."""
        return self._tracing.clock.wall_ns()

    def _identify(self, call: SendCall) -> None:
        """A message that goes by its physical id, and has no place yet, gets another now: one for both its spans."""
        if semconv.MESSAGING_MESSAGE_ID not in call.attributes:
            named: Attributes = {semconv.MESSAGING_MESSAGE_ID: self._tracing.new_id()}
            call.attributes.update(named)
            self._tracing.say(call.span, named)
