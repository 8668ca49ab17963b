"""How old an open event is, before the end of the data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from spark_jobs.judging.columns import NullableInts, greatest
from spark_jobs.report.result import AGES
from spark_jobs.taxonomy import Lifecycle

if TYPE_CHECKING:
    from collections.abc import Mapping

    from spark_jobs.judging.columns import Column, Ints

__all__ = ["CARRIED_ON", "OPEN_AGES", "find_last", "name_age", "name_open_age"]

OPEN_AGES: Final = ("0-1x", "1-2x", "2-5x", ">5x", "no_time")
"""How old an open key is, in multiples of the grace; the last one has no believable time."""
CARRIED_ON: Final = frozenset({Lifecycle.NEW.value, Lifecycle.STILL_OPEN.value, Lifecycle.REGRESSED.value})
"""The lifecycles of keys that the next run of a history takes over."""
_MULTIPLES: Final = (1, 2, 5)


def find_last(verdicts: Mapping[str, Column], rows: Ints | None = None) -> NullableInts:
    """Return the latest believable time of each key, of the columns of ``flatten_sides``."""
    times = (
        NullableInts.of(verdicts[f"{side}.{name}"]) for side in ("native", "otlp") for name in ("start_ms", "end_ms")
    )
    last = greatest(*(one.believable() for one in times))
    return last if rows is None else last.take(rows)


def name_age(age_ms: int | None) -> str | None:
    """Return the band of ``AGES`` that an open event of this age belongs to."""
    if age_ms is None:
        return None
    return next((name for name, below_ms in AGES if below_ms is None or age_ms < below_ms), None)


def name_open_age(age_ms: int | None, grace_ms: int) -> str:
    """Return which of ``OPEN_AGES`` an open key of this age belongs to."""
    if age_ms is None:
        return OPEN_AGES[-1]
    multiple = int(np.searchsorted([multiple * grace_ms for multiple in _MULTIPLES], age_ms))
    return OPEN_AGES[multiple]
