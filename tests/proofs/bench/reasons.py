"""Explain the figures: the floor below each, and why a missed target is missed.

A sentence is said only while its target is missed. Its numbers are those of the page, and it says of which section.
"""

from collections.abc import Callable, Mapping
from typing import Final

from tests.proofs.bench import forwarder, growth, imports, steps
from tests.proofs.bench.rows import TIMES, Row, written
from tests.proofs.bench.sections import SECTIONS

Measured = Mapping[str, list[Row]]
_OF_SECONDS: Final = frozenset({"ms", "records/s"})
_SPAN_US: Final = 10.6
_NOTHING: Final = "No target that was measured is missed."


def reasons(measured: Measured) -> list[str]:
    """Return the lines of the section, one paragraph for each missed target that has a known floor, then the others."""
    missed = [(name, row) for name, rows in measured.items() for row in rows if row.met is False]
    lines = []
    for name, row in missed:
        told = _REASONS.get((name, row.measure)) or _REASONS.get((name, row.measure.partition(",")[0]))
        said = told(row, measured) if told else f"Measured as {_ratio(row)}; the rows above say what it is made of."
        lines += [f"* **{row.measure}**, beside {row.anchor}: {said}{_of_the_day(row, measured)}"]
    return [*(lines or [_NOTHING]), ""]


def _ratio(row: Row) -> str:
    if row.target is not None and row.target.unit == TIMES:
        return f"{row.ratio:.2f} x, wanted {row.target}"
    return f"{written(row.ours)} {row.unit}, wanted {row.target}"


def _of_the_day(row: Row, measured: Measured) -> str:
    unit = "" if row.target is None else row.target.unit
    took = _figure(measured, "steps", steps.SPAN)
    if unit not in _OF_SECONDS or took is None:
        return ""
    return f" The bound was set on a machine where {steps.SPAN}, took {_SPAN_US} µs; here it takes {written(took)}."


def _figure(measured: Measured, section: str, measure: str) -> float | None:
    return next((row.ours for row in measured.get(section, ()) if row.measure == measure), None)


def _made_of(section: str, *parts: str, why: str) -> Callable[[Row, Measured], str]:
    def told(row: Row, measured: Measured) -> str:
        known = {part: figure for part in parts if (figure := _figure(measured, section, part)) is not None}
        listed = "; ".join(f"{part}: {written(figure)}" for part, figure in known.items())
        title = SECTIONS[section].title
        return f"{_ratio(row)}. {why}{f' (*{title}*: {listed})' if listed else ''}."

    return told


_STAMPED: Final = (
    "Each span is put in with its time of arrival, for the books and the linger time of each lane; the anchor appends the span "
    "alone"
)
_BATCHES: Final = (
    "A batch is 100 spans here, as RocketMQ's, and 512 there: the worker comes five times as often, and each time the thread "
    "that offers has to let it in"
)
_PARSED: Final = (
    "OTLP's parser is C; ours is Python: a split of the text, and an object of Python for each record and its bean"
)
_FORWARDED: Final = "To decode, pair and write is all of it, in Python"
_FROM_KAFKA: Final = (
    "To decode, pair and write is most of it, in Python; the Collector, in Go, hands on what are spans already"
)

_TRUSTING: Final = "The loop trusts its input. Ours looks for what is malformed, hashes every span, tells its events and keeps its books"
_WHOLE: Final = (
    "The others start with parsed tables and stop at a verdict; ours reads, pairs, attributes and reports. Of a run on Spark "
    "the start of its JVM and of the first Python workers is the larger part"
)
_JUDGED: Final = (
    "The anchor joins and compares in C++; ours also pairs copies and halves, says why, keeps the books, writes every report, "
    "and imports what it needs for that"
)

_REASONS: Final[Mapping[tuple[str, str], Callable[[Row, Measured], str]]] = {
    ("processor", "`on_end` with room"): _made_of("steps", steps.APPENDED, why=_STAMPED),
    ("processor", "spans through the processor"): _made_of("steps", why=_BATCHES),
    ("codec", "native decode"): _made_of("steps", steps.SPLIT, steps.MODEL, steps.DECODED, why=_PARSED),
    ("forwarder", "trace records forwarded"): _made_of("forwarder", forwarder.WRITTEN, why=_FORWARDED),
    ("from-kafka", "trace records forwarded from Kafka"): _made_of("from-kafka", forwarder.WRITTEN, why=_FROM_KAFKA),
    ("normalisation", "OTLP JSON to events"): _made_of("normalisation", why=_TRUSTING),
    ("normalisation", "OTLP protobuf to events"): _made_of("normalisation", why=_TRUSTING),
    ("reconcile", "reconcile from raw files, Spark"): _made_of(
        "growth", growth.TASKS, growth.COMPILERS, growth.OTHERS, why=_WHOLE
    ),
    ("reconcile", "reconcile from raw files, one process"): _made_of("reconcile", why=_WHOLE),
    ("reconcile", "reconcile from normalised parquet, one process"): _made_of("reconcile", why=_JUDGED),
    ("imports", f"`{imports.SWITCH}`"): _made_of(
        "imports", imports.INSTRUMENTOR, why="OpenTelemetry's base class of an instrumentor is loaded first"
    ),
    ("imports", "`mqtrace --help`"): _made_of("imports", imports.TYPER, why="The page is typer's, drawn by rich"),
}
