"""Write ``docs/performance.md`` from the measured figures: the tables, the targets, why a target is missed."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from tests.proofs.bench.record import Figures, is_quick
from tests.proofs.bench.rows import RATIO, Row, format_figure
from tests.proofs.bench.sections import SECTIONS

_NOTE: Final = "<!-- Generated from docs/performance.json by `make performance`. Measure again, do not edit. -->"
_HEAD: Final = ("measure", "compared with", "ours", "theirs", "unit", "ratio (lowest to highest)", "target", "met")
_MET: Final = {True: "yes", False: "**no**", None: "-"}
_OPENING: Final = """\
# Performance

The cost of tracing in an application, and the speed of the tools. Where a row names something to compare with, both were
measured in turns, in one run on one machine. Absolute figures differ between machines; ratios roughly carry over.

* Every figure is a median over the rounds. The ratio is the median of the rounds' own ratios, with their lowest and highest
  in brackets.
* A benchmark fails when a span, a record or an event is missing.
* A row without a target is published for information.
* Every section names the commit and the date of its run. Long sections may be older than the code.
"""
_REPEAT: Final = """\
## Run it yourself

```sh
make bench
make performance
```

`make bench` writes `build/bench.json`; `make performance` writes this page from it. Long sections run only when named:

| section | minutes, about | command |
| --- | --- | --- |
"""
_QUICK: Final = "\n!!! warning\n    A quick run: it shows that the benchmark works, its figures mean nothing.\n"
_WHOLE_RUN: Final = (
    "the others start from parsed tables and stop at a verdict; ours reads, pairs, attributes and writes every report"
)
_REASONS: Final[Mapping[tuple[str, str], str]] = {
    ("processor", "`on_end` with room"): "every span is queued with its arrival time, for the linger time of its lane",
    ("processor", "spans through the processor"): (
        "the worker takes batches of 100 spans, as RocketMQ does, where the other takes 512, so it interrupts the caller more often"
    ),
    ("codec", "native decode"): "OTLP's parser is written in C, ours in Python",
    ("from-kafka", "trace records forwarded from Kafka"): (
        "decoding, pairing and encoding in Python take most of it; the Collector, in Go, forwards finished spans"
    ),
    ("reconcile", "reconcile from raw files"): _WHOLE_RUN,
    ("reconcile", "reconcile from normalised parquet"): (
        f"{_WHOLE_RUN}; the imports alone take longer than the whole process of the other"
    ),
}
"""(Section, first words of the measure) → why its target is missed, as far as it is known."""


def make_page(figures: Figures) -> str:
    """Return the page."""
    complete = {name: read_rows(figures[name]) for name in SECTIONS if name in figures and not is_quick(figures[name])}
    lines = [_NOTE, _OPENING, *_summarise(complete)]
    for name in SECTIONS:
        lines += _section(name, figures.get(name))
    lines += [
        _REPEAT.rstrip("\n"),
        *(f"| {name} | {one.minutes} | {_command(name)} |" for name, one in SECTIONS.items()),
    ]
    return "\n".join([*lines, ""])


def read_rows(section: Mapping[str, Any]) -> list[Row]:
    """Return the rows of a section."""
    return [Row.from_json(fields) for fields in section["rows"]]


def format_row(row: Row) -> tuple[str, ...]:
    """Return the cells of a row, in the order of the table's head."""
    spread = ""
    if row.low is not None and row.high is not None and row.low != row.high:
        spread = f" ({format_figure(row.low)} to {format_figure(row.high)})"
    ratio = "" if row.ratio is None else f"{format_figure(row.ratio)} x{spread}"
    theirs = "" if row.theirs is None else format_figure(row.theirs)
    target = "" if row.target is None else str(row.target)
    return (row.measure, row.anchor, format_figure(row.ours), theirs, row.unit, ratio, target, _MET[row.met])


def _summarise(complete: Mapping[str, list[Row]]) -> Iterable[str]:
    judged = [(name, row) for name, rows in complete.items() for row in rows if row.met is not None]
    missed = [(name, row) for name, row in judged if not row.met]
    unmeasured = [f"`{name}`" for name in SECTIONS if name not in complete]
    yield f"{len(judged) - len(missed)} of {len(judged)} targets are met{'. Missed:' if missed else '.'}\n"
    yield from (f"* {row.measure}: {_deviation(row)}{_reason(name, row)}." for name, row in missed)
    yield from [""] if missed else []
    yield from [f"Not measured yet: {', '.join(unmeasured)}.\n"] if unmeasured else []


def _deviation(row: Row) -> str:
    is_ratio = row.target is not None and row.target.unit == RATIO
    value = row.ratio if is_ratio and row.ratio is not None else row.ours
    bound = row.target.bound if row.target else 0.0
    rounded = format_figure(value)
    figure = rounded if float(rounded.replace(",", "")) != bound else f"{value:,.4g}"  # 1.303 for a bound of 1.3
    figure = f"{figure} {RATIO if is_ratio else row.unit}"
    return (
        f"{figure}, target {row.target}, compared with {row.anchor}" if is_ratio else f"{figure}, target {row.target}"
    )


def _reason(section: str, row: Row) -> str:
    return next(
        (f"; {why}" for (name, begin), why in _REASONS.items() if name == section and row.measure.startswith(begin)), ""
    )


def _section(name: str, figures: Mapping[str, Any] | None) -> Iterable[str]:
    section = SECTIONS[name]
    yield from (f"## {section.title}", "", section.description, "")
    if figures is None:
        yield from (f"Not measured yet: {_command(name)}.", "")
        return
    rows = read_rows(figures)
    yield from (f"| {' | '.join(cells)} |" for cells in (_HEAD, ["---"] * len(_HEAD), *map(format_row, rows)))
    notes = dict.fromkeys(f"* {row.measure}: {row.note}." for row in rows if row.note)
    yield from ("", *notes) if notes else ()
    if is_quick(figures):
        yield _QUICK.rstrip("\n")
    yield from ("", _circumstances(figures), "")


def _circumstances(figures: Mapping[str, Any]) -> str:
    machine, rounds, messages = figures["machine"], figures["effort"]["rounds"], figures["effort"]["messages"]
    libraries = ", ".join(f"{name} {number}" for name, number in machine["libraries"].items())
    work = f"{rounds} round{'s' * (rounds > 1)}" + (f" of {messages:,} messages" if messages else "")
    commit = figures.get("commit")
    return (
        f"Measured {figures['measured_at']}{f' at commit `{commit}`' if commit else ''}, {work}, on {machine['processor']}, "
        f"{machine['cores']} cores, {machine['memory_gib']} GiB, {machine['system']}, load before {machine['load_before']:g}; "
        f"Python {machine['python']}, {libraries}."
    )


def _command(name: str) -> str:
    return "`make bench`" if SECTIONS[name].is_default else f"`make bench ARGS='--only {name}'`"
