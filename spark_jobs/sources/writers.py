"""Detect who wrote the spans and the native records, from the first of them in each file or topic."""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from bridge.otlp.containers import first_messages
from bridge.otlp.detect import Layout
from bridge.otlp.spans import parse_message, spans_of
from otel_mqtrace import semconv
from otel_mqtrace.message_id import read_offset_id
from otel_mqtrace.model import TraceType
from otel_mqtrace.wire.native.decode import decode_body
from otel_mqtrace.wire.native.guess import WriterGuesses
from otel_mqtrace.wire.native.layout import DIALECTS, absent
from spark_jobs.policy.profiles import BY_DESIGN, CALL_WITHOUT_REGION
from spark_jobs.sources.kafka import messages_in
from spark_jobs.sources.native import first_bodies

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from otel_mqtrace.model import TraceContext
    from otel_mqtrace.wire.native.guess import Guess
    from spark_jobs.sources.files import SourceFile
    from spark_jobs.sources.kafka import PartitionRange

MOST_SPANS: Final = 2_000
"""Spans of a file that are looked at, at most."""
MOST_MESSAGING_SPANS: Final = 200
"""Spans about messages after which a file needs no more."""
MOST_RECORDS: Final = 1_000
"""Native records of a file that are looked at, at most."""
_MOST_TOPIC_MESSAGES: Final = 100  # of each partition
_MOST_PARTITIONS: Final = 4
_OWN_SCOPE: Final = "otel_mqtrace"
_FORWARDER_SCOPE: Final = "bridge.forwarder"
_OWN_ATTRIBUTES: Final = "mqtrace."
_AGENT_SCOPES: Final = "io.opentelemetry."
_MESSAGING: Final = "messaging."
_GRPC_ID_DIGITS: Final = 34  # of a message id that RocketMQ 5's gRPC clients make; those have no native trace


class _SpanWriter(NamedTuple):
    """Who wrote a span about a message: ``mqtrace``, ``java-agent`` or ``other``, and its instrumentation scope."""

    name: str
    scope: str


@dataclass(slots=True)
class SpanSigns:
    """What the first spans of one file or topic show of their writers."""

    spans: int = 0
    writers: Counter[_SpanWriter] = field(default_factory=Counter)

    @property
    def names(self) -> frozenset[str]:
        """The writers of spans about messages."""
        return frozenset(writer.name for writer in self.writers)

    @property
    def are_own(self) -> bool:
        """Return whether our instrumentation wrote some of them; what was made of native records is not its own."""
        return any(writer.name == "mqtrace" and writer.scope != _FORWARDER_SCOPE for writer in self.writers)

    @property
    def is_enough(self) -> bool:
        """Return whether nothing more needs to be read."""
        return self.spans >= MOST_SPANS or self.writers.total() >= MOST_MESSAGING_SPANS

    @classmethod
    def of(cls, payloads: Iterable[bytes]) -> SpanSigns:
        """Return what OTLP messages show, of which no more are read than it takes."""
        return cls.of_parsed(parse_message(payload) or [] for payload in payloads)

    @classmethod
    def of_parsed(cls, messages: Iterable[list[Any]]) -> SpanSigns:
        """Return what messages show that ``spans.parse_message`` has read."""
        signs = cls()
        for message in messages:
            signs._take(spans_of(message))
            if signs.is_enough:
                break
        return signs

    def _take(self, spans: Iterable[Mapping[str, Any]]) -> None:
        for span in spans:
            self.spans += 1
            if span["bad"] is None and (writer := _writer_of(span)) is not None:
                self.writers[writer] += 1
            if self.is_enough:
                return


def _writer_of(span: Mapping[str, Any]) -> _SpanWriter | None:
    scope, names = span["scope"] or "", span["attributes"]
    if scope == _OWN_SCOPE or any(name.startswith(_OWN_ATTRIBUTES) for name in names):
        return _SpanWriter("mqtrace", scope)
    if not any(name.startswith(_MESSAGING) for name in names):
        return None
    if scope.startswith(_AGENT_SCOPES):
        return _SpanWriter("java-agent", scope)
    return _SpanWriter("other", scope) if scope and semconv.MESSAGING_SYSTEM in names else None


@dataclass(slots=True)
class RecordSigns:
    """Evidence of the writer in the first native records of one file or topic.

    Attributes:
        records: good records looked at.
        broker_ids: sends with the offset id of a RocketMQ broker.
        kafka_places: sends with ``topic-partition@offset`` instead, which only our hooks write.
        grpc_ids: sends with the id of a RocketMQ 5 gRPC client; only our hooks record those.
        without_region: deliveries without a region.
    """

    records: int = 0
    broker_ids: int = 0
    kafka_places: int = 0
    grpc_ids: int = 0
    without_region: int = 0
    _guesses: WriterGuesses = field(default_factory=WriterGuesses)
    _groups_without_region: set[str | None] = field(default_factory=set)

    @property
    def names(self) -> frozenset[str]:
        """The writers that the records are certainly of: ``mqtrace``, ``rocketmq``, both or none."""
        own = self.kafka_places + self.grpc_ids > 0
        theirs = self.broker_ids > 0 or (self.without_region > 0 and not own)
        return frozenset(name for name, is_seen in (("mqtrace", own), ("rocketmq", theirs)) if is_seen)

    @classmethod
    def of(cls, bodies: Iterable[bytes], *, charset: str = "utf-8") -> RecordSigns:
        """Return what bodies show, of which no more are read than it takes."""
        signs = cls()
        for body in bodies:
            decoded = decode_body(body, charset=charset)
            signs._guesses.take(decoded)
            for trace_ctx in decoded.contexts:
                signs._count(trace_ctx)
            if signs.records >= MOST_RECORDS:
                break
        return signs

    def _count(self, trace_ctx: TraceContext) -> None:
        self.records += 1
        bean = trace_ctx.beans[0]
        if trace_ctx.trace_type is TraceType.PUB:
            self.broker_ids += _is_broker_id(bean.offset_msg_id or "")
            self.kafka_places += _is_kafka_place(bean.offset_msg_id or "")
            self.grpc_ids += len(bean.msg_id or "") == _GRPC_ID_DIGITS and (bean.msg_id or "").isalnum()
        elif trace_ctx.trace_type is TraceType.SUB_BEFORE and absent(trace_ctx.region_id):
            self.without_region += 1
            self._groups_without_region.add(trace_ctx.group_name)

    def release(self) -> tuple[int, ...] | None:
        """Return the RocketMQ release to judge by; ``None`` stands for the newest, which nothing rules out.

        Of several groups the oldest release counts. Of several releases that fit a group, a rule boundary between
        them, those before it count; the newest of them is named.
        """
        found = (
            _release_of(guess, has_no_region=guess.group_name in self._groups_without_region)
            for guess in self._guesses.guesses()
        )
        return min((release for release in found if release is not None), default=None)


_Release = tuple[int, ...]


def _read_release(text: str) -> _Release:
    return tuple(int(part) for part in text.split("."))


_RELEASES: Final[dict[str, tuple[_Release, _Release]]] = {
    name: (_read_release(name), _read_release(dialect.releases.replace("-", ", ").split(", ")[-1]))
    for name, dialect in DIALECTS.items()
}
"""The first and the last release of each dialect."""
_NEWEST: Final = max(last for _, last in _RELEASES.values())
_BOUNDARIES: Final = sorted({bound for rule in BY_DESIGN for bound in (rule.since, rule.until) if bound})
"""The releases at which a rule begins or ends: between two of them every release is judged alike."""


def _release_of(guess: Guess, *, has_no_region: bool) -> _Release | None:
    fitting = [_RELEASES[name] for name in guess.writers if name in _RELEASES]
    if has_no_region:  # later clients record no call whose message has no region
        fitting = [(first, last) for first, last in fitting if first < CALL_WITHOUT_REGION.since]
    if not fitting or max(fitting)[1] == _NEWEST:
        return None
    oldest = _generation(min(fitting)[0])
    return max(last for first, last in fitting if _generation(first) == oldest)


def _generation(release: _Release) -> int:
    return sum(release >= bound for bound in _BOUNDARIES)


def _is_broker_id(text: str) -> bool:
    return bool(text) and all(read_offset_id(one) is not None for one in text.split(","))


def _is_kafka_place(text: str) -> bool:
    place, at, offset = text.rpartition("@")
    return bool(at) and offset.isdecimal() and place.rpartition("-")[2].isdecimal()


def sample_spans(file: SourceFile) -> SpanSigns:
    """Return what the first spans of a file show."""
    if file.layout is Layout.EMPTY:
        return SpanSigns()
    messages = first_messages(file.path, file.layout, parse=parse_message)
    return SpanSigns.of_parsed(message.content for message in messages)


def sample_records(file: SourceFile, *, charset: str = "utf-8") -> RecordSigns:
    """Return what the first records of a file show."""
    return RecordSigns() if file.layout is Layout.EMPTY else RecordSigns.of(first_bodies(file), charset=charset)


def sample_span_topic(ranges: Sequence[PartitionRange], client_config: Mapping[str, str]) -> SpanSigns:
    """Return what the first messages of some partitions of a topic of spans show.

    Raises:
        PeerError: the broker stopped answering, or refuses.
    """
    return SpanSigns.of(_first_values(ranges, client_config))


def sample_record_topic(
    ranges: Sequence[PartitionRange], client_config: Mapping[str, str], *, charset: str
) -> RecordSigns:
    """Return what the first messages of some partitions of a trace topic show; raises as ``sample_span_topic``."""
    return RecordSigns.of(_first_values(ranges, client_config), charset=charset)


def _first_values(ranges: Sequence[PartitionRange], client_config: Mapping[str, str]) -> Iterator[bytes]:
    for one in [one for one in ranges if one.first < one.end][:_MOST_PARTITIONS]:
        with closing(messages_in(one, client_config)) as messages:
            for message in islice(messages, _MOST_TOPIC_MESSAGES):
                if message["value"]:
                    yield message["value"]
