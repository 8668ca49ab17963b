"""This module knows how Apache's gRPC client is patched and restored: methods of its classes, changed in place.

They are plain Python classes, so every name a program knows them by sees the change, and so does every subclass, made
before or after. Listeners and checkers are given to a client when it is made: those of older clients stay untraced.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import rocketmq
from rocketmq import Producer, SimpleConsumer

from otel_mqtrace.clients.change import ABSENT, Change, Wrappers, each_of
from otel_mqtrace.clients.neighbours import home_of
from otel_mqtrace.clients.rocketmq.checker import TracedChecker, traced_question
from otel_mqtrace.clients.rocketmq.consumer import PUSH_CONSUMER_METHODS, SIMPLE_CONSUMER_METHODS
from otel_mqtrace.clients.rocketmq.handover import handed_over
from otel_mqtrace.clients.rocketmq.holding import close_consumers
from otel_mqtrace.clients.rocketmq.listener import TracedListener, standing_in
from otel_mqtrace.clients.rocketmq.live import live
from otel_mqtrace.clients.rocketmq.producer import PRODUCER_METHODS, producers
from otel_mqtrace.clients.rocketmq.received import MESSAGE_METHODS
from otel_mqtrace.hooks._left_behind import end_left_behind
from otel_mqtrace.hooks.process import sources

if TYPE_CHECKING:
    from collections.abc import Mapping

    from otel_mqtrace.hooks.tracing import Tracing

__all__ = ["Patches", "apply", "foreign_wrapper"]

_PATCHED: Final[Mapping[str, Wrappers]] = {
    "Message": MESSAGE_METHODS,
    "Producer": {
        **PRODUCER_METHODS,
        "__init__": standing_in("checker", TracedChecker),
        "on_recover_orphaned_transaction_command": traced_question,
    },
    "SimpleConsumer": SIMPLE_CONSUMER_METHODS,
    "PushConsumer": {**PUSH_CONSUMER_METHODS, "__init__": standing_in("message_listener", TracedListener)},
}
"""Class → method → how to wrap it; lite consumers inherit. What an older client does not have is noted."""
_WHERE_OTHERS_WRAP: Final = ((Producer, "send"), (Producer, "send_async"), (SimpleConsumer, "receive"))
_CLIENT: Final = "rocketmq."
_OURS: Final = "otel_mqtrace."


def foreign_wrapper() -> str | None:
    """Return the module of another instrumentation that has wrapped the client's methods, or ``None``.

    The client itself makes no spans: what it exports are metrics, to where its server says.
    """
    for owner, name in _WHERE_OTHERS_WRAP:
        home = home_of(getattr(owner, name))
        if not home.startswith((_CLIENT, _OURS)):
            return home
    return None


@dataclass(slots=True)
class Patches:
    """The changes made by one ``instrument()``; ``restore`` undoes those, in reverse order, whatever one of them meets.

    ``untraceable`` names classes and methods that this version of the client does not have.
    """

    changes: list[Change] = field(default_factory=list)
    untraceable: list[str] = field(default_factory=list)

    def restore(self) -> None:
        """Undo every change and stop tracing; clients that are still alive go on untraced, open spans end here."""
        live.tracing = None
        undoing = [change.undo for change in reversed(self.changes)]
        self.changes = []
        each_of(*undoing, _leave_sources, close_consumers, producers.forget, end_left_behind)

    def survey(self) -> dict[str, list[str]]:
        """Return what goes untraced now, and ``wrappers``: who stands before us."""
        wrapper = foreign_wrapper()
        return {"untraceable": list(self.untraceable), "wrappers": [] if wrapper is None else [wrapper]}

    def make(self, class_name: str, methods: Wrappers) -> None:
        """Wrap methods of one class, inherited or own; what this version of the client does not have is noted."""
        owner = getattr(rocketmq, class_name, None)
        if owner is None:
            self.untraceable.append(f"{rocketmq.__name__}.{class_name}")
            return
        for name, wrap in methods.items():
            method = getattr(owner, name, None)
            wrapped = None if method is None else wrap(method)
            if wrapped is None:
                self.untraceable.append(f"{owner.__module__}.{owner.__qualname__}.{name}")
                continue
            change = Change(owner, name, vars(owner).get(name, ABSENT), wrapped)
            change.apply()
            self.changes.append(change)


def _leave_sources() -> None:
    if handed_over in sources:
        sources.remove(handed_over)


def apply(tracing: Tracing) -> Patches:
    """Patch the client and start tracing; broken off half-way, nothing stays changed."""
    patches = Patches()
    live.tracing = tracing
    sources.append(handed_over)
    try:
        for class_name, methods in _PATCHED.items():
            patches.make(class_name, methods)
    except BaseException:
        patches.restore()
        raise
    return patches
