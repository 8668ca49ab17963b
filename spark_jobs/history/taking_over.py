"""Prepare the events of an earlier run for judging: beside those just read, and each once."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from pyarrow import parquet

from spark_jobs.history.carrying import (
    PLACE_AND_LINE,
    ReadAgain,
    count_events,
    count_waiting_by_place,
    find_read_again,
    forget_reasons,
    merge_read_again,
)
from spark_jobs.history.past import read_carried, read_carried_places, write_rows
from spark_jobs.judging.columns import flatten_sides
from spark_jobs.storage import make_directory

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from spark_jobs.exchange.engine import Engine
    from spark_jobs.history.carrying import CarriedPlaces

__all__ = ["TakenOver", "take_over"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TakenOver:
    """What a run takes over; the counts are of events per side.

    Attributes:
        files: parquet of ``EVENT``, to be packed beside the events just read.
        again: of which carried files fresh rows are read again: pack tasks leave those rows out
            (``read_carried_places``, ``drop_read_again``). Empty when there are none.
        carried: how many events were left open.
        read_again: how many fresh events are carried as well.
        by_place: carried spans that have no other id than the place of their message.
    """

    files: tuple[str, ...] = ()
    again: tuple[str, ...] = ()
    carried: Mapping[str, int] = field(default_factory=dict)
    read_again: Mapping[str, int] = field(default_factory=dict)
    by_place: int = 0

    def __bool__(self) -> bool:
        return any(self.carried.values())


def take_over(engine: Engine, carried: Sequence[str], fresh: Sequence[str], directory: str) -> TakenOver:
    """Return what the last run left open, told apart from what this run reads again.

    Args:
        engine: runs a task for some of the fresh files, where there is anything to compare.
        carried: the files of ``Past.carried_files``.
        fresh: parquet files of ``NORMALISED``: all that was read now.
        directory: where the carried events are written for this run.
    """
    if not carried:
        return TakenOver()
    tasks = max(1, engine.parallelism)
    parts = [tuple(fresh[number::tasks]) for number in range(min(tasks, len(fresh)))]
    again = merge_read_again(engine.map(partial(_find_in_files, tuple(carried)), parts))
    make_directory(directory)
    files, counts, by_place, before = [], Counter[str](), 0, 0
    for number, path in enumerate(carried):
        events = read_carried(path)
        counts.update(count_events(events))
        by_place += count_waiting_by_place(events)
        own = again.carried[(again.carried >= before) & (again.carried < before + len(events))] - before
        files.append(str(Path(directory) / f"carried-{number:05d}.parquet"))
        write_rows(forget_reasons(events, own), files[-1])
        before += len(events)
    return TakenOver(
        files=tuple(files),
        again=tuple(carried) if again else (),
        carried=counts,
        read_again=again.fresh,
        by_place=by_place,
    )


def _find_in_files(carried: Sequence[str], fresh: Sequence[str]) -> ReadAgain:
    places = read_carried_places(carried)
    return merge_read_again(_find_in_file(path, places) for path in fresh)


def _find_in_file(path: str, places: CarriedPlaces) -> ReadAgain:
    """Return what a file has in common with the carried events; most row groups cost one column."""
    file: Any = parquet.ParquetFile(path, read_dictionary=["path", "side"])
    found = []
    for group in range(file.metadata.num_row_groups):
        paths = flatten_sides(file.read_row_group(group, columns=["path"], use_threads=False))["path"]
        if np.any(places.places.has_path(paths)):
            rows = file.read_row_group(group, columns=[*PLACE_AND_LINE, "bad"], use_threads=False)
            found.append(find_read_again(rows.filter(rows["bad"].is_null()), places))
    return merge_read_again(found)
