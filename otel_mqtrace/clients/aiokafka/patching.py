"""This module knows how aiokafka is patched and restored: methods of its classes, changed in place.

They are plain Python classes, so every name a program knows them by sees the change, and so does every subclass, made
before or after. Where another instrumentation has wrapped a method, ours goes around it and comes off first.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.cluster import ClusterMetadata

from otel_mqtrace.clients.aiokafka import consumer, producer
from otel_mqtrace.clients.aiokafka.batches import traced_create_batch, traced_send_batch
from otel_mqtrace.clients.aiokafka.handover import handed_over
from otel_mqtrace.clients.aiokafka.live import live, noting_cluster_id
from otel_mqtrace.clients.aiokafka.neighbours import warn_of_latecomer, wrapper_of
from otel_mqtrace.clients.aiokafka.settling import traced_commit, traced_send_offsets
from otel_mqtrace.clients.aiokafka.transactions import traced_begin, traced_end
from otel_mqtrace.clients.change import Change, Wrapper, Wrappers, each_of
from otel_mqtrace.hooks._guard import guarded
from otel_mqtrace.hooks._left_behind import end_left_behind
from otel_mqtrace.hooks.process import sources
from otel_mqtrace.model import TransactionState

if TYPE_CHECKING:
    from collections.abc import Mapping

    from otel_mqtrace.hooks.tracing import Tracing

__all__ = ["Patches", "apply", "foreign_wrapper"]

_PATCHED: Final[Mapping[type[Any], Wrappers]] = {
    AIOKafkaProducer: {
        "send": producer.traced_send,
        "_serialize": producer.traced_serialize,
        "stop": producer.traced_stop,
        "create_batch": traced_create_batch,
        "send_batch": traced_send_batch,
        "begin_transaction": traced_begin,
        "commit_transaction": traced_end(TransactionState.COMMIT_MESSAGE),
        "abort_transaction": traced_end(TransactionState.ROLLBACK_MESSAGE),
        "send_offsets_to_transaction": traced_send_offsets,
    },
    AIOKafkaConsumer: {
        "getone": consumer.traced_getone,
        "getmany": consumer.traced_getmany,
        "commit": traced_commit,
        "stop": consumer.traced_stop,
        "__aexit__": consumer.traced_stop,
    },
    ClusterMetadata: {"update_metadata": noting_cluster_id},
}
"""Class → method → how to wrap it. What is not here goes through one that is: ``send_and_wait``, ``__anext__``."""


@dataclass(slots=True)
class Patches:
    """The changes made by one ``instrument()``; ``restore`` undoes those, in reverse order, whatever one of them meets.

    ``untraceable`` names methods that this version of the client does not have.
    """

    changes: list[Change] = field(default_factory=list)
    untraceable: list[str] = field(default_factory=list)
    watches_for_latecomers: bool = True

    @guarded("Patches.begin")
    def begin(self) -> None:
        """A client comes into sight: see whether somebody has wrapped the classes after us, and say so once."""
        name = foreign_wrapper() if self.watches_for_latecomers else None
        if name is not None:
            self.watches_for_latecomers = False
            warn_of_latecomer(name)

    def restore(self) -> None:
        """Undo every change and stop tracing; clients that are still alive go on untraced."""
        live.tracing = live.begin = None
        undoing = [change.undo for change in reversed(self.changes)]
        self.changes = []
        each_of(*undoing, _leave_sources, consumer.abandon_consumers, end_left_behind, handed_over.forget)

    def survey(self) -> dict[str, list[str]]:
        """Return what goes untraced now, and ``wrappers``: who stands before us. A client made before is traced."""
        wrapper = foreign_wrapper()
        return {"untraceable": list(self.untraceable), "wrappers": [] if wrapper is None else [wrapper]}

    def make(self, owner: type[Any], name: str, wrap: Wrapper) -> None:
        """Wrap one method; one that this version of the client does not have is noted."""
        before = vars(owner).get(name)
        wrapped = None if before is None else wrap(before)
        if wrapped is None:
            self.untraceable.append(f"{owner.__module__}.{owner.__qualname__}.{name}")
            return
        change = Change(owner, name, before, wrapped)
        change.apply()
        self.changes.append(change)


def _leave_sources() -> None:
    if handed_over in sources:
        sources.remove(handed_over)


def foreign_wrapper() -> str | None:
    """Return whose instrumentation is at work in the client already and how to switch it off, or ``None``."""
    methods = (vars(owner).get(name) for owner, wrapped in _PATCHED.items() for name in wrapped)
    return next(filter(None, map(wrapper_of, methods)), None)


def apply(tracing: Tracing) -> Patches:
    """Patch the client and start tracing; broken off half-way, nothing stays changed."""
    patches = Patches(watches_for_latecomers=foreign_wrapper() is None)
    live.tracing = tracing
    live.begin = patches.begin
    sources.append(handed_over)
    try:
        for owner, methods in _PATCHED.items():
            for name, wrap in methods.items():
                patches.make(owner, name, wrap)
    except BaseException:
        patches.restore()
        raise
    return patches
