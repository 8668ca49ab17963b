"""Give spans with only the position of their message on a Kafka topic the id that a native send names for it.

OpenTelemetry's Kafka instrumentations record ``topic-partition@offset`` and no message id. A native send names both, a
native delivery the id alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa

from spark_jobs.columns import pc
from spark_jobs.taxonomy import Kind

if TYPE_CHECKING:
    from collections.abc import Mapping

    from spark_jobs.columns import Column


CLAIM: Final = pa.schema({"place": pa.string(), "claimed": pa.string()})
"""A native send's word that the message at ``place`` has the id ``claimed``."""


def identified_by_offset(columns: Mapping[str, Column]) -> Column:
    """Return which events (``msg_id``, ``offset_msg_id``) have the position of their message as its only id."""
    return pc.fill_null(pc.equal(columns["msg_id"], columns["offset_msg_id"]), False)  # noqa: FBT003


def claims_in(columns: Mapping[str, Column]) -> pa.Table:
    """Return ``CLAIM`` of the native sends among events (``side``, ``kind``, ``msg_id``, ``offset_msg_id``)."""
    is_send = pc.and_(pc.equal(columns["side"], "native"), pc.equal(columns["kind"], Kind.PUBLISH.value))
    is_named = pc.and_(pc.is_valid(columns["msg_id"]), pc.is_valid(columns["offset_msg_id"]))
    chosen = pc.and_(pc.and_(pc.fill_null(is_send, False), is_named), pc.invert(identified_by_offset(columns)))  # noqa: FBT003
    found = [columns[name].filter(chosen).cast(pa.string()) for name in ("offset_msg_id", "msg_id")]
    return pa.table(found, schema=CLAIM)


def resolve_message_ids(msg_ids: Column, claims: pa.Table) -> Column:
    """Return ``msg_ids``, each position that ``claims`` give to exactly one id replaced by that id."""
    found = claims.group_by("place", use_threads=False).aggregate([("claimed", "min"), ("claimed", "max")])
    known = found.filter(pc.equal(found["claimed_min"], found["claimed_max"])).combine_chunks()
    at = pc.index_in(msg_ids, known["place"].combine_chunks())
    return pc.coalesce(known["claimed_min"].combine_chunks().take(at), msg_ids)
