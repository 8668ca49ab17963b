"""This module knows whether the patched classes trace at all, and what an aiokafka client says of itself.

Everything is asked of the client object, not of its constructor's arguments: a client that was made before
``instrument()`` is traced like any other. Partition leaders are in the client's memory, so nothing has to be looked up.
"""

from __future__ import annotations

import functools
import weakref
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from aiokafka import TopicPartition

from otel_mqtrace.config import remember_application_kafka_config
from otel_mqtrace.hooks._guard import guarded
from otel_mqtrace.hooks._left_behind import when_collected
from otel_mqtrace.hooks.tracing import ClientFacts

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_mqtrace.hooks.tracing import Tracing

__all__ = ["Cluster", "facts_of", "known_state", "live", "noting_cluster_id", "state_of"]

_STATE: Final = "_mqtrace_state"
"""The instance attribute that holds a client's tracing state."""
_CLUSTER_ID: Final = "_mqtrace_cluster_id"
"""The attribute of the client's cluster metadata that holds the cluster's id: the client itself forgets it."""
_DEFAULT_PORT: Final = 9092


class _Live:
    """The Tracing in force; ``None`` makes every patched class behave as if it had never been touched.

    ``begin()`` is called when a client comes into sight.
    """

    tracing: Tracing | None = None
    begin: Callable[[], None] | None = None


live: Final = _Live()


def known_state(client: Any) -> Any:
    """Return the client's state, or ``None`` when it has none yet."""
    return getattr(client, _STATE, None)


def state_of(client: Any, make: Callable[[Any], Any]) -> Any:
    """Return the client's state, made at its first traced call; its ``abandon`` is the finaliser."""
    state = known_state(client)
    if state is None:
        begin = live.begin
        if begin is not None:
            begin()
        state = make(client)
        client.__dict__[_STATE] = state
        when_collected(client, state.abandon)
    return state


def facts_of(connection: Any, *, group_name: str | None) -> ClientFacts:
    """Return what is true of every message of a client; ``connection`` is its ``AIOKafkaClient``."""
    known = _connection_settings(connection)
    remember_application_kafka_config(known)
    facts = ClientFacts.of_kafka(known, group_name=group_name)
    if facts.server_address is not None and facts.server_port is None:
        return replace(facts, server_port=_DEFAULT_PORT)
    return facts


def _connection_settings(connection: Any) -> dict[str, Any]:
    """Return the connection in the names of librdkafka's configuration. Holds secrets: never keep or log it."""
    servers = getattr(connection, "_bootstrap_servers", None) or ""
    conf = {
        "bootstrap.servers": servers if isinstance(servers, str) else ",".join(map(str, servers)),
        "client.id": getattr(connection, "_client_id", None),
    }
    protocol = str(getattr(connection, "_security_protocol", "PLAINTEXT"))
    if protocol != "PLAINTEXT":
        conf["security.protocol"] = protocol
    if protocol.startswith("SASL"):
        conf["sasl.mechanism"] = getattr(connection, "_sasl_mechanism", None)
        conf["sasl.username"] = getattr(connection, "_sasl_plain_username", None)
        conf["sasl.password"] = getattr(connection, "_sasl_plain_password", None)
    return {name: value for name, value in conf.items() if value is not None}


class Cluster:
    """The brokers as one client knows them, in memory; never asks anybody.

    It must not keep the client alive, whose coordinator listens to the metadata.
    """

    def __init__(self, metadata: Any) -> None:
        self._metadata = weakref.ref(metadata)

    @guarded("Cluster.leader_of")
    def leader_of(self, topic: str, partition: int) -> str | None:
        """Return ``host:port`` of the partition's leader, or ``None`` while it is not known."""
        metadata = self._metadata()
        if metadata is None:
            return None
        leader = metadata.broker_metadata(metadata.leader_for_partition(TopicPartition(topic, partition)))
        return None if leader is None else f"{leader.host}:{leader.port}"

    @property
    def cluster_id(self) -> str | None:
        """The cluster's id, once a metadata answer has told it."""
        return getattr(self._metadata(), _CLUSTER_ID, None)


def noting_cluster_id(original: Callable[..., Any]) -> Callable[..., Any]:
    """``ClusterMetadata.update_metadata``: every answer of a broker since Kafka 0.10.1 names its cluster."""

    @functools.wraps(original)
    def update_metadata(self: Any, metadata: Any) -> Any:
        result = original(self, metadata)
        cluster_id = getattr(metadata, "cluster_id", None)
        if cluster_id:
            setattr(self, _CLUSTER_ID, cluster_id)
        return result

    return update_metadata
