"""This module knows when the broker asks how a transaction ended, and what the application's checker answered."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary, ref

from otel_mqtrace.clients.rocketmq.producer import STATES, producers
from otel_mqtrace.clients.rocketmq.received import bean_of_message, creation_of_message
from otel_mqtrace.hooks._guard import guarded
from otel_mqtrace.model import TransactionState

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_mqtrace.hooks.end_transaction import EndTransactionHook

__all__ = ["TracedChecker", "traced_question"]

_MOST_ASKED: Final = 10_000
_checkers: Final[WeakKeyDictionary[Any, ref[TracedChecker]]] = WeakKeyDictionary()
"""Weakly held at both ends: the application's checker may well know its producer."""


class TracedChecker:
    """The application's checker; what it answers is recorded as the end of the transaction the broker asked about.

    As in RocketMQ's own clients it is recorded when it is known, before the broker is told.
    """

    def __init__(self, checker: Any, producer: Any) -> None:
        self._checker = checker
        self._producer = ref(producer)
        self._asked: dict[str, str] = {}
        _checkers[producer] = ref(self)

    def __getattr__(self, name: str) -> Any:
        """Answer as the application's checker does."""
        return getattr(self._checker, name)

    def asked(self, msg_id: str, transaction_id: str) -> None:
        """Remember which transaction a message belongs to: the checker is only given the message."""
        self._asked[msg_id] = transaction_id
        while len(self._asked) > _MOST_ASKED:
            self._asked.pop(next(iter(self._asked)), None)

    def check(self, message: Any) -> Any:
        """Ask the application; what it raises goes on to the client."""
        hooks = producers.of(self._producer())
        if hooks is None:
            return self._checker.check(message)
        start_ns = hooks.end.now_ns()
        resolution = self._checker.check(message)
        self._record(hooks.end, message, resolution, start_ns)
        return resolution

    @guarded("rocketmq.check")
    def _record(self, hook: EndTransactionHook, message: Any, resolution: int, start_ns: int) -> None:
        hook.ended(
            replace(bean_of_message(message), transaction_id=self._asked.pop(message.message_id, None)),
            STATES.get(resolution, TransactionState.UNKNOW),
            start_ns=start_ns,
            creation=creation_of_message(message),
            from_transaction_check=True,
        )


def traced_question(original: Callable[..., Any]) -> Callable[..., Any]:
    """``Producer.on_recover_orphaned_transaction_command``: the broker asks."""

    @functools.wraps(original)
    def on_recover(self: Any, endpoints: Any, msg: Any, transaction_id: Any) -> Any:
        _note(self, msg, transaction_id)
        return original(self, endpoints, msg, transaction_id)

    return on_recover


@guarded("rocketmq.asked")
def _note(producer: Any, msg: Any, transaction_id: str) -> None:
    known = _checkers.get(producer)
    checker = None if known is None else known()
    if checker is not None:
        checker.asked(msg.system_properties.message_id, transaction_id)
