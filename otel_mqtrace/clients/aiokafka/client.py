"""Facts of an aiokafka client, its messages and its errors.

Everything is read from the client object, not from its constructor's arguments: a client that was made before
``instrument()`` is traced like any other. Partition leaders are in the client's memory, so nothing has to be looked up.
"""

from __future__ import annotations

import weakref
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import aiokafka
from aiokafka import ConsumerRecord, TopicPartition
from aiokafka.errors import BrokerResponseError

from otel_mqtrace.client_properties import remember_application_kafka_config
from otel_mqtrace.clients.settlement import continue_from
from otel_mqtrace.clients.state import ActiveTracing, MessageRegistry
from otel_mqtrace.hooks.attributes import IncomingMessage
from otel_mqtrace.hooks.guard import guarded
from otel_mqtrace.hooks.outcome import text_of
from otel_mqtrace.hooks.tracing import ClientInfo

if TYPE_CHECKING:
    from otel_mqtrace.clients.settlement import FindCreation
    from otel_mqtrace.hooks.settle import SettledOffset

active: Final = ActiveTracing()
_CLUSTER_ID: Final = "_mqtrace_cluster_id"
"""The attribute of the client's cluster metadata that holds the cluster's id: the client itself forgets it."""
_DEFAULT_PORT: Final = 9092
_MAX_LEADERS: Final = 4_096
_NO_TIMESTAMP: Final = -1
_REFUSES_OTHER_EMPTY: Final = aiokafka.__version__.startswith(("0.10.", "0.11.", "0.12."))


def info_of(connection: Any, *, group_name: str | None) -> ClientInfo:
    """Return what is true of every message of a client; ``connection`` is its ``AIOKafkaClient``."""
    known = _connection_settings(connection)
    remember_application_kafka_config(known)
    info = ClientInfo.of_kafka(known, group_name=group_name)
    if info.server_address is not None and info.server_port is None:
        return replace(info, server_port=_DEFAULT_PORT)
    return info


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
    """The brokers in one client's metadata, in memory; never sends a request.

    It must not keep the client alive, whose coordinator listens to the metadata; after the client is gone, the last
    values stay.
    """

    def __init__(self, metadata: Any) -> None:
        self._metadata = weakref.ref(metadata)
        self._leaders: dict[tuple[str, int], str | None] = {}
        self._cluster_id: str | None = None

    @guarded("Cluster.of")
    def of(self, topic: str | None, partition: int | None) -> str | None:
        """Return ``host:port`` of the partition's leader, or ``None`` while it is not known."""
        if topic is None or partition is None:
            return None
        metadata = self._metadata()
        if metadata is None:
            return self._leaders.get((topic, partition))
        self._cluster_id = getattr(metadata, _CLUSTER_ID, None)
        leader = metadata.broker_metadata(metadata.leader_for_partition(TopicPartition(topic, partition)))
        host = None if leader is None else f"{leader.host}:{leader.port}"
        if len(self._leaders) >= _MAX_LEADERS:
            self._leaders.clear()
        self._leaders[topic, partition] = host
        return host

    @property
    def cluster_id(self) -> str | None:
        """The cluster's id, once a metadata response has named it."""
        return getattr(self._metadata(), _CLUSTER_ID, self._cluster_id)

    def want(self, topic: str) -> None:
        """Do nothing: the client itself looks up the leaders of a topic it is used for."""


def record_cluster_id(cluster: Any, args: tuple[Any, ...], kwargs: dict[str, Any], _result: Any) -> None:
    """Keep what ``ClusterMetadata.update_metadata`` was given: every response since Kafka 0.10.1 names the cluster."""
    cluster_id = getattr(args[0] if args else kwargs.get("metadata"), "cluster_id", None)
    if cluster_id:
        setattr(cluster, _CLUSTER_ID, cluster_id)


def incoming(record: ConsumerRecord[Any, Any], cluster: Cluster | None = None) -> IncomingMessage:
    """Return what the hook needs of a record; sizes are those on the wire, whatever a deserialiser made of it."""
    size = record.serialized_value_size
    return IncomingMessage(
        topic=record.topic,
        partition=record.partition,
        offset=record.offset,
        key=record.key,
        body_length=max(size, 0),
        tombstone=size < 0,
        headers=record.headers,
        timestamp_ms=stored_at_ms(record),
        store_host=None if cluster is None else cluster.of(record.topic, record.partition),
        cluster_id=None if cluster is None else cluster.cluster_id,
    )


def stored_at_ms(record: ConsumerRecord[Any, Any]) -> int | None:
    """Return when a record was stored, in milliseconds of the epoch."""
    stored: int = record.timestamp
    return None if stored == _NO_TIMESTAMP else stored


registry: Final = MessageRegistry(
    active,
    is_message=lambda candidate: isinstance(candidate, ConsumerRecord),
    position_of=lambda record: (record.topic, record.partition, record.offset),
    incoming=incoming,
)


def header_pairs(headers: object) -> list[Any] | None:
    """Return the headers of a send as a list, or ``None`` for what no build of the client takes.

    Its C build takes a list of tuples and nothing else, its Python build other sequences too; since 0.13 each takes
    anything empty for no headers.
    """
    if not headers:
        return None if _REFUSES_OTHER_EMPTY and not isinstance(headers, (list, type(None))) else []
    return list(headers) if isinstance(headers, (list, tuple)) else None


def describe_failure(exception: BaseException) -> dict[str, Any]:
    """Return a hook's arguments for an error: a broker's has Kafka's own name (``NOT_LEADER_FOR_PARTITION``)."""
    name = getattr(exception, "message", "") if isinstance(exception, BrokerResponseError) else ""
    error = str(name or type(exception).__qualname__)
    return {"error": error, "description": text_of(exception), "exception": exception}


def settled_offsets(offsets: Any, find_creation: FindCreation) -> list[SettledOffset]:
    """Read ``TopicPartition → offset | (offset, metadata)``; what is not of that form is left out."""
    settled = []
    for partition, given in getattr(offsets, "items", tuple)():  # the client refuses anything else itself
        offset = given[0] if isinstance(given, (tuple, list)) and given else given
        if isinstance(partition, TopicPartition) and isinstance(offset, int):
            settled.append(continue_from(partition.topic, partition.partition, offset, find_creation))
    return settled
