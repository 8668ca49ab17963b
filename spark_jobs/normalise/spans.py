"""A batch of spans: their attributes, the messages they are about, the role of each."""

from __future__ import annotations

from functools import cache
from operator import methodcaller
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bridge.otlp.aliases import ALIASES, NAMING_FIELDS, TRACE_TOPIC_PREFIX
from bridge.otlp.roles import FACT_FIELDS, EventRole, SpanFacts, role_of
from spark_jobs.columns import apply_to_distinct, as_rows, coalesced, each, is_known, opened, repeated, take_rows
from spark_jobs.normalise.values import first_text, key_set

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from numpy.typing import NDArray

    from spark_jobs.columns import Column

_NAMES: Final = sorted({name for alias in ALIASES.values() for name in (*alias.names, *alias.arrays)})
_CODES: Final = {name: code for code, name in enumerate(_NAMES)}
_TEXTS: Final = pa.list_(pa.string())


class Attributes:
    """The attributes of the spans of a batch, or of their links: a column of maps, and texts found in it."""

    def __init__(self, maps: Column) -> None:
        bounds, (keys, self._values) = opened(maps, maps.keys, maps.items)
        codes: Column = pc.index_in(keys, pa.array(_NAMES, pa.string()))
        known = np.flatnonzero(is_known(codes) & is_known(self._values))
        found = codes.fill_null(0).to_numpy()[known]
        order = np.argsort(found, kind="stable")
        self._places = known[order]
        self._owners = np.repeat(np.arange(len(maps)), np.diff(bounds))[self._places]
        self._starts = np.searchsorted(found[order], np.arange(len(_NAMES) + 1)).tolist()
        self._count = len(maps)

    def text(self, field: str) -> Column:
        """Return a field as text: the first name that is there, else the first text in the first array that is."""
        firsts = (first_text(column) for column in self._named(ALIASES[field].arrays))
        return self._first([*self._named(ALIASES[field].names), *firsts], pa.string())

    def own_text(self, field: str) -> Column:
        """Return a field as text where the span has its attribute."""
        return self._first(self._named(ALIASES[field].names), pa.string())

    def keys(self) -> Column:
        """Return the keys of the message, the first array that is there, as a set; it may be empty."""
        found = self._named(ALIASES["keys"].arrays)
        return self._first([key_set(column) for column in found], _TEXTS)

    def _named(self, names: Iterable[str]) -> list[Column]:
        pieces = (slice(self._starts[code], self._starts[code + 1]) for code in map(_CODES.__getitem__, names))
        return [self._column(piece) for piece in pieces if piece.start < piece.stop]

    def _column(self, piece: slice) -> Column:
        rows = np.full(self._count, -1)
        rows[self._owners[piece]] = self._places[piece]
        return take_rows(self._values, rows)

    def _first(self, columns: list[Column], kind: Any) -> Column:
        return coalesced(*columns) if columns else pa.nulls(self._count, kind)


_JOINED: Final = ","
_PLACE: Final = ["trace_id", "span_id"]


class Messages:
    """The messages of a batch of spans, in order.

    Attributes:
        at: index of each among its span's messages.
        together: number of its span's messages.
        linked: whether its span has links.
        unnamed: whether its span has links and none of them names a message.
        given_id: the id, or ids, on its span.
    """

    def __init__(self, spans: Mapping[str, Column]) -> None:
        self._spans, links = spans, spans["links"]
        bounds, (self._links,) = opened(links, links.values)
        self._first_link, self._link_count = bounds[:-1], np.diff(bounds)
        self._of_spans, self._of_links = Attributes(spans["attributes"]), self._attributes_of_links()
        self._given = self._of_spans.text("msg_id")
        commas: Column = pc.count_substring(self._given, _JOINED)
        ids, named = 1 + commas.fill_null(0).to_numpy().astype(np.int64), self._named()
        self._explode(np.where(named & (ids == 1), self._link_count, 0), ids)
        self.given_id = self._spread(self._given)
        self.linked = self._link_count[self._span] > 0
        self.unnamed = self.linked & ~named[self._span]

    def _attributes_of_links(self) -> Attributes | None:
        return Attributes(self._links.field("attributes")) if len(self._links) else None

    def _named(self) -> NDArray[np.bool_]:
        if self._of_links is None:
            return np.zeros(len(self._link_count), bool)
        naming = [is_known(self._of_links.text(field)) for field in NAMING_FIELDS]
        before = np.concatenate([[0], np.cumsum(np.logical_or.reduce(naming))])
        return np.asarray(before[self._first_link + self._link_count] > before[self._first_link])

    def _explode(self, links: NDArray[np.int64], ids: NDArray[np.int64]) -> None:
        counts = np.where(links > 0, links, ids)
        self._span, self.at = repeated(counts)
        self._is_copied = bool((counts != 1).any())
        self.together = counts[self._span]
        self._is_link = links[self._span] > 0
        self._link = np.where(self._is_link, self._first_link[self._span] + self.at, -1)

    def of_span(self, name: str) -> Column:
        """Return a column of the spans, once for each message."""
        return self._spread(self._spans[name])

    def text(self, field: str) -> Column:
        """Return a field as text: from the message's own link first, then from the span."""
        return self._ids() if field == "msg_id" else self._found(methodcaller("text", field))

    def own_text(self, field: str) -> Column:
        """Return a field as text where link or span has its attribute, not only a captured header."""
        return self._found(methodcaller("own_text", field))

    def keys(self) -> Column:
        """Return the keys of each message as a set; it may be empty."""
        return self._found(Attributes.keys)

    def link_flags(self) -> Column:
        """Return the flags of the message's own link, or of the only one of its span."""
        only = np.where(self._link_count == 1, self._first_link, -1)[self._span]
        return take_rows(self._links.field("flags"), np.where(self._is_link, self._link, only))

    def link_places(self) -> Column:
        """Return the one link of a message that has its own; else the first message of the span has them all."""
        all_links = np.where(self.at == 0, self._link_count[self._span], 0)
        counts = np.where(self._is_link, 1, all_links)
        bounds = np.concatenate([[0], np.cumsum(counts)])
        starts = np.where(self._is_link, self._link, self._first_link[self._span])
        links = pa.array(np.arange(bounds[-1]) + np.repeat(starts - bounds[:-1], counts))
        places = pa.StructArray.from_arrays([self._links.field(name).take(links) for name in _PLACE], _PLACE)
        has_links = self._is_link | (self.at == 0) & is_known(self._spans["links"])[self._span]
        return pa.ListArray.from_arrays(pa.array(bounds, pa.int32()), places, mask=pa.array(~has_links))

    def _ids(self) -> Column:
        look = methodcaller("text", "msg_id")
        if not self._is_copied:
            return self._over(look, self.given_id)
        split = pc.split_pattern(self._given, _JOINED)
        place = split.offsets.to_numpy()[self._span] + np.where(self._is_link, 0, self.at)
        return self._over(look, split.values.take(pa.array(place, mask=~is_known(self.given_id))))

    def _found(self, look: Callable[[Attributes], Column]) -> Column:
        return self._over(look, self._spread(look(self._of_spans)))

    def _over(self, look: Callable[[Attributes], Column], otherwise: Column) -> Column:
        if self._of_links is None or not self._is_link.any():
            return otherwise
        return coalesced(take_rows(look(self._of_links), self._link), otherwise)

    def _spread(self, column: Column) -> Column:
        return column.take(pa.array(self._span)) if self._is_copied else column


_BOOLEANS: Final = frozenset({"success", "from_transaction_check", "has_ended", "is_alone"})
_ROLE_TYPES: Final = {name: pa.bool_() if name in _BOOLEANS else pa.string() for name in EventRole.__slots__}


class SpanBatch:
    """One batch of spans (``schemas.READ_SPAN`` and ``LEDGER``) as the rules see it.

    Attributes:
        messages: what the spans are about.
        text: the column of a field of ``aliases.ALIASES``, as text; looked for once.
        is_row: which messages are rows of spans, good or bad, and not of the ledger.
        roles: a column for each attribute of ``roles.EventRole``.
    """

    def __init__(self, spans: Mapping[str, Column], trace_topics: Collection[str]) -> None:
        self.messages = Messages(spans)
        self.text = cache(self.messages.text)
        self.is_row = self.messages.of_span("expected").is_null()
        facts = self._facts(trace_topics)
        roles, like = apply_to_distinct(
            lambda *row: role_of(SpanFacts(**dict(zip(facts, row, strict=True)))), *facts.values()
        )
        self.roles = {
            name: pa.array([None if role is None else getattr(role, name) for role in roles], kind).take(as_rows(like))
            for name, kind in _ROLE_TYPES.items()
        }

    def __len__(self) -> int:
        return len(self.is_row)

    def _facts(self, trace_topics: Collection[str]) -> dict[str, Column]:
        def is_traffic(topic: str) -> bool:
            return topic in trace_topics or topic.startswith(TRACE_TOPIC_PREFIX)

        messages = self.messages
        return {
            "is_span": pc.and_(self.is_row, messages.of_span("bad").is_null()),
            "span_kind": messages.of_span("kind"),
            "library": messages.of_span("scope"),
            "status": messages.of_span("status"),
            "is_trace_traffic": each(self.text("topic"), is_traffic, pa.bool_()),
            "has_id": messages.given_id.is_valid(),
            "linked": pa.array(messages.linked),
            "unnamed": pa.array(messages.unnamed),
            **{name: self.text(name) for name in FACT_FIELDS},
        }
