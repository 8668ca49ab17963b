"""Detect who wrote the spans and the native records, from the first of them in each file or topic."""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from bridge.otlp.containers import first_messages
from bridge.otlp.detect import Layout
from bridge.otlp.roles import AGENT_SCOPES
from bridge.otlp.spans import parse_message, spans_of
from bridge.page.wording import visible
from otel_mqtrace import semconv
from otel_mqtrace._errors import UsageError
from otel_mqtrace.message_id import read_offset_id
from otel_mqtrace.model import TraceType
from otel_mqtrace.wire.native.decode import decode_body
from otel_mqtrace.wire.native.guess import WriterGuesses
from otel_mqtrace.wire.native.layout import DIALECTS, absent
from spark_jobs.policy.profiles import AUTO, BY_DESIGN, CALL_WITHOUT_REGION, MIXED
from spark_jobs.sources.kafka import messages_in
from spark_jobs.sources.native import first_bodies

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from bridge.addresses import Address
    from otel_mqtrace.model import TraceContext
    from otel_mqtrace.wire.native.guess import Guess
    from otel_mqtrace.wire.native.layout import Release
    from spark_jobs.jobs.reading import ReadOptions
    from spark_jobs.sources.files import SourceFile, SourceSet
    from spark_jobs.sources.kafka import PartitionRange

MOST_SPANS: Final = 2_000
"""The most spans that are read of a file."""
MOST_MESSAGING_SPANS: Final = 200
"""Spans about messages after which a file needs no more."""
MOST_RECORDS: Final = 1_000
"""The most native records that are read of a file."""
_MOST_TOPIC_MESSAGES: Final = 100  # of each partition
_MOST_PARTITIONS: Final = 4
_FORWARDER_SCOPE: Final = "bridge.forwarder"
_OWN_ATTRIBUTES: Final = "mqtrace."
_MESSAGING: Final = "messaging."
_GRPC_ID_DIGITS: Final = 34  # of a message id that RocketMQ 5's gRPC clients make; those have no native trace


class _SpanWriter(NamedTuple):
    """Who wrote a span about a message: ``mqtrace``, ``java-agent`` or ``other``, and its instrumentation scope."""

    name: str
    scope: str


@dataclass(slots=True)
class SpanSigns:
    """What the first spans of one ``source``, a file's path or a topic's address, show of their writers."""

    source: str
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

    @classmethod
    def of(cls, source: str, messages: Iterable[list[Any]]) -> SpanSigns:
        """Return what messages of ``parse_message`` show, of which no more are read than it takes."""
        signs = cls(source)
        for span in chain.from_iterable(map(spans_of, messages)):
            signs.spans += 1
            if span["bad"] is None and (writer := _writer_of(span)) is not None:
                signs.writers[writer] += 1
            if signs.spans >= MOST_SPANS or signs.writers.total() >= MOST_MESSAGING_SPANS:
                break
        return signs


def _writer_of(span: Mapping[str, Any]) -> _SpanWriter | None:
    scope, names = span["scope"] or "", span["attributes"]
    if scope == semconv.SCOPE or any(name.startswith(_OWN_ATTRIBUTES) for name in names):
        return _SpanWriter("mqtrace", scope)
    if not any(name.startswith(_MESSAGING) for name in names):
        return None
    if scope.startswith(AGENT_SCOPES):
        return _SpanWriter("java-agent", scope)
    return _SpanWriter("other", scope) if scope and semconv.MESSAGING_SYSTEM in names else None


@dataclass(slots=True)
class RecordSigns:
    """Evidence of the writer in the first native records of one file or topic.

    Attributes:
        source: the path of the file, or the address of the topic.
        records: the good records read.
        broker_ids: sends with the offset id of a RocketMQ broker.
        kafka_places: sends with ``topic-partition@offset`` instead, which only our hooks write.
        grpc_ids: sends with the id of a RocketMQ 5 gRPC client; only our hooks record those.
        without_region: deliveries without a region.
    """

    source: str
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
    def of(cls, source: str, bodies: Iterable[bytes], *, charset: str = "utf-8") -> RecordSigns:
        """Return what bodies show, of which no more are read than it takes."""
        signs = cls(source)
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
            self.broker_ids += all(map(read_offset_id, (bean.offset_msg_id or "").split(",")))
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


_RELEASES: Final = {name: dialect.first_and_last for name, dialect in DIALECTS.items()}
"""The first and the last release of each dialect."""
_NEWEST: Final = max(last for _, last in _RELEASES.values())
_BOUNDARIES: Final = sorted({bound for rule in BY_DESIGN for bound in (rule.since, rule.until) if bound})
"""The releases at which a rule begins or ends: between two of them every release is judged alike."""


def _release_of(guess: Guess, *, has_no_region: bool) -> Release | None:
    fitting = [_RELEASES[name] for name in guess.writers if name in _RELEASES]
    if has_no_region:  # later clients record no call whose message has no region
        fitting = [(first, last) for first, last in fitting if first < CALL_WITHOUT_REGION.since]
    if not fitting or max(fitting)[1] == _NEWEST:
        return None
    oldest = _generation(min(fitting)[0])
    return max(last for first, last in fitting if _generation(first) == oldest)


def _generation(release: Release) -> int:
    return sum(release >= bound for bound in _BOUNDARIES)


def _is_kafka_place(text: str) -> bool:
    place, at, offset = text.rpartition("@")
    return bool(at) and offset.isdecimal() and place.rpartition("-")[2].isdecimal()


def sample_spans(file: SourceFile) -> SpanSigns:
    """Return what the first spans of a file show."""
    if file.layout is Layout.EMPTY:
        return SpanSigns(str(file.path))
    messages = first_messages(file.path, file.layout, parse=parse_message)
    return SpanSigns.of(str(file.path), (message.content for message in messages))


def sample_records(file: SourceFile, *, charset: str = "utf-8") -> RecordSigns:
    """Return what the first records of a file show."""
    bodies = () if file.layout is Layout.EMPTY else first_bodies(file)
    return RecordSigns.of(str(file.path), bodies, charset=charset)


def sample_span_topic(address: Address, values: Iterable[bytes]) -> SpanSigns:
    """Return what messages of a topic of spans show."""
    return SpanSigns.of(address.text, (parse_message(value) or [] for value in values))


def _first_values(ranges: Sequence[PartitionRange], client_config: Mapping[str, str]) -> Iterator[bytes]:
    for one in [one for one in ranges if one.first < one.end][:_MOST_PARTITIONS]:
        with closing(messages_in(one, client_config)) as messages:
            for message in islice(messages, _MOST_TOPIC_MESSAGES):
                if message["value"]:
                    yield message["value"]


MOST_FILES: Final = 200
"""Files of a side that are looked into, at most; each takes some milliseconds."""
_MOST_NAMES: Final = 3
_OWN_IDS: Final = "sends with ids that only mqtrace records"
_GIVE_WRITER: Final = "give --native-writer mqtrace or --native-writer rocketmq"
_LONGEST_NAME: Final = 80


class Choice(NamedTuple):
    """The profile and the native writer of a run.

    ``reasons`` has a sentence for each of the two that the input shows, by its name here. One that was left to the
    input and has no reason is a default: the input holds nothing that shows it.
    """

    profile: str
    native_writer: str
    reasons: Mapping[str, str]


def find_writers(native: SourceSet, otlp: SourceSet, how: ReadOptions, *, profile: str, native_writer: str) -> Choice:
    """Return the writers of both sides: those of the options (unless ``auto``), else of the heads of the sources.

    Raises:
        UsageError: the writer is ambiguous; the message names the option to give.
        UnreadableInputError, PeerError: from reading the sources.
    """
    spans = _sample_spans(otlp, how) if AUTO in {profile, native_writer} else ()
    records = _sample_records(native, how) if native_writer == AUTO else ()
    return choose_writers(tuple(spans), tuple(records), profile=profile, native_writer=native_writer)


def choose_writers(
    spans: Sequence[SpanSigns], records: Sequence[RecordSigns], *, profile: str = AUTO, native_writer: str = AUTO
) -> Choice:
    """Return who wrote both sides: what is named, else what the samples show; see :func:`find_writers`."""
    reasons: dict[str, str | None] = {}
    if profile == AUTO:
        profile, reasons["profile"] = _choose_profile(spans)
    if native_writer == AUTO:
        has_own_spans = "mqtrace" in profile and any(one.are_own for one in spans)
        native_writer, reasons["native_writer"] = _choose_native_writer(records, profile, has_own_spans=has_own_spans)
    return Choice(profile, native_writer, {name: why for name, why in reasons.items() if why is not None})


def _sample_spans(given: SourceSet, how: ReadOptions) -> Iterator[SpanSigns]:
    yield from map(sample_spans, _spread(given.files))
    for address, ranges in given.topics.items():
        yield sample_span_topic(address, _first_values(ranges, how.client_config))


def _spread(files: Sequence[SourceFile]) -> list[SourceFile]:
    return [files[at * len(files) // MOST_FILES] for at in range(MOST_FILES)] if len(files) > MOST_FILES else [*files]


def _sample_records(given: SourceSet, how: ReadOptions, *, each: bool = False) -> Iterator[RecordSigns]:
    for file in given.files if each else _spread(given.files):
        yield sample_records(file, charset=how.charset)
    for address, ranges in given.topics.items():
        yield RecordSigns.of(address.text, _first_values(ranges, how.client_config), charset=how.charset)


def _choose_profile(samples: Sequence[SpanSigns]) -> tuple[str, str | None]:
    """Return the profile, and why; spans that show no writer are taken for ours."""
    scopes: dict[str, Counter[str]] = {}
    for one in samples:
        for writer, count in one.writers.items():
            scopes.setdefault(writer.name, Counter())[writer.scope] += count
    known = {name: found for name, found in scopes.items() if name != "other"}
    if len(known) > 1:
        scope_names = " and of ".join(_listed(known[name]) for name in ("mqtrace", "java-agent"))
        profile = f"mqtrace{MIXED}java-agent"
        return profile, f"profile {profile}: spans of {scope_names} in {_sources(samples)}"
    for name, found in known.items():
        where = _sources(one for one in samples if name in one.names)
        return name, f"profile {name}: spans of {_listed(found)} in {where}"
    if scopes:
        raise UsageError(
            f"cannot detect who wrote the spans in {_sources(samples)}, of the unknown {_listed(scopes['other'])}: "
            "give --profile mqtrace or --profile java-agent"
        )
    return "mqtrace", None


def _choose_native_writer(
    samples: Sequence[RecordSigns], profile: str, *, has_own_spans: bool
) -> tuple[str, str | None]:
    """Return the native writer, and why; records that do not show it are of the writer that goes with the spans.

    Where our instrumentation wrote the spans it wrote the records as well, whatever ids a broker gave.
    """
    names = {name for one in samples for name in one.names}
    where = _sources(one for one in samples if one.names)
    if names == {"mqtrace"}:
        return "mqtrace", f"native writer mqtrace: {_OWN_IDS} in {where}"
    if names and has_own_spans and MIXED not in profile:
        return "mqtrace", "native writer mqtrace: it goes with spans of this instrumentation"
    if len(names) > 1:
        return _choose_of_each_source(samples)
    has_records = any(one.records for one in samples)
    if not names and MIXED in profile and has_records:
        raise UsageError(f"cannot detect who wrote the native records in {_sources(samples)}: {_GIVE_WRITER}")
    if not has_records or (not names and profile != "java-agent"):
        return ("rocketmq" if profile == "java-agent" else "mqtrace"), None
    theirs, signs = _choose_release(samples, where)
    native_writer = f"mqtrace{MIXED}{theirs}" if has_own_spans else theirs
    return native_writer, f"native writer {native_writer}: {signs}"


def _choose_of_each_source(samples: Sequence[RecordSigns]) -> tuple[str, str]:
    """Return both native writers, each source having one of them."""
    unclear = [one for one in samples if one.records and len(one.names) != 1]
    if unclear:
        what = "records of both" if unclear[0].names else "no sign of either"
        raise UsageError(
            f"the native records are of mqtrace and of RocketMQ, and {_sources(unclear)} has {what}: {_GIVE_WRITER}"
        )
    own, others = ([one for one in samples if name in one.names] for name in ("mqtrace", "rocketmq"))
    theirs, signs = _choose_release(others, _sources(others))
    native_writer = f"mqtrace{MIXED}{theirs}"
    return native_writer, f"native writer {native_writer}: {_OWN_IDS} in {_sources(own)}, {signs}"


def name_native_writers(native: SourceSet, how: ReadOptions) -> ReadOptions:
    """Return how to read a native side that mixes writers: each file and topic with its own; else ``how`` as it is."""
    own, mixed, others = how.native_writer.partition(MIXED)
    if not mixed:
        return how
    samples = [one for one in _sample_records(native, how, each=True) if one.names == {"rocketmq"}]
    theirs = [one.source.rpartition("/")[2] if "://" in one.source else one.source for one in samples]
    return replace(how, native_writer=own, native_writers=dict.fromkeys(theirs, others))


def _choose_release(samples: Sequence[RecordSigns], where: str) -> tuple[str, str]:
    """Return RocketMQ with the release to judge by, and the signs of it."""
    counts = {
        "sends with offset ids of a RocketMQ broker": sum(one.broker_ids for one in samples),
        "deliveries without a region": sum(one.without_region for one in samples),
    }
    signs = [sign for sign, count in counts.items() if count]
    releases = [release for one in samples if (release := one.release()) is not None]
    writer = f"rocketmq-{'.'.join(map(str, min(releases)))}" if releases else "rocketmq"
    return writer, f"{' and '.join(signs)} in {where}" if signs else "it goes with the Java agent's spans"


def _listed(names: Counter[str]) -> str:
    shown = [visible(name, limit=_LONGEST_NAME) for name, _ in names.most_common(_MOST_NAMES)]
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return f"scope{'s' if len(names) > 1 else ''} {', '.join(shown)}{more}"


def _sources(samples: Iterable[SpanSigns | RecordSigns]) -> str:
    sources = (one.source for one in samples)  # of a file its name only
    names = [visible(one if "://" in one else one.rpartition("/")[2], limit=_LONGEST_NAME) for one in sources]
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more" if names else "the sources"
