"""This module knows an incoming message: what its client tells of it, and what it says on a span or a link."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from otel_mqtrace import semconv
from otel_mqtrace.hooks._headers import Header, HeaderIndex, header_text, indexed
from otel_mqtrace.hooks._message import key_text, place_attributes, say_given, say_headers, say_rocketmq
from otel_mqtrace.hooks._propagation import origin_of
from otel_mqtrace.hooks._unread import PlainLink
from otel_mqtrace.model import ContextCode, MessageType, TraceType
from otel_mqtrace.records.batch import BatchMessage, encode_links, encode_records, shared_attributes
from otel_mqtrace.records.handled import DESCRIBING, VARYING
from otel_mqtrace.records.span import NativeRecord
from otel_mqtrace.spans.mapping import Attributes, SpanAttributes, share_attributes
from otel_mqtrace.wire.native.encode import RecordTemplate, record_template
from otel_mqtrace.wire.otlp.sdk_spans import encode_attributes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from opentelemetry.trace import SpanContext

    from otel_mqtrace.hooks._propagation import PropagatorInForce
    from otel_mqtrace.hooks.tracing import ClientFacts, Tracing

__all__ = ["IncomingMessage", "MessageReader", "Reading"]

_UNUSUAL: Final = DESCRIBING | {semconv.HEADER_DELAY, "tracestate", "baggage"}
"""Headers of which a record of a batch has no place."""
_MOST_KEY_BYTES: Final = 16_384
"""Of one body: below the bound of a trace message's ``KEYS``."""
_MOST_RETRIES: Final = 0x7FFF_FFFF
"""RocketMQ's count is a Java int."""
_RETRY_DIGITS: Final = 10
_NORMAL: Final = MessageType.NORMAL.value
_OWN_IN_A_BATCH: Final = (semconv.MESSAGING_KAFKA_OFFSET, semconv.MESSAGING_KAFKA_MESSAGE_KEY)
"""What never stands on the span of a call that may return several messages, not even when it returned one.

OpenTelemetry's Java instrumentation has the same rule (its ``KafkaBatchRecordAttributes``): readers of batch spans need
look for it in one place only.
"""


@dataclass(slots=True)  # not frozen, nor by keyword only: that would make one three times as dear to build
class IncomingMessage:
    """One message as the client handed it over; ``body_length`` in bytes, ``timestamp_ms`` when it was stored.

    Give each field by its name; a client of ours gives the first ten by position, for it does so for every message.

    ``store_host`` is the broker it came from (``host:port``); unknown, the client's first server stands for it.
    What is given of ``msg_id``, ``tags``, ``keys``, ``msg_type`` and ``retry_times`` (deliveries before this one) wins
    over the message's headers. ``message_group`` is the group of a RocketMQ FIFO message.
    """

    topic: str
    partition: int | None = None
    offset: int | None = None
    key: object = None
    body_length: int | None = None
    tombstone: bool = False
    headers: Sequence[Header] = ()
    timestamp_ms: int | None = None
    store_host: str | None = None
    cluster_id: str | None = None
    _: KW_ONLY
    msg_id: str | None = None
    tags: str | None = None
    keys: Sequence[str] | None = None
    msg_type: MessageType | None = None
    retry_times: int | None = None
    message_group: str | None = None


class MessageReader:
    """Puts messages of one client into the names of the mapping's table."""

    def __init__(self, tracing: Tracing, facts: ClientFacts) -> None:
        self._server = facts.server
        self._is_rocketmq = facts.is_rocketmq
        self._retry_header = tracing.settings.retry_header
        self._capture = tracing.capture

    def split(
        self, messages: Sequence[IncomingMessage], found: Sequence[HeaderIndex], *, batch: bool
    ) -> SpanAttributes:
        """Return what the messages say: on the span what is equal for all, else on the link of each."""
        split = share_attributes(list(map(self.attributes, messages, found)))
        if split.links or not batch:
            return split
        own: Attributes = {name: split.span.pop(name) for name in _OWN_IN_A_BATCH if name in split.span}
        return SpanAttributes(split.span, (own,) if own else ())

    def attributes(self, message: IncomingMessage, found: HeaderIndex) -> Attributes:
        """Return what one message says of itself; a TraceBean in between would cost more than the rest."""
        topic = message.topic
        said = place_attributes(topic, message.partition, message.offset)
        # RocketMQ's getMsgId() has the same fall-back: a message without a unique id goes by its physical one.
        msg_id = (
            message.msg_id or header_text(found, semconv.HEADER_UNIQ_KEY) or said.get(semconv.MQTRACE_OFFSET_MSG_ID)
        )
        said[semconv.MESSAGING_DESTINATION_NAME] = topic
        retries = message.retry_times
        said[semconv.MQTRACE_RETRY_TIMES] = (
            _counted(found, self._retry_header) if retries is None else _bounded(retries)
        )
        said[semconv.MQTRACE_MSG_TYPE] = _NORMAL
        if found:
            say_headers(said, found)
        if msg_id is not None:
            said[semconv.MESSAGING_MESSAGE_ID] = msg_id
        if (host := message.store_host or self._server) is not None:
            said[semconv.MQTRACE_STORE_HOST] = host
        if message.timestamp_ms is not None:
            said[semconv.MQTRACE_STORE_TIME] = message.timestamp_ms
        if message.body_length is not None:
            said[semconv.MESSAGING_MESSAGE_BODY_SIZE] = message.body_length
        if (key := key_text(message.key)) is not None:
            said[semconv.MESSAGING_KAFKA_MESSAGE_KEY] = key
        if message.tombstone:
            said[semconv.MESSAGING_KAFKA_MESSAGE_TOMBSTONE] = True
        self._say_more(said, message, found)
        return said

    @property
    def is_usual(self) -> bool:
        """Whether no setting and no system asks for more of a message than a record has a place for."""
        return self._capture is None and not self._is_rocketmq

    def said_of_all(self) -> Attributes:
        """Return what every usual message says."""
        return {semconv.MQTRACE_RETRY_TIMES: 0, semconv.MQTRACE_MSG_TYPE: _NORMAL}

    def batch_message(self, message: IncomingMessage) -> BatchMessage | None:
        """Return what a message of a batch says, of the same names and values as :meth:`attributes`.

        ``None`` where it says anything else.
        """
        partition, offset, found = message.partition, message.offset, indexed(message.headers)
        if partition is None or offset is None or partition < 0 or offset < 0:
            return None
        if not _UNUSUAL.isdisjoint(found) or self._retry_header in found:
            return None
        given = (message.msg_id, message.tags, message.keys, message.msg_type, message.retry_times)
        read = origin_of(found)
        if read is None or any(each is not None for each in given):
            return None
        offset_id = f"{message.topic}-{partition}@{offset}"
        return BatchMessage(
            header_text(found, semconv.HEADER_UNIQ_KEY) or offset_id,
            offset,
            offset_id,
            key_text(message.key),
            read[0],
            str(partition),
            message.store_host or self._server,
            message.timestamp_ms,
            message.body_length,
            True if message.tombstone else None,
            message.cluster_id,
        )

    def template(self, constant: Attributes, topic: str, dialect: str, *, ended: bool) -> RecordTemplate | None:
        """Return the native record of a usual message; ``None`` where it must be encoded as a whole."""
        region_id, group_name = constant.get(semconv.MQTRACE_REGION_ID), constant.get(semconv.MQTRACE_GROUP_NAME)
        if region_id is None or group_name is None or not topic.isprintable():
            return None
        trace_type = TraceType.SUB_AFTER if ended else TraceType.SUB_BEFORE
        return _template(dialect, trace_type, str(region_id), str(group_name), topic)

    def _say_more(self, said: Attributes, message: IncomingMessage, found: HeaderIndex) -> None:
        """Add what few clients tell and few settings ask for."""
        if message.cluster_id is not None:
            said[semconv.MESSAGING_KAFKA_CLUSTER_ID] = message.cluster_id
        if message.tags is not None or message.keys or message.msg_type is not None:
            say_given(said, tags=message.tags, keys=message.keys, msg_type=message.msg_type)
        if self._capture is not None and message.headers:
            said.update(self._capture.attributes(message.headers))
        if self._is_rocketmq:
            say_rocketmq(said, found, message_group=message.message_group)


@dataclass(slots=True)
class Reading:
    """What the messages of one listener call say on its span and on its links: put together when somebody reads it.

    Until then the messages must not change. ``propagator`` tells what each was created in, but for one that comes alone
    where ``creation`` does; ``constant`` is what stands on the span whatever they say, ``others`` are further links;
    ``linked`` asks for a link to what each was created in, ``new_id`` makes a request id of the span's own, ``most``
    bounds the links to messages.
    """

    reader: MessageReader
    messages: Sequence[IncomingMessage]
    propagator: PropagatorInForce
    constant: Attributes
    others: Sequence[PlainLink]
    batch: bool
    linked: bool = True
    creation: SpanContext | None = None
    new_id: Callable[[], str] | None = None
    most: int | None = None
    _said: tuple[Attributes, list[PlainLink]] | None = None
    _rows: list[BatchMessage] | None = None

    def __call__(self) -> tuple[Attributes, list[PlainLink]]:
        """Return the attributes and the links of the span; a start and its end say the same."""
        messages = self.messages  # before the look: another thread lets go of them only when it is done
        said = self._said
        if said is None:
            said = self._said = self._put_together(messages)
            self.messages = ()  # what they carry need not wait any longer
        return said

    def to_native(self, dialect: str, start_ns: int, end_ns: int | None, outcome: Attributes) -> NativeRecord | None:
        """Return the records of a batch, started or ended with success; ``None`` where they are not the usual ones."""
        messages = self._batch_messages()
        if messages is None or not all(each.msg_id.isascii() and each.msg_id.isprintable() for each in messages):
            return None
        request_id, topic = str(self._request_id()), self.messages[0].topic if self.messages else ""
        template = self.reader.template(self.constant, topic, dialect, ended=end_ns is not None)
        cost = outcome.get(semconv.MQTRACE_COST_TIME, 0)
        if template is None or not isinstance(cost, int) or not 0 <= cost < _MOST_RETRIES:
            return None
        stamp_ns = start_ns if end_ns is None else end_ns
        body = encode_records(messages, template, stamp_ms=stamp_ns // 1_000_000, request_id=request_id, cost_ms=cost)
        keys = frozenset(each.msg_id for each in messages)
        if sum(map(len, keys)) > _MOST_KEY_BYTES:
            return None
        return NativeRecord(topic, str(self.constant[semconv.MQTRACE_REGION_ID]), body, keys)

    def to_otlp(self, outcome: Attributes) -> list[bytes] | None:
        """Return attributes and links of the span of a batch as fields; ``None`` where they are not the usual ones."""
        messages = self._batch_messages()
        if messages is None:
            return None
        self._request_id()
        shared, own = shared_attributes(messages)
        attributes = {**shared, **self.reader.said_of_all(), **self.constant, **outcome}
        return [encode_attributes(attributes), *encode_links(messages, own)]

    def _request_id(self) -> object:
        """Draw the request id in one step: a start and its end may be read by two threads at once."""
        if self.new_id is None:
            return self.constant.get(semconv.MQTRACE_REQUEST_ID)
        return self.constant.setdefault(semconv.MQTRACE_REQUEST_ID, self.new_id())

    def _batch_messages(self) -> list[BatchMessage] | None:
        """Return what the messages of a batch say; ``None`` where one says more than a record has a place for."""
        known = self._rows
        if known is None:
            messages = self.messages
            if self._said is not None or not self.is_plain_batch or len(messages) < 2:  # noqa: PLR2004 - one shares nothing
                return None
            read = [self.reader.batch_message(each) for each in messages]
            known = self._rows = [each for each in read if each is not None]
        return known if known and len(known) == len(self.messages) else None

    @property
    def is_plain_batch(self) -> bool:
        """Whether the span of several messages says of them what it usually does."""
        return (
            self.batch
            and self.linked
            and not self.others
            and self.most is None
            and self.creation is None
            and self.propagator.is_default
            and self.reader.is_usual
        )

    def _put_together(self, messages: Sequence[IncomingMessage]) -> tuple[Attributes, list[PlainLink]]:
        # In one step, for a start and its end may be read by two threads at once; first, for what follows may fail.
        if self.new_id is not None:
            self.constant.setdefault(semconv.MQTRACE_REQUEST_ID, self.new_id())
        found = [indexed(each.headers) for each in messages]
        alone = self.creation
        creations = list(map(self.propagator.creation_of, found)) if alone is None else [alone]
        split = self.reader.split(messages, found, batch=self.batch)
        if split.links:
            links = [PlainLink(creation, own) for creation, own in zip(creations, split.links, strict=True)]
        else:
            links = [PlainLink(creation) for creation in creations if creation.is_valid] if self.linked else []
        return split.span | self.constant, [*links[: self.most], *self.others]


@lru_cache(maxsize=256)
def _template(
    dialect: str, trace_type: TraceType, region_id: str, group_name: str, topic: str
) -> RecordTemplate | None:
    constants = {
        "region_id": region_id,
        "group_name": group_name,
        "topic": topic,
        "tags": None,
        "keys": None,
        "retry_times": 0,
        "success": True,
        "context_code": ContextCode.SUCCESS,
        "msg_type": MessageType.NORMAL,
    }
    return record_template(dialect, trace_type, constants, VARYING)


def _counted(found: HeaderIndex, name: str) -> int:
    text = header_text(found, name) if found else None
    if text is None or len(text) > _RETRY_DIGITS or not (text.isascii() and text.isdigit()):
        return 0
    return _bounded(int(text))


def _bounded(count: int) -> int:
    return count if 0 <= count <= _MOST_RETRIES else 0
