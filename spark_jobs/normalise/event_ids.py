"""This module knows by which id a message goes: its own, else the place where it lies.

OpenTelemetry's instrumentations of Kafka know no message ids. They tell the place in attributes, or as an id with dots.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from spark_jobs.normalise.columns import coalesced, equal, greater, where
from spark_jobs.normalise.text_rules import folded_id, integer

if TYPE_CHECKING:
    from spark_jobs.normalise.columns import Column
    from spark_jobs.normalise.seen import Seen

__all__ = ["id_source", "msg_id", "offset_msg_id"]

_KAFKA: Final = "kafka"
_DOTTED_PLACE: Final = re.compile(r"\.([0-9]+)\.([0-9]+)\Z")


def msg_id(seen: Seen) -> Column:
    """Return the message's id; where it has none it goes by its place, as RocketMQ's own ``getMsgId`` and we do."""
    own = where(_undotted(seen).is_null(), seen.text("msg_id"))
    return folded_id(coalesced(own, _place(seen)))


def offset_msg_id(seen: Seen) -> Column:
    """Return the place of the message: ``topic-partition@offset``, or what the writer calls its physical id."""
    return folded_id(_place(seen))


def id_source(seen: Seen) -> Column:
    """Say where the id stood: a send that got no answer (one-way, refused) has it in a captured property only."""
    source = pc.if_else(seen.messages.own_text("msg_id").is_valid(), "own", "header")
    return where(seen.text("msg_id").is_valid(), source)


def _place(seen: Seen) -> Column:
    given = seen.text("offset_msg_id")
    return coalesced(given, _position(seen), _undotted(seen)) if given.null_count else given


def _position(seen: Seen) -> Column:
    partition, offset = seen.text("partition"), seen.text("kafka_offset")
    is_partition = greater(integer(partition, pa.int32()), -1)
    is_offset = greater(integer(offset, pa.int64()), -1)
    place = pc.binary_join_element_wise(seen.text("topic"), "-", partition, "@", offset, "")
    return where(pc.and_(is_partition, is_offset), place)


def _undotted(seen: Seen) -> Column:
    """Return the place in an id ``topic.partition.offset``, as OpenTelemetry's Python instrumentations write it."""
    ids = seen.text("msg_id")
    likely = pc.and_(equal(seen.text("system"), _KAFKA), pc.match_substring(ids, "."))
    if not pc.any(likely).as_py():
        return pa.nulls(len(ids), pa.string())
    dotted = zip(where(likely, ids).to_pylist(), seen.text("topic").to_pylist(), strict=True)
    return pa.array([_place_in(one, topic) for one, topic in dotted], pa.string())


def _place_in(dotted: str | None, topic: str | None) -> str | None:
    if dotted is None or topic is None or not dotted.startswith(f"{topic}."):
        return None
    place, found = _DOTTED_PLACE.subn(r"-\1@\2", dotted)
    return place if found else None
