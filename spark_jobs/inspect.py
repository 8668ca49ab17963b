"""Show what an input contains: side, layout, counts, time range, and bad pieces with their position.

The readers are those of a run, where bad pieces are malformed. One pass, one message in memory at a time.
"""

from __future__ import annotations

import json
import math
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from itertools import chain, count, islice
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from bridge.addresses import check_stores
from bridge.codec.framing import BadBody, Framing, read_landed
from bridge.codec.records_json import bad_json, body_json
from bridge.commands import warn_of_orphans
from bridge.otlp.containers import NOT_TRACES, Bad, Message, read_messages
from bridge.otlp.detect import Layout, Side
from bridge.otlp.roles import ALIASES
from bridge.otlp.spans import parse_message, spans_of
from bridge.otlp.values import attribute_text
from bridge.page.wording import plural, visible
from bridge.storage.paths import DamagedInputError
from otel_mqtrace._clock import NS_PER_MS
from otel_mqtrace._errors import UsageError
from otel_mqtrace.wire.native.decode import decode_body
from otel_mqtrace.wire.native.layout import RECORD_START, absent
from spark_jobs.jobs.writers import (
    RecordSigns,
    SpanSigns,
    choose_writers,
    sample_records,
    sample_span_topic,
    sample_spans,
)
from spark_jobs.sources.files import PassedOver, SourceFile, last_line, source_files
from spark_jobs.sources.jaeger import local_sources
from spark_jobs.sources.kafka import messages_in, split_topics, topic_ranges
from spark_jobs.sources.native import count_torn_bytes
from spark_jobs.sums import greatest, least

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from bridge.addresses import Address
    from bridge.storage.paths import AnyPath

_Position: TypeAlias = "dict[str, Any]"  # path and line of a ``BadPiece``
_MOST_WRITERS: Final = 3
_MOST_NAMES: Final = 50
_LONGEST_NAME: Final = 249  # of a topic of Kafka
_SHOWN_BAD: Final = 50
_SAMPLE_CHARACTERS: Final = 200
_SAMPLED_MESSAGES: Final = 50  # the first messages of a topic, which show its side
_NO_CONFIG: Final[Mapping[str, str]] = MappingProxyType({})
_FRAMINGS: Final = {Layout.LANDING_JSONL: Framing.JSONL_BASE64, Layout.LANDING_PARQUET: Framing.PARQUET}


@dataclass(frozen=True, slots=True, kw_only=True)
class BadPiece:
    """A piece of input that is neither record nor span, by line, row or frame from 1, or ``topic-partition@offset``."""

    path: str
    line: int | None
    record_index: int | None = None
    field: str | None = None
    reason: str
    text: str


@dataclass(slots=True, kw_only=True)
class Inventory:
    """The content of an input. Times are epoch milliseconds; ``items`` counts good records or spans."""

    side: str = Side.EMPTY.value
    layout: str = Layout.EMPTY.value
    items: int = 0
    malformed: int = 0
    truncated_tail: bool = False
    first_ms: int | None = None
    last_ms: int | None = None
    topics: set[str] = field(default_factory=set)
    groups: set[str] = field(default_factory=set)
    dialects: Counter[str] = field(default_factory=Counter)
    written_by: Counter[str] = field(default_factory=Counter)
    bad: list[BadPiece] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    passed_over: list[str] = field(default_factory=list)  # files of a directory with other content
    writers: dict[str, Any] = field(default_factory=dict)  # those that a run would choose, with reasons

    def add_source(self, name: str, side: str, layout: str) -> None:
        """Add a file or topic."""
        self.files.append(name)
        if side != Side.EMPTY.value:
            self.side = _join_names(self.side, side)
            self.layout = _join_names(self.layout, layout)

    def add_item(self, times_ms: Iterable[int | None], topic: str | None, group: str | None) -> None:
        """Count a good record or span."""
        self.items += 1
        times = [time_ms for time_ms in times_ms if time_ms]
        self.first_ms, self.last_ms = least([self.first_ms, *times]), greatest([self.last_ms, *times])
        self.topics |= {topic} if topic and not absent(topic) else set()
        self.groups |= {group} if group and not absent(group) else set()

    def add_bad(self, piece: BadPiece) -> None:
        """Count a bad piece and keep the first ones."""
        self.malformed += 1
        if len(self.bad) < _SHOWN_BAD:
            self.bad.append(piece)

    def to_json(self) -> dict[str, Any]:
        """Return the public object."""
        plain = {name: getattr(self, name) for name in self.__slots__}
        lists = {"topics": sorted(self.topics), "groups": sorted(self.groups), "dialects": dict(self.dialects)}
        lists["written_by"] = dict(self.written_by)
        return {**plain, **lists, "bad": [asdict(piece) for piece in self.bad]}


def _join_names(before: str, more: str) -> str:
    names = [] if before == Side.EMPTY.value else before.split("+")
    return "+".join(names if more in names else [*names, more])


_TAIL: Final = " but a line that was cut off"
_OTHERS: Final = {
    Side.OTLP: "native records and no spans: use --records",
    Side.NATIVE: "spans and no native records: use --spans",
}


def run(  # noqa: PLR0913 - the command's options
    sources: Sequence[str],
    *,
    as_json: bool = False,
    spans: bool = False,
    records: bool = False,
    charset: str = "utf-8",
    client_config: Mapping[str, str] = _NO_CONFIG,
) -> int:
    """Print the content of ``sources``, whole or as JSON; return 0, or 1 if a piece is bad.

    Raises:
        UsageError: a source does not exist, or both streams were requested.
        UnreadableInputError: the format of a source is unknown.
        PeerError: the broker of a topic does not answer, or lacks the topic.
    """
    if spans and records:
        raise UsageError("--spans and --records exclude each other: use one of them")
    wanted = Side.OTLP if spans else Side.NATIVE if records else None
    inventory = Inventory()
    check_stores({"SRC": sources})
    with local_sources(sources) as local:
        warn_of_orphans(local)
        for side, item in inspect_sources(local, inventory, charset=charset, client_config=client_config):
            if side is wanted:
                _write(item)
    if as_json:
        _write(inventory.to_json())
    elif wanted is None:
        sys.stdout.write(_format_summary(inventory))
    notes, given = [], " ".join(sources)
    if wanted is not None and inventory.bad:
        notes.append(f"{plural(inventory.malformed, 'bad piece')}; first: {_format_bad(inventory.bad[0])}")
    if wanted is not None and inventory.items and wanted.value not in inventory.side:
        notes.append(f"{given} holds {_OTHERS[wanted]}")
    if not (inventory.items or inventory.malformed):
        notes.append(f"nothing in {given}{_TAIL if inventory.truncated_tail else ''}")
    for note in notes:
        sys.stderr.write(f"mqtrace: {visible(note, limit=None)}\n")
    return 1 if inventory.malformed else 0


def inspect_sources(
    sources: Iterable[str],
    inventory: Inventory,
    *,
    charset: str = "utf-8",
    client_config: Mapping[str, str] = _NO_CONFIG,
) -> Iterator[tuple[Side, dict[str, Any]]]:
    """Yield the JSON of every record, bad ones too, and span behind ``sources``, and fill ``inventory``."""
    inspection = _Inspection(inventory, charset, client_config)
    paths, addresses = split_topics(sources)
    for address in addresses:
        yield from inspection.read_topic(address)
    passed_over: list[PassedOver] = []
    files = source_files(paths, None, passed_over=passed_over)
    inventory.passed_over = [file.reason for file in passed_over if not file.is_damaged]
    for damaged in (file for file in passed_over if file.is_damaged):
        inventory.add_bad(_damage(damaged.path, damaged.reason))
    for file in files:
        yield from ((file.side, item) for item in inspection.read_file(file))
    inventory.writers = _choose_writers(inspection)


def _choose_writers(inspection: _Inspection) -> dict[str, Any]:
    """Return the writers that ``mqtrace reconcile`` would choose, ``None`` for an undetected one."""
    try:
        choice = choose_writers(inspection.spans, inspection.records)
    except UsageError as error:
        return {"profile": None, "native_writer": None, "evidence": [str(error)]}
    names = {name: getattr(choice, name) if name in choice.reasons else None for name in ("profile", "native_writer")}
    return {**names, "evidence": list(choice.reasons.values())}


def _damage(path: AnyPath, reason: str) -> BadPiece:
    return BadPiece(path=str(path), line=None, reason=reason.removeprefix(f"{path}: "), text="")


def _write(item: dict[str, Any]) -> None:
    sys.stdout.buffer.write((json.dumps(item, ensure_ascii=False) + "\n").encode("utf-8", "backslashreplace"))


@dataclass(frozen=True, slots=True)
class _Inspection:
    """An inventory that is filled by reading sources; ``spans`` and ``records`` are the signs of their writers.

    ``bodies`` numbers the bodies of all sources, as ``mqtrace decode`` does.
    """

    inventory: Inventory
    charset: str
    client_config: Mapping[str, str]
    spans: list[SpanSigns] = field(default_factory=list)
    records: list[RecordSigns] = field(default_factory=list)
    bodies: Iterator[int] = field(default_factory=count)

    def read_file(self, file: SourceFile) -> Iterator[dict[str, Any]]:
        """Yield the JSON of a file's records or spans."""
        self.inventory.add_source(str(file.path), file.side.value, file.layout.value)
        if file.side is Side.NATIVE:
            try:
                self.records.append(sample_records(file, charset=self.charset))
                yield from self._read_landing(file)
            except DamagedInputError as error:
                self.inventory.add_bad(_damage(file.path, str(error)))
        elif file.side is Side.OTLP:
            self.spans.append(sample_spans(file))
            yield from self._read_spans(file)

    def _read_landing(self, file: SourceFile) -> Iterator[dict[str, Any]]:
        tail = last_line(file) if file.layout is Layout.LANDING_JSONL else b""
        is_torn = bool(tail.strip()) and count_torn_bytes(tail) > 0
        with file.path.open("rb") as stream:
            landed = read_landed(stream, _FRAMINGS[file.layout], name=str(file.path))
            for body, at in zip(landed, self.bodies, strict=False):
                place: _Position = {"path": str(file.path), "line": body.row}
                if not isinstance(body, BadBody):
                    yield from self._read_body(place, at, body.body)
                elif is_torn and body.field is None and not stream.peek(1):  # a run reads less
                    self.inventory.truncated_tail = True
                else:
                    text = body.text[:_SAMPLE_CHARACTERS]
                    self.inventory.add_bad(BadPiece(**place, field=body.field, reason=body.reason, text=text))
                    yield bad_json(at, None, body)

    def _read_body(self, place: _Position, at: int, body: bytes) -> Iterator[dict[str, Any]]:
        for item in body_json(at, decode_body(body, charset=self.charset)):
            if "error" in item:
                self.inventory.add_bad(BadPiece(**place, record_index=item["record_index"], **item["error"]))
            else:
                self.inventory.add_item([item["timestamp_ms"]], item["topic"], item["group_name"])
                self.inventory.dialects[item["dialect"]] += 1
                self.inventory.written_by.update(item["written_by"] or ["unknown"])
            yield item

    def _read_spans(self, file: SourceFile) -> Iterator[dict[str, Any]]:
        indices = count()
        for item in read_messages(file.path, file.layout, parse=parse_message):
            place: _Position = {"path": str(file.path), "line": item.ordinal}
            if isinstance(item, Bad):
                text = item.sample.decode("utf-8", errors="replace")[:_SAMPLE_CHARACTERS]
                self.inventory.add_bad(BadPiece(**place, reason=item.reason, text=text))
            elif not isinstance(item, Message):
                self.inventory.truncated_tail = True
            else:
                yield from self._read_message(place, indices, item.content)

    def _read_message(self, place: _Position, indices: Iterator[int], content: list[Any]) -> Iterator[dict[str, Any]]:
        """Yield the JSON of a message's good spans; ``indices`` numbers the spans of its file or topic."""
        for span, index in zip(spans_of(content), indices, strict=False):
            if span["bad"] is not None:
                name, reason, text = span["bad"]
                self.inventory.add_bad(BadPiece(**place, field=name, reason=reason, text=text))
                continue
            times_ms = (span["start_ns"] // NS_PER_MS, span["end_ns"] // NS_PER_MS)
            self.inventory.add_item(times_ms, _attribute(span, "topic"), _attribute(span, "group_name"))
            as_read = {name: span[name] for name in _AS_READ}
            times = {name: str(span[name]) for name in ("start_ns", "end_ns")}
            yield {**as_read, **times, **{name: _plain(span[name]) for name in _AFTER_TIMES}, "source_index": index}

    def read_topic(self, address: Address) -> Iterator[tuple[Side, dict[str, Any]]]:
        """Read a topic, partition by partition; the first recognisable message decides its side."""
        ranges = [one for one in topic_ranges(address, self.client_config) if one.first < one.end]
        messages = chain.from_iterable(messages_in(one, self.client_config) for one in ranges)
        looked_at = list(islice(messages, _SAMPLED_MESSAGES))
        values = [message["value"] for message in looked_at if message["value"]]
        side = next(filter(None, map(_side_of, values)), Side.EMPTY)
        is_foreign = side is Side.EMPTY and bool(values)
        self.inventory.add_source(address.text, "unknown" if is_foreign else side.value, "kafka")
        if side is Side.NATIVE:
            self.records.append(RecordSigns.of(address.text, values, charset=self.charset))
        elif side is Side.OTLP:
            self.spans.append(sample_span_topic(address, values))
        indices = count()
        for message in chain(looked_at, messages):
            place: _Position = {"path": f"{message['topic']}-{message['partition']}@{message['offset']}", "line": None}
            value = message["value"] or b""
            content = parse_message(value) if side is Side.OTLP and value else None
            if side is Side.NATIVE and value:
                yield from ((side, item) for item in self._read_body(place, next(self.bodies), value))
            elif content is not None:
                yield from ((side, item) for item in self._read_message(place, indices, content))
            else:
                reason = "no value" if not value else NOT_TRACES if side is Side.OTLP else "neither side's"
                text = value[:_SAMPLE_CHARACTERS].decode("utf-8", errors="replace")
                self.inventory.add_bad(BadPiece(**place, reason=reason, text=text))
                if side is Side.NATIVE:
                    yield side, bad_json(next(self.bodies), None, BadBody(None, reason, text))


def _attribute(span: dict[str, Any], name: str) -> str | None:
    found = (span["attributes"].get(alias) for alias in ALIASES[name].names)
    return next((value for value in found if isinstance(value, str)), None)


_AS_READ: Final = ("trace_id", "span_id", "parent_span_id", "name", "kind")
_AFTER_TIMES: Final = ("status", "status_message", "service", "scope", "attributes", "links", "events")


def _plain(value: Any) -> Any:
    """Return a value for JSON: bytes as base64, NaN and the infinities by name, nanoseconds as text."""
    if isinstance(value, Mapping):
        return {key: str(item) if key == "time_ns" else _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    needs_text = isinstance(value, bytes) or (isinstance(value, float) and not math.isfinite(value))
    return attribute_text(value) if needs_text else value


def _side_of(value: bytes) -> Side | None:
    if RECORD_START.match(value):
        return Side.NATIVE
    return Side.OTLP if parse_message(value) is not None else None


# -- for people -----------------------------------------------------------------------------------------------------
def _format_summary(found: Inventory) -> str:
    what = "records" if found.side == Side.NATIVE.value else "spans" if found.side == Side.OTLP.value else "items"
    rows = {
        "side": found.side,
        "layout": found.layout,
        "files": len(found.files),
        what: found.items,
        "malformed": found.malformed,
        "cut-off tail": "yes" if found.truncated_tail else "no",
        "first": _format_instant(found.first_ms),
        "last": _format_instant(found.last_ms),
        "records fit": _format_writers(found.written_by),
        "topics": _format_names(found.topics),
        "groups": _format_names(found.groups),
    }
    lines = [f"{name:<13} {value}" for name, value in rows.items()]
    lines += [f"written by    {why}" for why in found.writers["evidence"]]
    lines += [f"bad           {_format_bad(piece)}" for piece in found.bad]
    lines += [f"passed over   {reason}" for reason in found.passed_over]
    return "".join(f"{visible(line, limit=None)}\n" for line in lines)  # a path may hold anything


def _format_writers(found: Counter[str]) -> str:
    """Return the writers that fit most records; ``--json`` has all."""
    shown = " or ".join(f"{name} ({count})" for name, count in found.most_common(_MOST_WRITERS))
    more = f", and {len(found) - _MOST_WRITERS} more in --json" if len(found) > _MOST_WRITERS else ""
    return f"{shown}{more}" or "-"


def _format_names(found: set[str]) -> str:
    shown = [visible(name, limit=_LONGEST_NAME) for name in sorted(found)[:_MOST_NAMES]]
    more = [f"and {len(found) - _MOST_NAMES:,} more"] if len(found) > _MOST_NAMES else []
    return ", ".join([*shown, *more]) or "-"


def _format_bad(piece: BadPiece) -> str:
    line = "" if piece.line is None else f":{piece.line}"
    record = "" if piece.record_index is None else f" record {piece.record_index}"
    name = f" {piece.field}" if piece.field else ""
    reason = f"damaged, or {NOT_TRACES}" if piece.reason == NOT_TRACES else piece.reason
    text = f": {piece.text!r}" if piece.text or piece.field else ""  # a field may be empty
    return f"{piece.path}{line}{record}{name}: {reason}{text}"


def _format_instant(time_ms: int | None) -> str:
    if time_ms is None:
        return "-"
    try:
        return f"{datetime.fromtimestamp(time_ms / 1000, tz=timezone.utc):%Y-%m-%d %H:%M:%S} UTC"
    except (ValueError, OverflowError, OSError):
        return f"{time_ms} ms, which is not a date"
