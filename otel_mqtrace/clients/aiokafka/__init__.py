"""Patch aiokafka and restore it: methods of its classes, changed in place.

They are plain Python classes, so every reference and every subclass sees the change. Where another instrumentation has
wrapped a method, ours wraps it again and is removed first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.cluster import ClusterMetadata

from otel_mqtrace.clients.aiokafka import client, consumer, producer
from otel_mqtrace.clients.consumer_state import traced_async_close
from otel_mqtrace.clients.patching import Patches, call_after, find_wrapper

if TYPE_CHECKING:
    from collections.abc import Mapping

    from otel_mqtrace.clients.patching import Wrappers
    from otel_mqtrace.hooks.tracing import Tracing

_PATCHED: Final[Mapping[type[Any], Wrappers]] = {
    AIOKafkaProducer: {
        "send": producer.traced_send,
        "_serialize": producer.traced_serialize,
        "stop": producer.traced_stop,
        "create_batch": producer.traced_create_batch,
        "send_batch": producer.traced_send_batch,
        **producer.TRANSACTION_METHODS,
        "send_offsets_to_transaction": producer.traced_send_offsets,
    },
    AIOKafkaConsumer: {
        "getone": consumer.traced_getone,
        "getmany": consumer.traced_getmany,
        "commit": consumer.traced_commit,
        "stop": traced_async_close,
        "__aexit__": traced_async_close,
    },
    ClusterMetadata: {"update_metadata": call_after(client.record_cluster_id)},
}
"""Class → method → how to wrap it. What is not here goes through one that is: ``send_and_wait``, ``__anext__``."""


class ClientPatches(Patches):
    """The changes made to aiokafka by one ``instrument()``; a client made before is traced."""

    name = "aiokafka"
    active = client.active
    source = client.registry
    ending = (client.registry.clear,)

    def patch(self, tracing: Tracing) -> None:
        """Wrap the methods."""
        del tracing
        for owner, methods in _PATCHED.items():
            self.wrap_methods(owner, methods)

    @staticmethod
    def find_conflict() -> str | None:
        """Return the other instrumentation at work in the client and how to switch it off, or ``None``."""
        methods = (vars(owner).get(name) for owner, wrapped in _PATCHED.items() for name in wrapped)
        return find_wrapper("aiokafka", "aiokafka", methods)
