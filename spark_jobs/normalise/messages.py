"""This module knows which messages a span is about: one per link that names one, else its own id or ids, else one.

Ids joined with commas are all there is to say of a batch. An id that is equal for all messages stands on the span
although each has a link. Nearly every batch of rows has one message per span; its columns are not copied.
"""

from __future__ import annotations

from operator import methodcaller
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_jobs.normalise.attributes import Attributes
from spark_jobs.normalise.columns import coalesced, is_there, opened, repeated, taken

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from spark_jobs.normalise.columns import Column

__all__ = ["Messages"]

_JOINED: Final = ","
_NAMING: Final = ("msg_id", "kafka_offset", "offset_msg_id")
_PLACE: Final = ["trace_id", "span_id"]


class Messages:
    """The messages of a batch of spans, in order.

    Attributes:
        at: which of its span's messages each is.
        together: how many messages its span has.
        linked: whether its span has links.
        unnamed: whether its span has links and none of them names a message.
        given_id: the id, or ids, that stand on its span.
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
        """Say of each span whether any of its links names a message."""
        if self._of_links is None:
            return np.zeros(len(self._link_count), bool)
        naming = [is_there(self._of_links.text(field)) for field in _NAMING]
        before = np.concatenate([[0], np.cumsum(np.logical_or.reduce(naming))])
        return np.asarray(before[self._first_link + self._link_count] > before[self._first_link])

    def _explode(self, links: NDArray[np.int64], ids: NDArray[np.int64]) -> None:
        """Make as many messages of each span as it has ``links`` that are messages, or without any, ``ids``."""
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
        """Return a field as text where link or span has an attribute of its own for it, not only a captured header."""
        return self._found(methodcaller("own_text", field))

    def keys(self) -> Column:
        """Return the keys of each message as a set; it may be empty."""
        return self._found(Attributes.keys)

    def link_flags(self) -> Column:
        """Return the flags of the message's own link, or of the only one of its span."""
        only = np.where(self._link_count == 1, self._first_link, -1)[self._span]
        return taken(self._links.field("flags"), np.where(self._is_link, self._link, only))

    def link_places(self) -> Column:
        """Return the one link of a message that has its own; else the first message of the span has them all."""
        all_links = np.where(self.at == 0, self._link_count[self._span], 0)
        counts = np.where(self._is_link, 1, all_links)
        bounds = np.concatenate([[0], np.cumsum(counts)])
        starts = np.where(self._is_link, self._link, self._first_link[self._span])
        links = pa.array(np.arange(bounds[-1]) + np.repeat(starts - bounds[:-1], counts))
        places = pa.StructArray.from_arrays([self._links.field(name).take(links) for name in _PLACE], _PLACE)
        told = self._is_link | (self.at == 0) & is_there(self._spans["links"])[self._span]
        return pa.ListArray.from_arrays(pa.array(bounds, pa.int32()), places, mask=pa.array(~told))

    def _ids(self) -> Column:
        look = methodcaller("text", "msg_id")
        if not self._is_copied:
            return self._over(look, self.given_id)
        split = pc.split_pattern(self._given, _JOINED)
        place = split.offsets.to_numpy()[self._span] + np.where(self._is_link, 0, self.at)
        return self._over(look, split.values.take(pa.array(place, mask=~is_there(self.given_id))))

    def _found(self, look: Callable[[Attributes], Column]) -> Column:
        return self._over(look, self._spread(look(self._of_spans)))

    def _over(self, look: Callable[[Attributes], Column], otherwise: Column) -> Column:
        """Return what ``look`` finds on the message's own link, ``otherwise`` where it finds nothing."""
        if self._of_links is None or not self._is_link.any():
            return otherwise
        return coalesced(taken(look(self._of_links), self._link), otherwise)

    def _spread(self, column: Column) -> Column:
        return column.take(pa.array(self._span)) if self._is_copied else column
