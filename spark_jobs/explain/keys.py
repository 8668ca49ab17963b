"""The residue, verdicts without a final reason, and 64-bit keys under which rows are looked up: message, process, call.

RocketMQ message ids (``MessageClientIDSetter``) end in four bytes of milliseconds since the month began and two bytes
of a counter. The bytes before these (host address, process id, class loader) are the same for all ids of one JVM.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from otel_mqtrace.model import strip_prefixes
from spark_jobs.columns import binary_bytes, hash_texts, is_known, is_true, map_values, mix
from spark_jobs.judging.columns import NullableInts, bare_names, flatten_sides, is_equal
from spark_jobs.schemas import SIDE_FIELDS, VERDICT
from spark_jobs.taxonomy import Kind, Reason

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from spark_jobs.columns import Column, Ints, Mask

COUNTER_VALUES: Final = 1 << 16
"""The counter of message ids starts again after so many."""

_ID: Final = r"\A(?:[0-9A-F]{32}|[0-9A-F]{56})\z"
_TIME_DIGITS: Final = 8
_OWN_DIGITS: Final = 12  # of the time and the counter
_DIGITS: Final[Any] = np.zeros(256, np.uint8)
_DIGITS[list(b"0123456789ABCDEF")] = range(16)
_SLICE_MS: Final = 8_192  # the width of the slices of time that sends without an id are looked up by

Keys: TypeAlias = NullableInts
"""A hash for each row, of 64 bits without a sign; unknown where some part of the key is unknown."""


def _hash_text(column: Column) -> Keys:
    return Keys(hash_texts(column), is_known(column))


class Ids(NamedTuple):
    """The parts of a column's message ids, unknown where a row holds none of a RocketMQ client.

    Attributes:
        process: a hash of the part that all ids of one process share.
        generated_ms: when the id was generated, in milliseconds since the month began.
        counter: from 0 to ``COUNTER_VALUES`` - 1.
    """

    process: Keys
    generated_ms: NullableInts
    counter: NullableInts


def read_ids(texts: Column) -> Ids:
    """Return the parts of the ids in an Arrow column of strings."""
    rows = len(texts)
    known = is_true(pc.match_substring_regex(texts, _ID))
    process = np.zeros(rows, np.uint64)
    generated_ms, counter = np.zeros(rows, np.int64), np.zeros(rows, np.int64)
    if known.any():
        ids = texts.filter(pa.array(known))
        process[known] = hash_texts(pc.utf8_slice_codeunits(ids, 0, -_OWN_DIGITS))
        data, bounds = binary_bytes(ids)
        digits = _DIGITS[np.frombuffer(data, np.uint8)[bounds[1:, None] - np.arange(_OWN_DIGITS, 0, -1)]]
        generated_ms[known] = _read_hex(digits[:, :_TIME_DIGITS])
        counter[known] = _read_hex(digits[:, _TIME_DIGITS:])
    return Ids(Keys(process, known), NullableInts(generated_ms, known), NullableInts(counter, known))


def _read_hex(digits: npt.NDArray[np.uint8]) -> Ints:
    values: Ints = digits.astype(np.int64) @ (16 ** np.arange(digits.shape[1] - 1, -1, -1))
    return values


class KeyedRows:
    """Rows of verdicts, of the residue or of events, and the keys that they are looked up by.

    ``columns`` have the names of ``flatten_sides``; only those that the wanted keys consist of must be there.
    """

    def __init__(self, columns: Mapping[str, Column]) -> None:
        self.columns = columns
        self.rows = len(columns["msg_id"])
        self._parts: dict[str, Keys] = {}

    @cached_property
    def is_publish(self) -> Mask:
        """Which rows are sends."""
        return is_equal(self.columns["kind"], Kind.PUBLISH.value)

    @cached_property
    def is_consume(self) -> Mask:
        """Which rows are deliveries."""
        return is_equal(self.columns["kind"], Kind.CONSUME.value)

    @cached_property
    def sender(self) -> Ids:
        """The message ids, which their senders generated."""
        return read_ids(self.columns["msg_id"])

    @cached_property
    def listener(self) -> Ids:
        """The request ids of deliveries, which their consumers generated."""
        return read_ids(self.columns["native.attempt_id"])

    def number(self, name: str) -> NullableInts:
        """Return a column of integers."""
        return NullableInts.of(self.columns[name])

    def over_ms(self, side: str) -> NullableInts:
        """Return when the event was over, as one side recorded it."""
        return self.number(f"{side}.end_ms").coalesce(self.number(f"{side}.start_ms"))

    def keys(self, family: str) -> Keys:
        """Return the keys of a family of ``_FAMILIES``."""
        return self._join(family, *map(self._part, _FAMILIES[family]))

    def _part(self, name: str) -> Keys:
        if name not in self._parts:
            self._parts[name] = _PARTS[name](self)
        return self._parts[name]

    def _join(self, family: str, *parts: Keys) -> Keys:
        values = np.full(self.rows, hash_texts(pa.array([family]))[0])
        known = np.logical_and.reduce([np.ones(self.rows, bool), *(part.known for part in parts)])
        return Keys(mix(values, *(part.values for part in parts)), known)

    def ids(self, drawn: Ids, later: NullableInts | None = None) -> Keys:
        """Return the keys of the ids that the same processes generated, or of those so many ids ``later``."""
        wanted = drawn.counter if later is None else drawn.counter + later
        number = Keys((wanted.values % COUNTER_VALUES).astype(np.uint64), wanted.known)
        return self._join("id", drawn.process, number)

    def in_slice(self, family: str, of: str, instants_ms: NullableInts, later: int = 0) -> Keys:
        """Return the keys of a part and of the slice of time that each instant lies in, or so many slices later."""
        instants = instants_ms.believable()
        number = Keys((instants.values // _SLICE_MS + later).astype(np.uint64), instants.known)
        return self._join(family, self._part(of), number)

    def senders(self) -> Keys:
        """Return the process keys of the processes that generated the message ids."""
        return self._join("process", self._part("sender"))

    def stretches(self) -> Keys:
        """Return the keys of the stretch of its process's time in which each message id was generated."""
        return self.in_slice("stretch", "sender", self.sender.generated_ms)

    def producers(self, *sides: str) -> Keys:
        """Return the keys of the producers of sends, client host with group, as the first of ``sides`` names them."""
        # Java writes name/address
        hosts = self._apply(lambda host: host.rpartition("/")[2].lower(), "client_host", sides)
        return self._join("producer", hosts, self._apply(strip_prefixes, "group_name", sides)).where(self.is_publish)

    def producer_groups(self, *sides: str) -> Keys:
        """Return the keys of the groups of sends, as the first of ``sides`` names them."""
        # Writers treat namespaces and retry prefixes differently: they do not distinguish groups.
        return self._join("producer group", self._apply(strip_prefixes, "group_name", sides)).where(self.is_publish)

    def _apply(self, rule: Callable[[str], str], name: str, sides: tuple[str, ...]) -> Keys:
        column = pc.coalesce(*(self.columns[f"{side}.{name}"] for side in sides))
        return _hash_text(map_values(column, rule, pa.string()))


def _name(rows: KeyedRows) -> Keys:
    column = pc.if_else(pa.array(rows.is_consume), rows.columns["group"], rows.columns["topic"])
    return _hash_text(bare_names(column)).where(rows.is_consume | rows.is_publish)


def _caller(rows: KeyedRows) -> Keys:
    listener, sender = rows.listener.process, rows.sender.process
    return listener.where(rows.is_consume).coalesce(sender.where(~rows.is_consume))


def _listener_span(rows: KeyedRows) -> Keys:
    """Return the span of a listener call: the delivery's own, in the agent's old convention its parent."""
    is_old = pa.array(is_equal(rows.columns["otlp.writer"], "java-agent-old"))
    span_id = pc.if_else(is_old, rows.columns["otlp.parent_span_id"], rows.columns["otlp.span_id"])
    return _hash_text(span_id).where(rows.is_consume)


_PARTS: Final[dict[str, Callable[[KeyedRows], Keys]]] = {
    "kind": lambda rows: _hash_text(rows.columns["kind"]),
    "name": _name,
    "service": lambda rows: _hash_text(rows.columns["otlp.service"]),
    "message": lambda rows: _hash_text(rows.columns["msg_id"]),
    "group": lambda rows: _hash_text(bare_names(rows.columns["group"])),
    "sender": lambda rows: rows.sender.process,
    "caller": _caller,
    "attempt": lambda rows: _hash_text(rows.columns["native.attempt_id"]).where(rows.is_consume),
    "trace": lambda rows: _hash_text(rows.columns["otlp.trace_id"]),
    "listener span": _listener_span,
}
_FAMILIES: Final[dict[str, tuple[str, ...]]] = {
    "run": (),
    "name": ("kind", "name"),
    "service": ("service",),
    "service name": ("service", "kind", "name"),
    "message": ("message",),
    "delivery": ("group", "message"),
    "process": ("caller",),
    "sampler": ("sender",),  # the sending process, whose sampler decides for its messages
    "attempt": ("attempt",),
    "span": ("trace", "listener span"),
}

_OF_VERDICT: Final = (
    *("kind", "msg_id", "topic", "group", "attempt_id", "status", "reason", "reason_detail", "event_ms"),
)
_OF_BOTH_SIDES: Final = (
    *("group_name", "client_host", "service", "start_ms", "end_ms", "batch_size", "record_index", "raw_hash"),
    *("first_seen_run", "left_as"),
)
_OF_NATIVE: Final = (*_OF_BOTH_SIDES, "attempt_id")
_OF_OTLP: Final = (*_OF_BOTH_SIDES, "trace_id", "span_id", "parent_span_id", "writer")

_TYPES: Final[Mapping[str, Any]] = {
    **{name: VERDICT.field(name).type for name in _OF_VERDICT},
    **{f"native.{name}": SIDE_FIELDS[name] for name in _OF_NATIVE},
    **{f"otlp.{name}": SIDE_FIELDS[name] for name in _OF_OTLP},
}
RESIDUE: Final = pa.schema([*_TYPES.items(), ("on_native", pa.bool_())])
"""The residue, one flat row a key. ``on_native`` (never null) is the side of the key."""


def is_residue(verdicts: pa.Table) -> Mask:
    """Return which rows of ``VERDICT`` are one-sided keys that their own message does not explain."""
    return is_equal(flatten_sides(verdicts.select(["reason"]))["reason"], Reason.UNEXPLAINED.value)


def narrow(verdicts: pa.Table) -> pa.Table:
    """Return the residue among ``VERDICT`` as ``RESIDUE``, in the order of its rows."""
    columns = flatten_sides(verdicts.filter(pa.array(is_residue(verdicts))))
    return pa.table([columns[field.name].cast(field.type) for field in RESIDUE], schema=RESIDUE)
