"""The common fields of all messages of one client and topic, computed once."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from opentelemetry.trace import SpanKind

from otel_mqtrace import semconv
from otel_mqtrace.model import TraceType
from otel_mqtrace.records.span import SpanShape
from otel_mqtrace.wire.native.encode import RecordTemplate, make_record_template
from otel_mqtrace.wire.otlp.protobuf import BoundedCache
from otel_mqtrace.wire.otlp.sdk_spans import encode_attributes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from opentelemetry.util.types import AttributeValue

    from otel_mqtrace.spans.mapping import Operation


_MAX_PLACES: Final = 4_096
_HANDLED: Final = ("timestamp_ms", "msg_id", "request_id", "cost_ms")
_VARYING: Final[Mapping[TraceType, tuple[str, ...]]] = {
    TraceType.PUB: ("timestamp_ms", "msg_id", "offset_msg_id", "body_length", "cost_ms"),
    TraceType.SUB_BEFORE: _HANDLED,
    TraceType.SUB_AFTER: _HANDLED,
}
"""The values that a native record's template is filled with, in their order."""


class LeaderSource(Protocol):
    """The leaders of partitions, as far as they are known now."""

    @property
    def cluster_id(self) -> str | None:
        """The cluster's own id."""

    def of(self, topic: str | None, partition: int | None) -> str | None:
        """Return ``host:port`` of the leader."""

    def want(self, topic: str) -> None:
        """Have the leaders of ``topic`` looked up."""


class Place(NamedTuple):
    """What all messages of a partition have in common, as long as its leader stays."""

    attributes: bytes
    templates: BoundedCache[tuple[str, bool], RecordTemplate | None]
    """Dialect, whether the event has ended → its template; ``None``: encode the record as a whole."""
    store_host: str | None
    cluster_id: str | None
    offset_id: str
    """The text before the offset in an offset message id."""
    named: dict[str, AttributeValue]
    """The attributes by name, those of the plan included."""


class Plan(SpanShape):
    """The common fields of all messages of one client and topic.

    ``state`` is the tracer's that the plan was made for; another state needs another plan. ``constants`` and ``native``
    are the attributes and the fields of a native record (by the model's names) that never change. ``server`` is the
    store host while ``leaders`` have none. ``make_batch`` returns all attributes and links of the span of several
    messages. Messages with the ``retry_header`` are encoded as a whole.
    """

    def __init__(  # noqa: PLR0913 - collaborators by their names
        self,
        operation: Operation,
        topic: str,
        *,
        state: Any,
        constants: Mapping[str, AttributeValue],
        native: Mapping[str, Any],
        leaders: LeaderSource | None,
        server: str | None,
        new_id: Callable[[], str],
        make_batch: Callable[[Any], Any] | None = None,
        retry_header: str = "",
    ) -> None:
        super().__init__(state.tracer, operation.span_name(topic), operation.kind, constants)
        self.topic = topic
        self.state = state
        self.region_id = constants.get(semconv.MQTRACE_REGION_ID)
        self.group = topic, str(self.region_id)
        """What its native records are grouped by: topic and region."""
        self.make_batch: Any = make_batch
        self.retry_header = retry_header
        self.new_id = new_id
        self._native = {
            "region_id": self.region_id,
            "group_name": constants.get(semconv.MQTRACE_GROUP_NAME),
            "topic": topic,
            "tags": None,
            "keys": None,
            "client_host": constants.get(semconv.MQTRACE_CLIENT_HOST),
            **native,
        }
        self._leaders = leaders
        self._server = server
        self._places: dict[int, Place] = {}

    def place_of(self, partition: int) -> Place:
        """Return what all messages of ``partition`` have in common, with the leader and the cluster's id known now."""
        store_host, cluster_id, leaders = self._server, None, self._leaders
        if leaders is not None:
            store_host, cluster_id = leaders.of(self.topic, partition) or store_host, leaders.cluster_id
        place = self._places.get(partition)
        if place is None or place.store_host != store_host or place.cluster_id != cluster_id:
            place = self._make_place(partition, store_host, cluster_id)
            if len(self._places) >= _MAX_PLACES:
                self._places.clear()
            self._places[partition] = place
        return place

    def _make_place(self, partition: int, store_host: str | None, cluster_id: str | None) -> Place:
        named = {**self.constants, semconv.MESSAGING_DESTINATION_PARTITION_ID: str(partition)}
        if store_host is not None:
            named[semconv.MQTRACE_STORE_HOST] = store_host
        if cluster_id is not None:
            named[semconv.MESSAGING_KAFKA_CLUSTER_ID] = cluster_id
        templates = BoundedCache(partial(self._make_template, store_host))
        return Place(encode_attributes(named), templates, store_host, cluster_id, f"{self.topic}-{partition}@", named)

    def _make_template(self, store_host: str | None, record: tuple[str, bool]) -> RecordTemplate | None:
        dialect, has_ended = record
        trace_type = TraceType.SUB_AFTER if has_ended else TraceType.SUB_BEFORE
        if self.kind is SpanKind.PRODUCER:
            trace_type = TraceType.PUB
        constants = {**self._native, "store_host": store_host}
        is_plain = self.topic.isprintable()
        return make_record_template(dialect, trace_type, constants, _VARYING[trace_type]) if is_plain else None
