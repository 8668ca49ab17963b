"""Write ``docs/performance.md``: what was measured, the targets, and where the time goes.

The page is made of figures alone: verdicts are worked out from them here, and reasons are given for what is missed only.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from tests.proofs.bench.reasons import reasons
from tests.proofs.bench.record import Figures, is_quick
from tests.proofs.bench.rows import Row, written
from tests.proofs.bench.sections import SECTIONS

_NOTE: Final = "<!-- Generated from docs/performance.json by `make performance`. Measure again, do not edit. -->"
_HEAD: Final = ("measure", "anchor", "ours", "anchor's", "unit", "ratio (rounds)", "target", "met")
_WORDS: Final = {True: "yes", False: "**no**", None: "-"}
_OPENING: Final = """\
# Performance

What it costs to switch this on, and how fast the tools read what it leaves. Where there is an anchor, ours and it take
turns in one run on one machine, so that a busy moment hits both. Microseconds do not carry over to another machine, ratios
do, roughly.

* Medians over the rounds count: of ours, of the anchor's, and of the ratios of the single rounds, which need not be the ratio
  of the other two. In brackets stand the lowest and the highest ratio.
* A benchmark fails when a span, a record or an event is missing: a fast run that does nothing cannot look good.
* `met` is worked out from the figures when this page is written. A row without a target is published without a promise.
* CI checks counts, not times: Spark jobs of a run; objects, memory blocks and the interpreter's instructions of a send; spans of a
  poll; modules of an import.
* Every section names the commit it measured. One that takes long may be older than the code beside it.
"""
_REPEAT: Final = """\
## To repeat

```sh
make bench
make performance
```

`make bench` writes `build/bench.json`, `make performance` this page. Sections that take longer run when they are named, and
keep their date until they are measured again:

| section | minutes, about | command |
| --- | --- | --- |
"""
_QUICK: Final = """
!!! warning
    Measured with hardly any work: these figures show that the benchmark runs, and nothing else.
"""


def page(figures: Figures) -> str:
    """Return the page."""
    in_earnest = {name: rows_of(figures[name]) for name in SECTIONS if name in figures and not is_quick(figures[name])}
    lines = [_NOTE, _OPENING, _summary(in_earnest)]
    for name in SECTIONS:
        lines += _section(name, figures.get(name))
    lines += ["## Where the time goes", "", *reasons(in_earnest), _REPEAT.rstrip("\n")]
    lines += [f"| {name} | {one.minutes} | {_command(name)} |" for name, one in SECTIONS.items()]
    return "\n".join([*lines, ""])


def rows_of(section: Mapping[str, Any]) -> list[Row]:
    """Return the rows of a section."""
    return [Row.of_json(said) for said in section["rows"]]


def shown(row: Row) -> tuple[str, ...]:
    """Return the cells of a row, in the order of the table's head."""
    spread = (
        ""
        if row.low is None or row.high is None or row.low == row.high
        else f" ({written(row.low)} to {written(row.high)})"
    )
    ratio = "" if row.ratio is None else f"{written(row.ratio)} x{spread}"
    theirs = "" if row.theirs is None else written(row.theirs)
    target = "" if row.target is None else str(row.target)
    return (row.measure, row.anchor, written(row.ours), theirs, row.unit, ratio, target, _WORDS[row.met])


def _summary(in_earnest: Mapping[str, list[Row]]) -> str:
    judged = [row.met for rows in in_earnest.values() for row in rows if row.met is not None]
    missing = [f"`{name}`" for name in SECTIONS if name not in in_earnest]
    told = f"Of {len(judged)} targets measured {sum(judged)} are met."
    return f"{told} Not measured in earnest yet: {', '.join(missing)}.\n" if missing else f"{told}\n"


def _section(name: str, figures: Mapping[str, Any] | None) -> Iterable[str]:
    section = SECTIONS[name]
    yield from (f"## {section.title}", "", section.says, "")
    if figures is None:
        yield from (f"Not measured yet: {_command(name)}.", "")
        return
    rows = rows_of(figures)
    yield from (f"| {' | '.join(cells)} |" for cells in (_HEAD, ["---"] * len(_HEAD), *map(shown, rows)))
    notes = [f"* {row.measure}, {row.anchor}: {row.note}." for row in rows if row.note]
    yield from ("", *notes) if notes else ()
    if is_quick(figures):
        yield _QUICK.rstrip("\n")
    yield from ("", _circumstances(figures), "")


def _circumstances(figures: Mapping[str, Any]) -> str:
    on, rounds, messages = figures["machine"], figures["effort"]["rounds"], figures["effort"]["messages"]
    libraries = ", ".join(f"{name} {number}" for name, number in on["libraries"].items())
    work = f"{rounds} round{'s' * (rounds > 1)}" + (
        f" of {messages:,} messages (`--messages {messages}`)" if messages else ""
    )
    commit = figures.get("commit")
    return (
        f"Measured {figures['measured_at']}{f' at commit `{commit}`' if commit else ''}, {work}, on {on['processor']}, "
        f"{on['cores']} cores, {on['memory_gib']} GiB, {on['system']}, load before {on['load_before']:g}; "
        f"Python {on['python']}, {libraries}."
    )


def _command(name: str) -> str:
    return "`make bench`" if SECTIONS[name].usual else f"`make bench ARGS='--only {name}'`"
