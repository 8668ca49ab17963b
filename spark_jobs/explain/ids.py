"""Where and when a RocketMQ message id was drawn (``MessageClientIDSetter``), for all rows of a column at once.

An id ends in four bytes of milliseconds since the month began and two bytes of a counter. What stands before them (host
address, process id, class loader) is the same for every id that one JVM draws. Ids of any other form say nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_jobs.hashing import hash_texts
from spark_jobs.judging.columns import is_true

if TYPE_CHECKING:
    import numpy.typing as npt

    from spark_jobs.judging.columns import Column, Ints, Mask

__all__ = ["COUNTER_VALUES", "Ids", "read_ids"]

COUNTER_VALUES: Final = 1 << 16
"""The counter starts again after so many ids."""

_ID: Final = r"\A(?:[0-9A-F]{32}|[0-9A-F]{56})\z"
_TIME_DIGITS: Final = 8
_OWN_DIGITS: Final = 12  # of the time and the counter
_NOT_A_DIGIT: Final = 0xFF


@dataclass(frozen=True, slots=True)
class Ids:
    """What the ids of a column say; the numbers mean nothing where ``known`` is false.

    Attributes:
        known: which rows hold such an id.
        process: a hash of the part that all ids of one process share.
        drawn_ms: when the id was drawn, in milliseconds since the month began.
        counter: from 0 to ``COUNTER_VALUES`` - 1.
    """

    known: Mask
    process: npt.NDArray[np.uint64]
    drawn_ms: Ints
    counter: Ints


def read_ids(texts: Column) -> Ids:
    """Return what the ids of an Arrow column of strings say; null says nothing."""
    rows = len(texts)
    known = is_true(pc.match_substring_regex(texts, _ID))
    process = np.zeros(rows, np.uint64)
    drawn_ms, counter = np.zeros(rows, np.int64), np.zeros(rows, np.int64)
    if known.any():
        ids = texts.filter(pa.array(known))
        process[known] = hash_texts(pc.utf8_slice_codeunits(ids, 0, -_OWN_DIGITS))
        digits = _last_digits(ids)
        drawn_ms[known] = _number(digits[:, :_TIME_DIGITS])
        counter[known] = _number(digits[:, _TIME_DIGITS:])
    return Ids(known, process, drawn_ms, counter)


def _last_digits(ids: Column) -> npt.NDArray[np.uint8]:
    """Return the values of the last ``_OWN_DIGITS`` digits of each id."""
    _, offsets, data = ids.buffers()
    ends = np.frombuffer(offsets, np.int32)[ids.offset + 1 : ids.offset + len(ids) + 1].astype(np.int64)
    places = ends[:, None] - np.arange(_OWN_DIGITS, 0, -1)
    digits: npt.NDArray[np.uint8] = _DIGITS[np.frombuffer(data, np.uint8)[places]]
    return digits


def _number(digits: npt.NDArray[np.uint8]) -> Ints:
    values = np.zeros(len(digits), np.int64)
    for place in range(digits.shape[1]):
        values = values * 16 + digits[:, place]
    return values


def _digit_values() -> npt.NDArray[np.uint8]:
    values = np.full(256, _NOT_A_DIGIT, np.uint8)
    for value, digit in enumerate(b"0123456789ABCDEF"):
        values[digit] = value
    return values


_DIGITS: Final[Any] = _digit_values()
