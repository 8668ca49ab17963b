"""This module knows how Apache's gRPC client is patched and restored: methods of its classes, changed in place.

They are plain Python classes, so every name a program knows them by sees the change, and so does every subclass, made
before or after. Listeners and checkers are given to a client when it is made: those of older clients stay untraced.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import FunctionType
from typing import TYPE_CHECKING, Any, Final

import rocketmq
from rocketmq import Producer, SimpleConsumer

from otel_mqtrace.clients.rocketmq.checker import TracedChecker, traced_question
from otel_mqtrace.clients.rocketmq.consumer import PUSH_CONSUMER_METHODS, SIMPLE_CONSUMER_METHODS
from otel_mqtrace.clients.rocketmq.handover import handed_over
from otel_mqtrace.clients.rocketmq.holding import consumers
from otel_mqtrace.clients.rocketmq.listener import TracedListener, standing_in
from otel_mqtrace.clients.rocketmq.live import live
from otel_mqtrace.clients.rocketmq.producer import PRODUCER_METHODS, producers
from otel_mqtrace.clients.rocketmq.received import MESSAGE_METHODS
from otel_mqtrace.hooks._guard import guarded
from otel_mqtrace.hooks.process import sources

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from otel_mqtrace.hooks.tracing import Tracing

__all__ = ["Patches", "apply", "foreign_wrapper"]

_PATCHED: Final[Mapping[str, Mapping[str, Callable[[Callable[..., Any]], Callable[..., Any]]]]] = {
    "Message": MESSAGE_METHODS,
    "Producer": {
        **PRODUCER_METHODS,
        "__init__": standing_in("checker", TracedChecker),
        "on_recover_orphaned_transaction_command": traced_question,
    },
    "SimpleConsumer": SIMPLE_CONSUMER_METHODS,
    "PushConsumer": {**PUSH_CONSUMER_METHODS, "__init__": standing_in("message_listener", TracedListener)},
}
"""Class → method → how to wrap it; lite consumers inherit. What an older client does not have is passed over."""
_WHERE_OTHERS_WRAP: Final = ((Producer, "send"), (Producer, "send_async"), (SimpleConsumer, "receive"))
_CLIENT: Final = "rocketmq."
_OURS: Final = "otel_mqtrace."
_ABSENT: Final = object()


def foreign_wrapper() -> str | None:
    """Return the module of another instrumentation that has wrapped the client's methods, or ``None``.

    The client itself makes no spans: what it exports are metrics, to where its server says.
    """
    for owner, name in _WHERE_OTHERS_WRAP:
        home = _home_of(getattr(owner, name))
        if not home.startswith((_CLIENT, _OURS)):
            return home
    return None


def _home_of(found: Any) -> str:
    """Return the module a method's outermost code is from; what wraps it shows the wrapped one's ``__module__``."""
    wrapper = getattr(found, "_self_wrapper", None)  # wrapt's, which most instrumentations are made with
    if wrapper is not None:
        return str(getattr(wrapper, "__module__", type(wrapper).__module__))
    if type(found) is FunctionType:
        return str(found.__globals__.get("__name__", found.__module__))
    return type(found).__module__


@dataclass(frozen=True, slots=True)
class _Change:
    owner: type[Any]
    name: str
    before: Any
    after: Any

    @guarded("Patches.restore")
    def undo(self) -> None:
        """Put back what was there, unless somebody else has changed it since."""
        if vars(self.owner).get(self.name) is not self.after:
            return
        if self.before is _ABSENT:
            delattr(self.owner, self.name)
        else:
            setattr(self.owner, self.name, self.before)


@dataclass(slots=True)
class Patches:
    """The changes made by one ``instrument()``; ``restore`` undoes exactly those, in reverse order."""

    changes: list[_Change] = field(default_factory=list)
    untraceable: list[str] = field(default_factory=list)

    def restore(self) -> None:
        """Undo every change and stop tracing; clients that are still alive go on untraced, open spans end here."""
        live.tracing = None
        if handed_over in sources:
            sources.remove(handed_over)
        for holding in consumers.forget():
            holding.close()
        producers.forget()
        while self.changes:
            self.changes.pop().undo()

    def make(self, owner: type[Any], name: str, wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        """Wrap one method, inherited or own; one that this version of the client does not have is passed over."""
        method = getattr(owner, name, None)
        if method is None:
            return
        change = _Change(owner, name, vars(owner).get(name, _ABSENT), wrap(method))
        setattr(owner, name, change.after)
        self.changes.append(change)


def apply(tracing: Tracing) -> Patches:
    """Patch the client and start tracing; broken off half-way, nothing stays changed."""
    patches = Patches()
    live.tracing = tracing
    sources.append(handed_over)
    try:
        for class_name, methods in _PATCHED.items():
            owner = getattr(rocketmq, class_name, None)
            if owner is not None:
                for name, wrap in methods.items():
                    patches.make(owner, name, wrap)
    except BaseException:
        patches.restore()
        raise
    return patches
