"""This module knows what a RocketMQ message id says of where and when it was drawn (``MessageClientIDSetter``).

An id ends in four bytes of milliseconds since the month began and two bytes of a counter; what stands before them (host
address, process id, class loader) is the same for every id that one JVM draws. Ids of any other form say nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pyspark.sql import Column

__all__ = ["COUNTER_VALUES", "counter_of", "drawn_ms", "process_of"]

COUNTER_VALUES: Final = 1 << 16
"""The counter starts again after so many ids."""

_ID: Final = r"\A(?:[0-9A-F]{32}|[0-9A-F]{56})\z"
_OWN_DIGITS: Final = 12  # of the time and the counter


def process_of(msg_id: Column) -> Column:
    """Return the part of an id that all ids of one process share, null where the text is no such id."""
    return F.when(msg_id.rlike(_ID), F.substr(msg_id, F.lit(1), F.length(msg_id) - _OWN_DIGITS))


def drawn_ms(msg_id: Column) -> Column:
    """Return the milliseconds since the month began of an id; meaningless where ``process_of`` is null."""
    return _number(F.substr(msg_id, F.lit(-12), F.lit(8)))


def counter_of(msg_id: Column) -> Column:
    """Return the counter of an id, from 0 to ``COUNTER_VALUES`` - 1; meaningless where ``process_of`` is null."""
    return _number(F.substr(msg_id, F.lit(-4)))


def _number(digits: Column) -> Column:
    return F.conv(digits, 16, 10).try_cast("long")
