"""What a report shows one by one: sampled keys, the whole message behind each, the first damaged records."""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby, islice
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from bridge.storage import as_path, open_parquet
from spark_jobs.judging.evidence import SLOWEST, TOTAL
from spark_jobs.report.result import Exemplar, Interval, MalformedSample, MessageEvent, Sample
from spark_jobs.sources.splits import line_numbers
from spark_jobs.taxonomy import Reason, Status

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from spark_jobs.policy.policy import Policy

MOST_EVENTS: Final = 12
"""Events of one message that are shown; a message redelivered a thousand times is not drawn as a thousand lanes."""
_MOST_MALFORMED: Final = 50
_PER_CALM_STRATUM: Final = 8
_CALM: Final = frozenset(
    {Status.MATCHED_EXACT.value, Status.MATCHED_NORMALISED.value, Status.PENDING.value, Reason.BY_DESIGN.value}
)
_EVENT_COLUMNS: Final = ("msg_id", "event_ms", "kind", "group", "attempt_id", "retry_times", "status")
"""The message, and what orders its events."""
_INTERVAL: Final = ("start_ms", "end_ms", "success")


# -- samples ----------------------------------------------------------------------------------------------------------
def read_samples(samples: pa.Table, *, at_most: int = TOTAL) -> tuple[Sample, ...]:
    """Return at most ``at_most`` samples: a few of each stratum that is in order, more of those that are not.

    Args:
        samples: what ``judging.evidence.merge_samples`` returns.
        at_most: how many.
    """
    rows = sorted(samples.drop_columns(["chance", "tie"]).to_pylist(), key=itemgetter("stratum"))
    chosen: list[tuple[int, dict[str, Any]]] = []
    for stratum, members in groupby(rows, key=itemgetter("stratum")):
        is_calm = not _CALM.isdisjoint(stratum.split())
        share = at_most // (TOTAL // _PER_CALM_STRATUM) if is_calm else at_most
        chosen += enumerate(islice(members, share))
    kept = sorted(chosen, key=itemgetter(0))[:at_most]
    return tuple(_sample(row) for _, row in sorted(kept, key=lambda one: (one[1]["stratum"], one[0])))


def _sample(row: dict[str, Any]) -> Sample:
    native, otlp, stratum = (row.pop(name) for name in ("native", "otlp", "stratum"))
    verdicts = row["field_verdicts"]
    row["field_verdicts"] = None if verdicts is None else dict(verdicts)
    return Sample(stratum=stratum, verdict=row, native=native, otlp=otlp)


def read_slowest(samples: Iterable[Sample]) -> dict[str, tuple[Exemplar, ...]]:
    """Return the slowest events by each measure among ``samples``, slowest first."""
    found: dict[str, list[Exemplar]] = {}
    for sample in samples:
        word, _, name = sample.stratum.partition(" ")
        if word == SLOWEST:
            found.setdefault(name, []).append(_exemplar(sample, name))
    return {name: tuple(sorted(each, key=lambda one: -one.took_ms)) for name, each in found.items()}


def _exemplar(sample: Sample, name: str) -> Exemplar:
    verdict = sample.verdict
    start, end = (_first_known(sample, field) for field in ("start_ms", "end_ms"))
    took_ms = verdict[f"{name}_ms"] if f"{name}_ms" in verdict else end - start
    shown = {field: verdict[field] for field in ("msg_id", "kind", "topic", "group", "event_ms")}
    return Exemplar(**shown, took_ms=took_ms)


def _first_known(sample: Sample, field: str) -> int:
    known = [side[field] for side in (sample.native, sample.otlp) if side and side[field] is not None]
    return int(known[0]) if known else 0


# -- the message behind a sample --------------------------------------------------------------------------------------
def find_messages(paths: Iterable[str], msg_ids: Sequence[str]) -> dict[str, tuple[MessageEvent, ...]]:
    """Return the first ``MOST_EVENTS`` events, in order, of each of ``msg_ids`` in files of ``VERDICT``.

    Args:
        paths: the files of a bucket: all verdicts of a message are in them.
        msg_ids: those that are wanted.
    """
    wanted = pa.array(msg_ids, pa.string())
    found: dict[str, list[dict[str, Any]]] = {}
    for path in paths:
        for rows in _rows_of(path, wanted):
            for row in rows:
                found.setdefault(row["msg_id"], []).append(row)
            found = {msg_id: sorted(some, key=_order)[:MOST_EVENTS] for msg_id, some in found.items()}
    return {msg_id: tuple(map(_message_event, some)) for msg_id, some in found.items()}


def _order(row: Mapping[str, Any]) -> list[Any]:
    """Order events by time; null comes first."""
    return [(row[name] is not None, row[name]) for name in _EVENT_COLUMNS[1:]]


def _rows_of(path: str, msg_ids: Any) -> Iterator[list[dict[str, Any]]]:
    file: Any = open_parquet(path)
    for group in range(file.metadata.num_row_groups):
        ids = file.read_row_group(group, columns=["msg_id"], use_threads=False)
        is_wanted = pc.is_in(ids["msg_id"], msg_ids)
        if pc.any(is_wanted).as_py():
            sides = [f"{side}.{name}" for side in ("native", "otlp") for name in (*_INTERVAL, "store_host")]
            rows = file.read_row_group(group, columns=[*_EVENT_COLUMNS, *sides], use_threads=False).filter(is_wanted)
            yield [row for row in rows.to_pylist() if row["status"] != Status.OUT_OF_SCOPE.value]


def _message_event(row: dict[str, Any]) -> MessageEvent:
    sides = [row["native"], row["otlp"]]
    intervals = [side and Interval(*(side[name] for name in _INTERVAL)) for side in sides]
    hosts = [side["store_host"] for side in sides if side and side["store_host"] is not None]
    own = {name: row[name] for name in ("kind", "group", "attempt_id", "retry_times", "status")}
    return MessageEvent(**own, store_host=hosts[0] if hosts else None, native=intervals[0], otlp=intervals[1])


# -- what could not be read -------------------------------------------------------------------------------------------
def find_malformed(path: str) -> list[dict[str, Any]]:
    """Return the first malformed rows, in the order of the input, of a file of ``NORMALISED``."""
    file: Any = open_parquet(path)
    found: list[dict[str, Any]] = []
    for group in range(file.metadata.num_row_groups):
        bad = file.read_row_group(group, columns=["bad"], use_threads=False)["bad"]
        if bad.null_count == len(bad):
            continue
        rows = file.read_row_group(
            group, columns=["side", "path", "line", "record_index", "bad"], use_threads=False
        ).filter(pc.is_valid(bad))
        found = first_malformed([*found, *rows.to_pylist()])
    return found


def first_malformed(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the first of some malformed rows, in the order of the input."""
    names = ("side", "path", "line", "record_index")
    return sorted(rows, key=lambda row: [(row[name] is not None, row[name]) for name in names])[:_MOST_MALFORMED]


def read_malformed(rows: Iterable[dict[str, Any]], policy: Policy) -> tuple[MalformedSample, ...]:
    """Return the unreadable pieces that :func:`find_malformed` gave, masked by the policy."""
    pieces = []
    for row in rows:
        at = {name: row[name] for name in ("side", "path", "line", "record_index")}
        pieces.append(MalformedSample(**at, **{name: row["bad"][name] for name in ("field", "reason", "text")}))
    return tuple(replace(piece, text=policy.hide(piece.text)) for piece in _located(pieces))


def _located(pieces: Sequence[MalformedSample]) -> list[MalformedSample]:
    """Give samples from files too large to be read whole their line, where exactly one line begins with their text."""
    wanted: dict[str, set[str]] = {}
    for piece in pieces:
        if piece.line is None and piece.text:
            wanted.setdefault(piece.path, set()).add(piece.text)
    lines = {path: line_numbers(as_path(path), texts) for path, texts in wanted.items()}

    def locate(piece: MalformedSample) -> MalformedSample:
        numbers = lines.get(piece.path, {}).get(piece.text, ()) if piece.line is None else ()
        return replace(piece, line=numbers[0]) if len(numbers) == 1 else piece

    return [locate(piece) for piece in pieces]
