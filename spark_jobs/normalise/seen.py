"""This module knows what is seen of a batch of spans before any column is told: its messages, and the role of each."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from bridge.otlp.aliases import ALIASES, TRACE_TOPIC_PREFIX
from bridge.otlp.roles import Role, Told, role_of
from spark_jobs.distinct import distinct_rows, each
from spark_jobs.normalise.messages import Messages

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from spark_jobs.normalise.columns import Column

__all__ = ["Seen"]

_BOOLEANS: Final = frozenset({"success", "from_transaction_check", "has_ended", "is_alone"})
_ROLE_TYPES: Final = {name: pa.bool_() if name in _BOOLEANS else pa.string() for name in Role.__slots__}
_TOLD_FIELDS: Final = tuple(name for name in Told.__slots__ if name in ALIASES)


class Seen:
    """One batch of spans (``schemas.READ_SPAN`` and ``LEDGER``) as the rules see it.

    Attributes:
        messages: what the spans are about.
        text: the column of a field of ``aliases.ALIASES``, as text; looked for once.
        is_row: which messages are rows of spans, good or bad, and not of the ledger.
        roles: a column for each attribute of ``roles.Role``.
    """

    def __init__(self, spans: Mapping[str, Column], trace_topics: Collection[str]) -> None:
        self.messages = Messages(spans)
        self.text = cache(self.messages.text)
        self.is_row = self.messages.of_span("due").is_null()
        rows, like = distinct_rows(self._told(trace_topics))
        roles = [role_of(Told(**row)) for row in rows]
        self.roles = {
            name: pa.array([None if role is None else getattr(role, name) for role in roles], kind).take(like)
            for name, kind in _ROLE_TYPES.items()
        }

    def __len__(self) -> int:
        return len(self.is_row)

    def _told(self, trace_topics: Collection[str]) -> dict[str, Column]:
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
            **{name: self.text(name) for name in _TOLD_FIELDS},
        }
