"""Hashes by which questions of the residue and the events that answer them meet."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_jobs.explain.ids import COUNTER_VALUES, Ids, read_ids
from spark_jobs.hashing import hash_texts, mix
from spark_jobs.judging.columns import NullableInts, apply_to_distinct, equals, is_known
from spark_jobs.names import bare
from spark_jobs.taxonomy import Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from spark_jobs.judging.columns import Column, Ints, Mask

__all__ = ["SLICE_MS", "Keys", "NamedRows", "make_keys", "slice_of"]

SLICE_MS: Final = 8_192
"""The width of the slices of time in which sends without an id and ends of transactions are looked for."""


class Keys(NamedTuple):
    """A hash for each row; it means nothing where ``known`` is false, because some part of the key is unknown."""

    values: npt.NDArray[np.uint64]
    known: Mask

    def where(self, mask: Mask) -> Keys:
        """Return the keys of the rows where ``mask`` holds."""
        return Keys(self.values, self.known & mask)


def make_keys(family: str, *parts: Keys, rows: int = 0) -> Keys:
    """Return one key a row: the hash of ``family`` and all ``parts``; without parts the same for ``rows`` rows."""
    rows = len(parts[0].values) if parts else rows
    values = np.full(rows, hash_texts(pa.array([family]))[0])
    known = np.logical_and.reduce([np.ones(rows, bool), *(part.known for part in parts)])
    return Keys(mix(values, *(part.values for part in parts)), known)


def slice_of(instants_ms: NullableInts, later: int = 0) -> Keys:
    """Return the slice of ``SLICE_MS`` that each believable instant lies in, or so many ``later``."""
    believable = instants_ms.believable()
    return _of_numbers(believable.values // SLICE_MS + later, believable.known)


def _of_numbers(values: Ints, known: Mask) -> Keys:
    return Keys(values.astype(np.uint64), known)


def _of_texts(column: Column) -> Keys:
    return Keys(hash_texts(column), is_known(column))


class NamedRows:
    """Rows of verdicts, of the residue or of events, and the keys that concern them.

    Args:
        columns: by the names of ``flatten_sides``; only those that the wanted keys are made of need to be there.
    """

    def __init__(self, columns: Mapping[str, Column]) -> None:
        self.columns = columns
        self.rows = len(columns["msg_id"])

    @cached_property
    def is_publish(self) -> Mask:
        """Which rows are sends."""
        return equals(self.columns["kind"], Kind.PUBLISH.value)

    @cached_property
    def is_consume(self) -> Mask:
        """Which rows are deliveries."""
        return equals(self.columns["kind"], Kind.CONSUME.value)

    @cached_property
    def sender(self) -> Ids:
        """The ids of the messages, drawn by their senders."""
        return read_ids(self.columns["msg_id"])

    @cached_property
    def listener(self) -> Ids:
        """The request ids of the calls, drawn by their consumers."""
        return read_ids(self.columns["native.attempt_id"])

    @cached_property
    def _name(self) -> Keys:
        """The topic of a send, the group of a delivery."""
        column = pc.if_else(pa.array(self.is_consume), self.columns["group"], self.columns["topic"])
        return _of_texts(column).where(self.is_consume | self.is_publish)

    @cached_property
    def _kind(self) -> Keys:
        return _of_texts(self.columns["kind"])

    @cached_property
    def _service(self) -> Keys:
        return _of_texts(self.columns["otlp.service"])

    @cached_property
    def _message(self) -> Keys:
        return _of_texts(self.columns["msg_id"])

    def number(self, name: str) -> NullableInts:
        """Return a column of integers."""
        return NullableInts.of(self.columns[name])

    def all_rows(self) -> Keys:
        """Return one key for all rows of a run."""
        return make_keys("run", rows=self.rows)

    def names(self) -> Keys:
        """Return the keys of kind and topic or group."""
        return make_keys("name", self._kind, self._name)

    def services(self) -> Keys:
        """Return the keys of the spans' services."""
        return make_keys("service", self._service)

    def places(self) -> Keys:
        """Return the keys of service, kind and topic or group."""
        return make_keys("place", self._service, self._kind, self._name)

    def messages(self) -> Keys:
        """Return the keys of the messages."""
        return make_keys("message", self._message)

    def deliveries(self) -> Keys:
        """Return the keys of group and message."""
        return make_keys("delivery", _of_texts(self.columns["group"]), self._message)

    def processes(self) -> Keys:
        """Return the keys of the calling process: a sender's by the message id, a consumer's by the request id."""
        process = np.where(self.is_consume, self.listener.process, self.sender.process)
        known = np.where(self.is_consume, self.listener.known, self.sender.known)
        return make_keys("process", Keys(process, known))

    def senders(self) -> Keys:
        """Return the keys of the processes that drew the message ids, as ``processes`` does for sends."""
        return make_keys("process", _process(self.sender))

    def samplers(self) -> Keys:
        """Return the keys of the sending process, whose sampler decides for its messages."""
        return make_keys("sampler", _process(self.sender))

    def stretches(self) -> Keys:
        """Return the keys of the stretch of its process's time in which the message id was drawn."""
        drawn_ms = NullableInts(self.sender.drawn_ms, self.sender.known)
        return make_keys("stretch", _process(self.sender), slice_of(drawn_ms))

    def attempts(self) -> Keys:
        """Return the keys of the calls by their request ids."""
        return make_keys("attempt", _of_texts(self.columns["native.attempt_id"])).where(self.is_consume)

    def listener_spans(self) -> Keys:
        """Return the keys of what the spans of one listener call share: itself, in the old convention its parent."""
        is_old = pa.array(equals(self.columns["otlp.writer"], "java-agent-old"))
        span_id = pc.if_else(is_old, self.columns["otlp.parent_span_id"], self.columns["otlp.span_id"])
        keys = make_keys("span", _of_texts(self.columns["otlp.trace_id"]), _of_texts(span_id))
        return keys.where(self.is_consume)

    def ids(self, drawn: Ids, later: NullableInts | None = None) -> Keys:
        """Return the keys of the ids that the same processes drew with these counters, or so many ``later``."""
        counter = NullableInts(drawn.counter, drawn.known)
        wanted = counter if later is None else counter + later
        return make_keys("id", _process(drawn), _of_numbers(wanted.values % COUNTER_VALUES, wanted.known))

    def idless(self, instants_ms: NullableInts, later: int = 0) -> Keys:
        """Return the keys of a service's sends without an id around an instant."""
        return make_keys("idless", self._service, slice_of(instants_ms, later))

    def ends(self, instants_ms: NullableInts, later: int = 0) -> Keys:
        """Return the keys of a process's ends of transactions around an instant."""
        return make_keys("end", _process(self.sender), slice_of(instants_ms, later))

    def producers(self, *sides: str) -> Keys:
        """Return the keys of the producers of sends, client host with group, as the first of ``sides`` names them."""
        hosts = _apply(_bare_host, pc.coalesce(*(self.columns[f"{side}.client_host"] for side in sides)))
        return make_keys("producer", _of_texts(hosts), self._groups_of(*sides)).where(self.is_publish)

    def producer_groups(self, *sides: str) -> Keys:
        """Return the keys of the groups of sends, as the first of ``sides`` names them."""
        return make_keys("producer group", self._groups_of(*sides)).where(self.is_publish)

    def has_host(self, *sides: str) -> Mask:
        """Tell for which rows any of ``sides`` names the client host."""
        has_host: Mask = np.logical_or.reduce([is_known(self.columns[f"{side}.client_host"]) for side in sides])
        return has_host

    def _groups_of(self, *sides: str) -> Keys:
        """Namespaces and retry prefixes do not tell groups apart: writers treat them differently."""
        return _of_texts(_apply(bare, pc.coalesce(*(self.columns[f"{side}.group_name"] for side in sides))))


def _process(ids: Ids) -> Keys:
    return Keys(ids.process, ids.known)


def _apply(rule: Callable[[str], str], column: Column) -> Column:
    """Return a column of texts with ``rule`` applied to each; null stays null."""
    texts, text_of = apply_to_distinct(lambda text: None if text is None else rule(text), column)
    words: Column = pa.array(texts, pa.string())
    return words.take(pa.array(text_of))


def _bare_host(host: str) -> str:
    """Java writes ``name/address``."""
    return host.rpartition("/")[2].lower()
