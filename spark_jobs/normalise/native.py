"""This module knows how trace messages of the native side become canonical events: bodies → records → events.

No Python runs per row: the records of a body are split off by Spark's own functions, typed by expressions generated
from the layout table (``records``), and written as ``NORMALISED`` rows, good and bad alike.
"""

from __future__ import annotations

import codecs
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F

from bridge.codec.native.layout import (
    CLOUD_SUB_AFTER,
    FIELD_SEPARATOR,
    FORMS,
    MESSAGE_TYPE_MAPS,
    RECORD_TERMINATOR,
)
from otel_mqtrace._errors import UsageError
from otel_mqtrace.model import TraceType
from spark_jobs.normalise.records import TYPE_NAMES, typed_records
from spark_jobs.normalise.texts import folded_id, key_set, present
from spark_jobs.schemas import NORMALISED
from spark_jobs.taxonomy import Kind

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import Column, DataFrame

__all__ = ["charset_name", "check_message_type_map", "native_bodies", "native_events"]

# A SubAfter over CLOUD of 4.9.5-4.9.8 and 5.1.4-5.3.0 has no terminator: a type name stands where its eighth field
# would be (apache/rocketmq#8429). \G continues behind the last match, so a chain of any length comes apart.
_GLUED: Final = (
    rf"(?:\A|\G|(?<={RECORD_TERMINATOR}))"
    rf"({TraceType.SUB_AFTER.value}(?:{FIELD_SEPARATOR}[^{FIELD_SEPARATOR}{RECORD_TERMINATOR}]*)"
    rf"{{{len(CLOUD_SUB_AFTER.fields)}}}{FIELD_SEPARATOR})"
    rf"(?=(?:{'|'.join(TYPE_NAMES)})(?:[{FIELD_SEPARATOR}{RECORD_TERMINATOR}]|\z))"
)
# What every glued record has and hardly any other body: a type name behind a field. Cheap to look for in every body.
_NAME_INSIDE: Final = rf"{FIELD_SEPARATOR}(?:{'|'.join(TYPE_NAMES)})(?:[{FIELD_SEPARATOR}{RECORD_TERMINATOR}]|\z)"
_UTF_8: Final = "utf-8"

_KINDS: Final[dict[TraceType, tuple[Kind, str]]] = {
    TraceType.PUB: (Kind.PUBLISH, "whole"),
    TraceType.SUB_BEFORE: (Kind.CONSUME, "before"),
    TraceType.SUB_AFTER: (Kind.CONSUME, "after"),
    TraceType.END_TRANSACTION: (Kind.TRANSACTION_END, "whole"),
    TraceType.RECALL: (Kind.RECALL, "whole"),
}


def native_bodies(bodies: DataFrame, *, charset: str = _UTF_8) -> DataFrame:
    """Return ``READ_BODY`` plus ``text`` (never invalid) and ``raw_records``, counted without the parser's help.

    Raises:
        UsageError: no such charset.
    """
    name = charset_name(charset)
    text = F.make_valid_utf8(F.col("body").cast("string")) if name == _UTF_8 else F.decode("body", name.upper())
    pieces = F.regexp_count(F.col("text"), F.lit(f"[^{RECORD_TERMINATOR}]+"))
    counted = F.when(F.col("bad").isNotNull(), F.lit(1)).otherwise(F.coalesce(pieces, F.lit(0)))
    return bodies.withColumn("text", text).withColumn("raw_records", counted.cast("bigint"))


def native_events(bodies: DataFrame, *, writer: str, msg_type_map: str = "a") -> DataFrame:
    """Return ``NORMALISED`` plus ``extra``: how many rows a row stands for beyond one per raw record (see books).

    Args:
        bodies: the answer of :func:`native_bodies`.
        writer: what the events' ``writer`` says.
        msg_type_map: ``a`` or ``b``.

    Raises:
        UsageError: no such map.
    """
    check_message_type_map(msg_type_map)
    return _events(typed_records(_records(bodies), msg_type_map=msg_type_map), writer)


def charset_name(charset: str) -> str:
    """Return the canonical name of a charset; ``UsageError`` when there is none of that name."""
    try:
        return codecs.lookup(charset).name
    except LookupError:
        raise UsageError(f"unknown charset {charset!r}; use a text encoding such as utf-8 or gbk") from None


def check_message_type_map(name: str) -> None:
    """Raise ``UsageError`` unless there is a map of that name."""
    if name not in MESSAGE_TYPE_MAPS:
        raise UsageError(f"unknown message type map {name!r}; choose one of {', '.join(MESSAGE_TYPE_MAPS)}")


def _records(bodies: DataFrame) -> DataFrame:
    """One row per record: ``piece``, ``record_index``, ``call_size`` (records of the same hook call), ``extra``."""
    looked_at = bodies.withColumn("suspect", F.col("text").rlike(_NAME_INSIDE))
    unglued = F.when(F.col("suspect"), F.regexp_replace("text", _GLUED, f"$1{RECORD_TERMINATOR}"))
    pieces = F.array_remove(F.split(F.coalesce(unglued, "text"), RECORD_TERMINATOR), "")
    kept = F.when(F.col("bad").isNull(), pieces).otherwise(F.array(F.lit("")))
    listed = _with_call_sizes(looked_at.withColumn("pieces", kept))
    # Told from the text, not from the pieces: else a piece lost by the split would balance itself.
    insertions = F.when(F.col("suspect"), F.regexp_count("text", F.lit(_GLUED))).otherwise(F.lit(0))
    rows = listed.select(
        *("source", "arrival_ms", "path", "line", "bad"),
        insertions.alias("surplus"),
        F.posexplode(F.arrays_zip("pieces", "sizes")).alias("record_index", "record"),
    )
    surplus_once = F.when(F.col("record_index") == 0, F.col("surplus")).otherwise(F.lit(0))
    return rows.select(
        *("source", "arrival_ms", "path", "line", "bad", "record_index"),
        F.col("record.pieces").alias("piece"),
        F.col("record.sizes").alias("call_size"),
        surplus_once.cast("bigint").alias("surplus"),
    )


def _with_call_sizes(bodies: DataFrame) -> DataFrame:
    """Add ``sizes``: of each piece how many of the body belong to its call; sorted once, for bodies may be long."""

    def opens(at: Column) -> Column:
        own, before = (F.get("ordered", at + step)["call"] for step in (0, -1))
        return own.isNull() | ~own.eqNullSafe(before)

    ordered = F.array_sort(
        F.transform("pieces", lambda piece, at: F.struct(_call(piece).alias("call"), at.alias("at")))
    )
    places = F.when(F.size("ordered") > 0, F.sequence(F.lit(0), F.size("ordered") - 1)).otherwise(F.array())
    ends = F.concat(F.slice("starts", 2, F.size("starts")), F.array(F.size("ordered")))
    sizes = F.flatten(F.zip_with("starts", "ends", lambda start, end: F.array_repeat(end - start, end - start)))
    placed = F.zip_with(
        "ordered", "sorted_sizes", lambda one, size: F.struct(one["at"].alias("at"), size.alias("size"))
    )
    return (
        bodies.withColumn("ordered", ordered)
        .withColumn("starts", F.filter(places, opens))
        .withColumn("ends", ends)
        .withColumn("sorted_sizes", sizes)
        .withColumn("sizes", F.transform(F.array_sort(placed), lambda one: one["size"]))
    )


def _call(piece: Column) -> Column:
    """Return what the records of one listener call have in common: the half and the request id; null for others."""

    def of_half(kind: TraceType) -> tuple[Column, Column]:
        at = FORMS[kind][0].fields.index("request_id") + 2  # counted from 1, the type name first
        request = F.split_part(piece, F.lit(FIELD_SEPARATOR), F.lit(at))
        return F.startswith(piece, F.lit(kind.value + FIELD_SEPARATOR)), F.concat(F.lit(kind.value), request)

    return F.when(*of_half(TraceType.SUB_AFTER)).when(*of_half(TraceType.SUB_BEFORE))


def _events(typed: DataFrame, writer: str) -> DataFrame:
    ids = F.coalesce(F.split("msg_id", ","), F.array(F.lit(None).cast("string")))
    offsets = F.split("offset_msg_id", ",")
    exploded = (
        typed.withColumn("offsets", offsets)
        .withColumn("id_count", F.size(ids))
        .select(
            "*",
            F.posexplode(ids).alias("id_at", "one_id"),
        )
    )
    columns = {**_columns(writer), "extra": (F.col("surplus") * (F.col("id_at") == 0).cast("bigint")) + _after_first()}
    return exploded.select(*(columns[name].alias(name) for name in (*NORMALISED.names, "extra", "source")))


def _after_first() -> Column:
    return F.when(F.col("id_at") > 0, F.lit(1)).otherwise(F.lit(0)).cast("bigint")


def _by_type(values: Mapping[TraceType, Column | str]) -> Column:
    return F.coalesce(*(F.when(F.col("type") == kind.value, value) for kind, value in values.items()))


def _columns(writer: str) -> dict[str, Column]:
    null = {field.name: F.lit(None).cast(field.dataType) for field in NORMALISED.fields}
    plain = ("retry_times", "body_length", "msg_type", "success", "context_code", "transaction_state")
    timestamp, cost = F.col("timestamp_ms"), F.col("cost_ms").cast("bigint")
    is_publish = F.col("type") == TraceType.PUB.value
    return {
        **null,
        **{name: F.col(name) for name in (*plain, "from_transaction_check", "record_index", "bad")},
        **{name: F.col(name) for name in ("arrival_ms", "path", "line", "source")},
        **{name: present(F.col(name)) for name in ("topic", "group_name", "region_id", "tags", "store_host")},
        "side": F.lit("native"),
        "kind": _by_type({kind: F.lit(event.value) for kind, (event, _) in _KINDS.items()}),
        "half": _by_type({kind: F.lit(half) for kind, (_, half) in _KINDS.items()}),
        "msg_id": folded_id(F.col("one_id")),
        "offset_msg_id": folded_id(_own_offset()),
        "attempt_id": folded_id(F.col("request_id")),
        "transaction_id": folded_id(F.col("transaction_id")),
        "keys": key_set(F.array("keys")),
        "client_host": present(F.col("client_host")),
        "start_ms": F.when(F.col("type") != TraceType.SUB_AFTER.value, timestamp),
        "end_ms": _by_type({TraceType.PUB: F.try_add(timestamp, cost), TraceType.SUB_AFTER: timestamp}),
        "cost_ms": cost,
        "batch_size": F.when(is_publish, F.col("id_count")).otherwise(F.col("call_size")),
        "writer": F.lit(writer),
        "raw_hash": F.xxhash64("piece", "id_at"),
    }


def _own_offset() -> Column:
    """A batch has one offset id per message, joined with commas like the message ids; some writers give one for all."""
    return F.coalesce(F.get("offsets", F.col("id_at")), F.get("offsets", F.lit(0)))
