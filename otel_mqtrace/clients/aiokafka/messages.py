"""This module knows aiokafka's messages: what a consumed one says, and which headers can be added to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from aiokafka.errors import BrokerResponseError

from otel_mqtrace.hooks.consume import IncomingMessage

if TYPE_CHECKING:
    from aiokafka import ConsumerRecord

    from otel_mqtrace.clients.aiokafka.live import Cluster

__all__ = ["SEND_ORDER", "error_type", "incoming", "pairs_for_client"]

SEND_ORDER: Final = ("topic", "value", "key", "partition", "timestamp_ms", "headers")
"""The positional parameters of ``AIOKafkaProducer.send``."""
_NO_TIMESTAMP: Final = -1


def incoming(record: ConsumerRecord[Any, Any], cluster: Cluster | None) -> IncomingMessage:
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
        timestamp_ms=None if record.timestamp == _NO_TIMESTAMP else record.timestamp,
        store_host=None if cluster is None else cluster.leader_of(record.topic, record.partition),
        cluster_id=None if cluster is None else cluster.cluster_id,
    )


def pairs_for_client(headers: object) -> list[Any] | None:
    """Return the headers of a send as a list, or ``None`` for what no build of the client takes.

    Its C build takes a list of tuples and nothing else, its Python build other sequences too.
    """
    if headers is None:
        return []
    return list(headers) if isinstance(headers, (list, tuple)) else None


def error_type(exception: BaseException) -> str:
    """Return Kafka's own name of a broker's error (``NOT_LEADER_FOR_PARTITION``), else the exception's class."""
    if isinstance(exception, BrokerResponseError):
        return str(getattr(exception, "message", "") or type(exception).__qualname__)
    return type(exception).__qualname__
