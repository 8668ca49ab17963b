"""This module knows how a native record's text becomes typed columns: expressions generated from the layout table.

The same rules as ``bridge.codec.native.decode``, which a test holds against this on real and on generated bodies: the
type and the number of filled fields choose the form; numbers as Java parses them; the first bad field is named.

Four selects, one after the other, so that each expression is written once: the plan grows with the table, not with its
powers (Spark keeps a column that is used more than once in a select of its own).
"""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F

from bridge.codec.native.layout import (
    FIELD_SEPARATOR,
    FIELDS,
    FORMS,
    KEPT_FIELDS,
    MESSAGE_TYPE_MAPS,
    FieldKind,
    Form,
)
from otel_mqtrace.model import ContextCode, TraceType, TransactionState
from spark_jobs.evidence import bad
from spark_jobs.normalise.texts import integer_text

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["KEPT_FIELDS", "TYPE_NAMES", "typed_records"]

TYPE_NAMES: Final = tuple(trace_type.value for trace_type in TraceType)
_NUMBERED: Final = tuple((trace_type, form) for trace_type in TraceType for form in FORMS[trace_type])
_CASTS: Final = {
    FieldKind.LONG: "bigint",
    FieldKind.INT: "int",
    FieldKind.MESSAGE_TYPE: "int",
    FieldKind.CONTEXT_CODE: "int",
}
_BITS: Final = {"bigint": 64, "int": 32}
_INTEGERS: Final = tuple(name for name in KEPT_FIELDS if FIELDS[name] in _CASTS)
_STATES: Final = tuple(state.value for state in TransactionState)
_PROBLEM: Final = "_problem"


def typed_records(records: DataFrame, *, msg_type_map: str) -> DataFrame:
    """Return ``records`` with ``type``, every kept field as a typed column, and ``bad`` where there was none.

    Args:
        records: has ``piece``, the text of one record, and ``bad``, null unless the piece is no record to begin with.
        msg_type_map: ``a`` or ``b``.
    """
    given = [name for name in records.columns if name != "bad"]
    split = _with_form(records)
    texts = split.select("*", *(_text_of(name).alias(f"_{name}") for name in KEPT_FIELDS))
    integers = texts.select("*", *(integer_text(F.col(f"_{name}")).alias(f"_{name}_integer") for name in _INTEGERS))
    typed = integers.select("*", *(_typed(name, msg_type_map).alias(name) for name in KEPT_FIELDS))
    judged = typed.withColumn(_PROBLEM, _first_problem())
    good = F.col("bad").isNull() & F.col("_form").isNotNull() & F.col(_PROBLEM).isNull()
    # A bad record has no fields: half of one would be compared as if it were a whole.
    return judged.select(
        *given,
        F.coalesce("bad", _record_error()).alias("bad"),
        *(F.when(good, F.col(name)).alias(name) for name in ("type", *KEPT_FIELDS)),
    )


def _with_form(records: DataFrame) -> DataFrame:
    """Add ``type``, ``_fields``, ``_filled`` (fields up to the last one that is not empty) and the number ``_form``."""
    # Java's String.split drops empty texts at the end before it counts.
    separator = F.lit(FIELD_SEPARATOR)
    without_end = F.rtrim(F.col("piece"), separator)
    without_any = F.replace(without_end, separator, F.lit(""))
    split = records.select(
        "*",
        F.split("piece", FIELD_SEPARATOR).alias("_fields"),
        (F.octet_length(without_end) - F.octet_length(without_any) + 1).alias("_filled"),
    )
    named = split.select("*", F.get("_fields", F.lit(0)).alias("type"), F.size("_fields").alias("_count"))
    return named.withColumn("_form", _form())


def _form() -> Column:
    """Return the number of the longest form of its type that a record fills: one flat chain, longest first."""
    longest_first = sorted(enumerate(_NUMBERED), key=lambda item: -item[1][1].count)
    fits = [
        (
            (F.col("type") == kind.value) & (F.col("_count") >= form.count) & (F.col("_filled") >= _least_filled(form)),
            F.lit(number),
        )
        for number, (kind, form) in longest_first
    ]
    return _chain(fits)


def _chain(branches: list[tuple[Column, Column]]) -> Column:
    (condition, value), *rest = branches
    return reduce(lambda chain, branch: chain.when(*branch), rest, F.when(condition, value))


def _least_filled(form: Form) -> int:
    """Return how many fields must not be empty at the end: empty texts may stand there, empty numbers may not."""
    kinds = [FIELDS[name] for name in form.fields]
    while kinds and kinds[-1] is FieldKind.TEXT:
        kinds.pop()
    return len(kinds) + 1


def _index_of(name: str) -> Column:
    """Return where a field stands in the record's form; null when the form lacks it."""
    by_index: dict[int, list[int]] = {}
    for number, (_, form) in enumerate(_NUMBERED):
        if name in form.fields:
            by_index.setdefault(form.fields.index(name) + 1, []).append(number)
    return _chain([(F.col("_form").isin(numbers), F.lit(index)) for index, numbers in sorted(by_index.items())])


def _text_of(name: str) -> Column:
    return F.get(F.col("_fields"), _index_of(name))


def _typed(name: str, msg_type_map: str) -> Column:
    kind, text = FIELDS[name], F.col(f"_{name}")
    if kind is FieldKind.TEXT:
        return text
    if kind is FieldKind.BOOL:
        return F.lower(text) == "true"
    if kind is FieldKind.TRANSACTION_STATE:
        return F.when(text.isin(*_STATES), text)
    number = F.col(f"_{name}_integer").try_cast(_CASTS[kind])
    if kind in {FieldKind.LONG, FieldKind.INT}:
        return number
    names = _ordinals(kind, msg_type_map)
    return _chain([(number == ordinal, F.lit(value)) for ordinal, value in enumerate(names)])


def _ordinals(kind: FieldKind, msg_type_map: str) -> tuple[str, ...]:
    if kind is FieldKind.MESSAGE_TYPE:
        return tuple(item.value for item in MESSAGE_TYPE_MAPS[msg_type_map])
    return tuple(item.name for item in ContextCode)


def _first_problem() -> Column:
    """Return index, field, reason and text of the first field on the wire that is no value of its kind."""
    judged = [name for name in KEPT_FIELDS if FIELDS[name] in _CASTS or FIELDS[name] is FieldKind.TRANSACTION_STATE]
    return F.array_min(F.array(*(_problem(name) for name in judged)))


def _problem(name: str) -> Column:
    text = F.col(f"_{name}")
    found = F.struct(
        _index_of(name).alias("at"),
        F.lit(name).alias("field"),
        _reason(name).alias("reason"),
        text.alias("text"),
    )
    return F.when(text.isNotNull() & F.col(name).isNull(), found)


def _reason(name: str) -> Column:
    """Say it in the words of the decoder."""
    kind = FIELDS[name]
    if kind is FieldKind.TRANSACTION_STATE:
        return F.lit("unknown transaction state")
    integer, cast = F.col(f"_{name}_integer"), _CASTS[kind]
    return (
        F.when(integer.isNull(), F.lit("not a number"))
        .when(integer.try_cast(cast).isNull(), F.lit(f"does not fit {_BITS[cast]} bits"))
        .otherwise(F.lit(f"unknown {kind.value}"))
    )


def _record_error() -> Column:
    """Return why a piece is no record, null when it is one."""
    piece, problem = F.col("piece"), F.col(_PROBLEM)
    shortest = _chain([(F.col("type") == kind.value, F.lit(str(FORMS[kind][0].count))) for kind in TraceType])
    too_short = F.concat(F.col("_filled").cast("string"), F.lit(" fields, needs "), shortest)
    return (
        F.when(~F.col("type").isin(*TYPE_NAMES), bad("trace_type", "unknown record type", piece))
        .when(F.col("_form").isNull(), bad(None, too_short, piece))
        .when(problem.isNotNull(), bad(problem["field"], problem["reason"], problem["text"], within=piece))
    )
