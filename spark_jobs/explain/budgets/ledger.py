"""What a ledger of losses may pay for, and what the result reports of it.

What no explainer gave a reason may be a counted drop. Covered keys read DROP_ATTRIBUTED with the counter's cause as
``reason_detail``; the rest stays UNEXPLAINED. What was counted but is nowhere missing is surplus.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from spark_jobs.explain.budgets.allocation import cells
from spark_jobs.report.result import Ledger, LedgerLine
from spark_jobs.taxonomy import Reason

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from spark_jobs.drops import CountedDrop
    from spark_jobs.explain.budgets.allocation import Allocation

__all__ = ["find_stretches", "make_spendable", "summarise_ledger"]

_TRAFFIC: Final = (
    "{surplus} spans were counted as lost that nothing misses; {traffic} spans of the trace topic's own sends were "
    "seen, and those that were lost are counted too"
)
_OWN: Final = (
    "{own} counters of mqtrace's own processor were left out: they do not say which side lost; give the files of "
    "MQTRACE_LEDGER_DIR"
)
_STARTS: Final = (
    "{starts} records of a delivery's start were counted as lost; they pay for no key, since its end tells of it: see "
    "HALF_RECORD"
)
_BEFORE: Final = (
    "{before} losses were counted when their counters were first read, in processes that began before the data; they "
    "pay for nothing, how the counters grew from there does"
)
_AGAIN: Final = (
    "{again} refusals were left out: the same Collector counted as many failures further down its pipeline, which come "
    "back as refusals"
)
_NAMELESS: Final = "{nameless} lost spans were counted under no service; they pay for keys of any"
_NOTES: Final = {
    ("starts",): _STARTS,
    ("surplus", "traffic"): _TRAFFIC,
    ("own",): _OWN,
    ("before",): _BEFORE,
    ("again",): _AGAIN,
    ("nameless",): _NAMELESS,
}
_MOST_LINES: Final = 200
_MOST_BUCKETS: Final = 2_000


def find_stretches(drops: Iterable[CountedDrop]) -> list[range]:
    """Return the cells that the drops' buckets cover, one cell more on either side, as ranges that do not touch."""
    near: list[range] = []
    found = (bucket for drop in drops if (bucket := cells(drop)) is not None)
    for begin, end in sorted({(bucket.start - 1, bucket.stop + 1) for bucket in found}):
        if near and begin <= near[-1].stop:
            near[-1] = range(near[-1].start, max(near[-1].stop, end))
        else:
            near.append(range(begin, end))
    return near


def make_spendable(drops: Iterable[CountedDrop], begin_ms: int | None) -> list[CountedDrop]:
    """Return the drops in the same order, those that may have been lost before the data with a count of 0.

    That is what a counter had counted when it was first read, unless it began at ``begin_ms`` or later; of a counter
    that was read only once nothing else is known, so it pays.
    """
    return [replace(drop, count=0) if _is_of_before(drop, begin_ms) else drop for drop in drops]


def _is_of_before(drop: CountedDrop, begin_ms: int | None) -> bool:
    if not drop.before or begin_ms is None:
        return False
    return drop.bucket_start_ms is None or drop.bucket_start_ms < begin_ms


def summarise_ledger(  # noqa: PLR0913 - what was read and what was made of it
    files: Sequence[str],
    drops: Sequence[CountedDrop],
    allocation: Allocation,
    *,
    scopes: Mapping[str, Mapping[str, int]],
    begin_ms: int | None = None,
    own: int = 0,
    again: int = 0,
) -> Ledger:
    """Return the result's table of the ledger: per side, component, cause and service the count and how it was spent.

    Args:
        files: where it was read from.
        drops: its rows.
        allocation: how they were spent.
        scopes: records out of scope by side and why (``Facts.scopes``): drops may belong to those.
        begin_ms: as given to ``make_spendable``.
        own: increments left out because they do not name their side.
        again: losses left out because a Collector counted them further down its pipeline, too.
    """
    counted: Counter[tuple[str, str, str, str]] = Counter()
    spent: Counter[tuple[str, str, str, str]] = Counter()
    for drop, paid in zip(drops, allocation.spent, strict=True):
        line = (drop.side, drop.component, drop.cause, drop.service or "")
        counted[line] += drop.count
        spent[line] += paid
    lines = tuple(
        LedgerLine(
            side=line[0],
            component=line[1],
            cause=line[2],
            service=line[3] or None,
            counted=counted[line],
            attributed=spent[line],
            surplus=counted[line] - spent[line],
        )
        for line in sorted(counted, key=lambda line: (-counted[line], line))
    )
    surplus = {side: sum(line.surplus for line in lines if line.side == side) for side in ("native", "otlp")}
    numbers = {
        "starts": sum(drop.count for drop in drops if drop.of_start),
        "before": sum(drop.count for drop in drops if _is_of_before(drop, begin_ms)),
        "nameless": sum(drop.count for drop in drops if drop.side == "otlp" and drop.service is None),
        "traffic": scopes.get("otlp", {}).get(Reason.TRACE_TRAFFIC.value, 0),
        "surplus": surplus["otlp"],
        "own": own,
        "again": again,
    }
    return Ledger(
        files=tuple(files),
        rows_read=len(drops),
        attributed={side: sum(line.attributed for line in lines if line.side == side) for side in ("native", "otlp")},
        surplus=surplus,
        lines=lines[:_MOST_LINES],
        notes=tuple(note.format_map(numbers) for names, note in _NOTES.items() if all(numbers[name] for name in names)),
        over_time=_over_time(drops),
    )


def _over_time(drops: Sequence[CountedDrop]) -> tuple[tuple[int, str, int], ...]:
    """Return when which side counted how many losses, earliest first; of very many buckets those that counted most."""
    counted: Counter[tuple[int, str]] = Counter()
    for drop in drops:
        if drop.bucket_start_ms is not None:
            counted[drop.bucket_start_ms, drop.side] += drop.count
    return tuple(sorted((start_ms, side, count) for (start_ms, side), count in counted.most_common(_MOST_BUCKETS)))
