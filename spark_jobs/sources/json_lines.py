"""This module knows OTLP JSON lines as Spark columns: one given schema, the tolerances of ``spans`` as expressions.

Every leaf is read as text: numbers may be texts, enumerations names, identifiers base64; the conversion is ours. A
line may hold a torn message and a whole one after it (``append: true`` after a kill); an object can only start where
its name does, because a quote inside a text is escaped, so the line comes apart there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, StringType, StructField, StructType

from spark_jobs.evidence import bad
from spark_jobs.schemas import READ_SPAN
from spark_jobs.sources.containers import NOT_TRACES
from spark_jobs.sources.spans import KINDS, STATUSES

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Observation

__all__ = ["spans_from_lines"]

_TEXT: Final = StringType()


def _struct(**fields: DataType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in fields.items()])


_SCALARS: Final = ("stringValue", "boolValue", "intValue", "doubleValue", "bytesValue")
_ELEMENT: Final = _struct(**dict.fromkeys(_SCALARS, _TEXT), arrayValue=_TEXT, kvlistValue=_TEXT)
_VALUE: Final = _struct(
    **dict.fromkeys(_SCALARS, _TEXT),
    arrayValue=_struct(values=ArrayType(_ELEMENT)),
    kvlistValue=_TEXT,
)
_ATTRIBUTES: Final = ArrayType(_struct(key=_TEXT, value=_VALUE))
_LINK: Final = _struct(traceId=_TEXT, spanId=_TEXT, flags=_TEXT, attributes=_ATTRIBUTES)
_SPAN: Final = _struct(
    **dict.fromkeys(("traceId", "spanId", "parentSpanId", "name", "kind", "flags"), _TEXT),
    **dict.fromkeys(("startTimeUnixNano", "endTimeUnixNano"), _TEXT),
    **dict.fromkeys(("droppedAttributesCount", "droppedLinksCount"), _TEXT),
    status=_struct(code=_TEXT),
    attributes=_ATTRIBUTES,
    links=ArrayType(_LINK),
)
_RESOURCE_SPANS: Final = _struct(
    resource=_struct(attributes=_ATTRIBUTES),
    scopeSpans=ArrayType(_struct(scope=_struct(name=_TEXT), spans=ArrayType(_SPAN))),
)
_LINE: Final = _struct(resourceSpans=ArrayType(_RESOURCE_SPANS), _corrupt=_TEXT)

_OBJECT_START: Final = r'(?<=.)(?=\{"resourceSpans":)'
_OTHER_SIGNALS: Final = r'\A\s*\{\s*(\}|"resource(Metrics|Logs)")'
_ARRAY: Final = r"\A\s*\["


def spans_from_lines(lines: DataFrame, count: Observation) -> DataFrame:
    """Return the spans of ``lines`` (``path, line, text``) as ``READ_SPAN``; ``count`` observes ``records``.

    ``records`` are counted before the spans are taken out: the spans of each line, and one for a line that has none but
    should have.
    """
    pieces = lines.select("path", "line", F.explode(F.split("text", _OBJECT_START)).alias("text"))
    wrapped = F.when(F.col("text").rlike(_ARRAY), F.concat(F.lit('{"resourceSpans":'), "text", F.lit("}")))
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": "_corrupt"}
    parsed = pieces.withColumn("message", F.from_json(F.coalesce(wrapped, "text"), _LINE, options))
    resources = F.col("message.resourceSpans")
    broken = F.col("message._corrupt").isNotNull() | (resources.isNull() & ~F.col("text").rlike(_OTHER_SIGNALS))
    held = F.when(~broken, _spans(resources))
    listed = parsed.select("path", "line", "text", broken.alias("broken"), held.alias("spans"))
    due = F.when(F.col("broken"), F.lit(1)).otherwise(F.size(F.coalesce("spans", F.array())))
    counted = listed.observe(count, F.sum(due).cast("bigint").alias("records"))
    rows = counted.select("path", "line", "text", "broken", F.explode_outer("spans").alias("one"))
    kept = rows.where(F.col("broken") | F.col("one").isNotNull())
    return kept.select(*(column.alias(name) for name, column in _columns().items())).select(*READ_SPAN.names)


def _spans(resources: Column) -> Column:
    """Flatten resources and scopes to one array of ``{service, scope, span}``."""

    def of_resource(one: Column) -> Column:
        service = F.get(F.filter(one["resource"]["attributes"], lambda pair: pair["key"] == "service.name"), F.lit(0))
        scopes = F.coalesce(one["scopeSpans"], F.array())
        return F.flatten(F.transform(scopes, lambda part: of_scope(part, _value(service["value"]))))

    def of_scope(part: Column, service: Column) -> Column:
        def with_place(span: Column) -> Column:
            return F.struct(service.alias("service"), part["scope"]["name"].alias("scope"), span.alias("span"))

        return F.transform(F.coalesce(part["spans"], F.array()), with_place)

    return F.flatten(F.transform(F.coalesce(resources, F.array()), of_resource))


def _columns() -> dict[str, Column]:
    span, broken = F.col("one.span"), F.col("broken")
    start, end = span["startTimeUnixNano"], span["endTimeUnixNano"]
    no_line = F.when(broken, bad(None, NOT_TRACES, F.make_valid_utf8("text")))
    problem = F.coalesce(no_line, _bad_time("start_ns", start), _bad_time("end_ns", end))
    return {
        "trace_id": _id(span["traceId"]),
        "span_id": _id(span["spanId"]),
        "parent_span_id": _parent(_id(span["parentSpanId"])),
        "name": F.coalesce(span["name"], F.lit("")),
        "kind": _enum(span["kind"], KINDS, "SPAN_KIND_"),
        "start_ns": _long(start),
        "end_ns": _long(end),
        "status": _enum(span["status"]["code"], STATUSES, "STATUS_CODE_"),
        "service": F.col("one.service"),
        "scope": F.nullif(F.col("one.scope"), F.lit("")),
        "flags": _long(span["flags"]),
        "attributes": _map(span["attributes"]),
        "links": F.transform(F.coalesce(span["links"], F.array()), _link),
        "dropped_attributes": _long(span["droppedAttributesCount"]),
        "dropped_links": _long(span["droppedLinksCount"]),
        "path": F.col("path"),
        "line": F.col("line"),
        "raw_hash": F.lit(None).cast("bigint"),
        "bad": problem,
    }


def _bad_time(field: str, text: Column) -> Column:
    unreadable = (text != "") & text.try_cast("bigint").isNull()
    return F.when(unreadable, bad(field, "not a number", text))


def _long(text: Column) -> Column:
    return F.coalesce(text.try_cast("bigint"), F.lit(0).cast("bigint"))


def _id(text: Column) -> Column:
    """Lower-case hex; base64 of 16 or 8 bytes is seen in the wild; null when absent."""
    is_base64 = F.length(text).isin(12, 24) & text.endswith("=")
    from_base64 = F.lower(F.hex(F.try_to_binary(text, F.lit("base64"))))
    return F.when(is_base64, F.coalesce(from_base64, text)).when(text != "", F.lower(text))


def _parent(span_id: Column) -> Column:
    return F.when(~span_id.rlike(r"\A0*\z"), span_id)


def _enum(value: Column, names: tuple[str, ...], prefix: str) -> Column:
    by_name = F.regexp_replace(value, f"^{prefix}", "")
    by_number = F.get(F.array(*map(F.lit, names)), value.try_cast("int"))
    return F.coalesce(by_number, F.when(by_name.isin(*names), by_name), F.lit(names[0]))


def _link(link: Column) -> Column:
    return F.struct(
        _id(link["traceId"]).alias("trace_id"),
        _id(link["spanId"]).alias("span_id"),
        _long(link["flags"]).alias("flags"),
        _map(link["attributes"]).alias("attributes"),
    )


def _map(pairs: Column) -> Column:
    def entry(pair: Column) -> Column:
        return F.struct(F.coalesce(pair["key"], F.lit("")).alias("key"), _value(pair["value"]).alias("value"))

    return F.map_from_entries(F.transform(F.coalesce(pairs, F.array()), entry))


def _value(value: Column) -> Column:
    """One AnyValue as text: scalars as they stand, an array as a JSON array of texts, a map as its own JSON."""
    array = F.when(
        value["arrayValue"].isNotNull(),
        F.to_json(F.transform(F.coalesce(value["arrayValue"]["values"], F.array()), _element)),
    )
    return F.coalesce(*(value[name] for name in _SCALARS), array, value["kvlistValue"])


def _element(value: Column) -> Column:
    return F.coalesce(*(value[name] for name in (*_SCALARS, "arrayValue", "kvlistValue")))
