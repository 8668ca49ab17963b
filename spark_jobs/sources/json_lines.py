"""This module knows OTLP JSON lines as Spark columns: one given schema, the tolerances of ``spans`` as expressions.

Every leaf is read as text: numbers may be texts, enumerations names, identifiers base64; the conversion is ours. A
line may hold a torn message and a whole one after it (``append: true`` after a kill); an object can only start where
its name does, because a quote inside a text is escaped, so the line comes apart there. A line that does not fit the
schema is read again level by level, each as text first: one odd span is bad alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, StringType, StructField, StructType

from spark_jobs.evidence import bad
from spark_jobs.schemas import READ_SPAN
from spark_jobs.sources.containers import NOT_TRACES
from spark_jobs.sources.plain_span import KINDS, NOT_A_SPAN, STATUSES
from spark_jobs.sources.witness import ID_NAME

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
_SCOPES: Final = ArrayType(_struct(scope=_struct(name=_TEXT), spans=ArrayType(_SPAN)))
_RESOURCE_SPANS: Final = _struct(
    resource=_struct(attributes=_ATTRIBUTES),
    scopeSpans=_SCOPES,
    instrumentationLibrarySpans=ArrayType(_struct(instrumentationLibrary=_struct(name=_TEXT), spans=ArrayType(_SPAN))),
)
_LINE: Final = _struct(resourceSpans=ArrayType(_RESOURCE_SPANS), _corrupt=_TEXT)

_TEXTS: Final = ArrayType(_TEXT)
_LOOSE_LINE: Final = _struct(resourceSpans=_TEXTS)
_LOOSE_RESOURCE_SPANS: Final = _struct(resource=_TEXT, scopeSpans=_TEXT, instrumentationLibrarySpans=_TEXT)
_LOOSE_SCOPE_SPANS: Final = _struct(scope=_TEXT, instrumentationLibrary=_TEXT, spans=_TEXT)
_LOOSE_SPAN: Final = StructType([*_SPAN.fields, StructField("_corrupt", _TEXT)])
_PLACED: Final = _struct(service=_TEXT, scope=_TEXT, span=_SPAN, odd=_TEXT)
_PERMISSIVE: Final = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": "_corrupt"}

_NAME: Final = '"resourceSpans"'
_OBJECT_START: Final = rf"(?<=.)(?=\{{\s*{_NAME}\s*:)"
# What every line has that comes apart and hardly any other; it begins with a literal, which is found at once.
_LATER_NAME: Final = rf"{_NAME}(?<=(?s:..){_NAME})"
_OTHER_SIGNALS: Final = r'\A\s*\{\s*(\}|"resource(Metrics|Logs)")'
_ARRAY: Final = r"\A\s*\["


def spans_from_lines(lines: DataFrame, counts: tuple[Observation, Observation]) -> DataFrame:
    """Return the spans of ``lines`` (``path, line, text``) as ``READ_SPAN``; ``counts`` observe ``records``.

    ``records`` are the spans in the parsed lines, counted before any is taken out, one for each line that has none but
    should have, and what the parser dropped: the span ids in the text (first count) less those in what came out of it
    (second count, below zero).
    """
    written, parsed = counts
    return _spans_of_pieces(_counted(_pieces(lines), written), parsed)


def _pieces(lines: DataFrame) -> DataFrame:
    """Return ``path, line, text, other, broken, spans``: a row for each message, or what should have been one."""
    split = F.when(F.col("text").rlike(_LATER_NAME), F.split("text", _OBJECT_START)).otherwise(F.array("text"))
    pieces = lines.select("path", "line", F.explode(split).alias("text"))
    wrapped = F.when(F.col("text").rlike(_ARRAY), F.concat(F.lit('{"resourceSpans":'), "text", F.lit("}")))
    whole = pieces.withColumn("whole", F.coalesce(wrapped, "text"))
    parsed = whole.withColumn("message", F.from_json("whole", _LINE, _PERMISSIVE))
    resources = F.col("message.resourceSpans")
    other = F.col("text").rlike(_OTHER_SIGNALS)
    misfit = F.col("message._corrupt").isNotNull() | (resources.isNull() & ~other)
    held = F.when(misfit, _odd_spans(F.col("whole"))).otherwise(_spans(resources))
    spans = parsed.select("path", "line", "text", other.alias("other"), held.alias("spans"))
    broken = F.col("spans").isNull() & ~F.col("other")
    return spans.withColumn("broken", broken)


def _counted(pieces: DataFrame, count: Observation) -> DataFrame:
    held = F.size(F.coalesce("spans", F.array())) + F.regexp_count("text", F.lit(ID_NAME))
    due = F.when(F.col("broken"), F.lit(1)).when(F.col("other"), F.lit(0)).otherwise(held)
    return pieces.observe(count, F.sum(due).cast("bigint").alias("records"))


def _spans_of_pieces(pieces: DataFrame, count: Observation) -> DataFrame:
    # A whole line beside each of its hundred spans would be copied as often.
    no_line = F.when(F.col("broken"), bad(None, NOT_TRACES, F.make_valid_utf8("text"))).alias("no_line")
    told = pieces.select("path", "line", "broken", no_line, "spans")
    rows = told.select("path", "line", "broken", "no_line", F.explode_outer("spans").alias("one"))
    kept = rows.where(F.col("broken") | F.col("one").isNotNull())
    watched = kept.observe(count, (-F.sum(_ids())).cast("bigint").alias("records"))
    return watched.select(*(column.alias(name) for name, column in _columns().items())).select(*READ_SPAN.names)


def _ids() -> Column:
    """Return how many span ids came out of the parser in a row: the span's and its links', or those in an odd text."""
    span = F.col("one.span")
    linked = F.size(F.filter(F.coalesce(span["links"], F.array()), lambda link: link["spanId"].isNotNull()))
    odd = F.coalesce(F.regexp_count("one.odd", F.lit(ID_NAME)), F.lit(0))
    return (
        F.when(F.col("broken"), F.lit(0))
        .when(span.isNull(), odd)
        .otherwise(span["spanId"].isNotNull().cast("int") + linked)
    )


def _spans(resources: Column) -> Column:
    """Flatten resources and scopes to one array of ``{service, scope, span}``."""

    def of_resource(one: Column) -> Column:
        service = F.get(F.filter(one["resource"]["attributes"], lambda pair: pair["key"] == "service.name"), F.lit(0))
        old = one["instrumentationLibrarySpans"].cast(_SCOPES)  # the same under other names
        scopes = F.when(old.isNull(), F.coalesce(one["scopeSpans"], F.array())).otherwise(
            F.concat(F.coalesce(one["scopeSpans"], F.array()), old)
        )
        return F.flatten(F.transform(scopes, lambda part: of_scope(part, _value(service["value"]))))

    def of_scope(part: Column, service: Column) -> Column:
        def with_place(span: Column) -> Column:
            return _placed(service, part["scope"]["name"], span, F.lit(None))

        return F.transform(F.coalesce(part["spans"], F.array()), with_place)

    return F.flatten(F.transform(F.coalesce(resources, F.array()), of_resource))


def _placed(service: Column, scope: Column, span: Column, odd: Column) -> Column:
    parts = {"service": service, "scope": scope, "span": span, "odd": odd}
    return F.struct(*(column.alias(name) for name, column in parts.items())).cast(_PLACED)


def _odd_spans(line: Column) -> Column:
    """Return what :func:`_spans` does of a line it cannot read; null when the line is no message at all.

    A level that is no list of objects stands for one span that is none.
    """
    nothing = F.lit(None)

    def of_resource(text: Column) -> Column:
        one = F.from_json(text, _LOOSE_RESOURCE_SPANS, _PERMISSIVE)
        resource = F.from_json(one["resource"], _struct(attributes=_ATTRIBUTES), _PERMISSIVE)
        service = F.get(F.filter(resource["attributes"], lambda pair: pair["key"] == "service.name"), F.lit(0))
        parts = _level(F.coalesce(one["scopeSpans"], one["instrumentationLibrarySpans"]), text)
        return F.flatten(F.transform(parts, lambda part: of_scope(part, _value(service["value"]))))

    def of_scope(text: Column, service: Column) -> Column:
        one = F.from_json(text, _LOOSE_SCOPE_SPANS, _PERMISSIVE)
        named = F.coalesce(one["scope"], one["instrumentationLibrary"])
        scope = F.from_json(named, _struct(name=_TEXT), _PERMISSIVE)["name"]
        return F.transform(_level(one["spans"], text), lambda span: of_span(span, service, scope))

    def of_span(text: Column, service: Column, scope: Column) -> Column:
        span = F.from_json(text, _LOOSE_SPAN, _PERMISSIVE)
        fits = F.struct(*(span[name].alias(name) for name in _SPAN.names))
        return F.when(span.isNotNull() & span["_corrupt"].isNull(), _placed(service, scope, fits, nothing)).otherwise(
            _placed(service, scope, nothing, text),
        )

    resources = F.from_json(line, _LOOSE_LINE, _PERMISSIVE)["resourceSpans"]
    return F.flatten(F.transform(resources, of_resource))


def _level(listed: Column, around: Column) -> Column:
    """Return the texts of a JSON array in a text; the text itself where it is none; nothing where it is absent."""
    is_object = around.startswith("{")
    absent = F.when(is_object, F.array().cast(_TEXTS)).otherwise(F.array(around))
    items = F.from_json(listed, _TEXTS, _PERMISSIVE)
    return F.when(listed.isNull(), absent).otherwise(F.coalesce(items, F.array(listed)))


def _columns() -> dict[str, Column]:
    span = F.col("one.span")
    start, end = span["startTimeUnixNano"], span["endTimeUnixNano"]
    odd = F.coalesce("one.odd", F.lit(""))
    no_span = F.when(span.isNull(), bad(None, NOT_A_SPAN, odd))
    known = F.to_json(F.struct(span["attributes"], span["links"]))
    times = (_bad_time("start_ns", start, known), _bad_time("end_ns", end, known))
    problem = F.coalesce("no_line", no_span, *times)
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


def _bad_time(field: str, text: Column, within: Column) -> Column:
    unreadable = (text != "") & text.try_cast("bigint").isNull()
    return F.when(unreadable, bad(field, "not a number", text, within=within))


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
