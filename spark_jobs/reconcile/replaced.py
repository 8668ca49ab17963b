"""This module knows a text of which characters were replaced on the way: what no format could carry, no reader decode.

The native encoder writes its separators as ``_``. Bytes that are no UTF-8 (a client up to 4.9.8 writes in its JVM's own
charset) come out as U+FFFD, one or several for a character.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F

__all__ = ["same_but_replaced"]

_UNREADABLE: Final = "\ufffd"
_SEPARATORS: Final = "\x01\x02"
_WRITTEN_FOR_ONE: Final = "_"


def same_but_replaced(one: Column, other: Column) -> Column:
    """Say whether two texts are equal but where one shows a replacement; a run of U+FFFD stands for any text."""
    return (_written(one) == _written(other)) | _is_legible_part_of(one, other) | _is_legible_part_of(other, one)


def _written(text: Column) -> Column:
    return F.translate(text, _SEPARATORS + _UNREADABLE, _WRITTEN_FOR_ONE * 3)


def _is_legible_part_of(damaged: Column, whole: Column) -> Column:
    """Say whether what can be read of ``damaged`` stands in ``whole``, in order, and something for every run."""
    pieces = F.split(damaged, f"{_UNREADABLE}+")
    first, last = F.element_at(pieces, 1), F.element_at(pieces, -1)
    between = F.slice(pieces, 2, F.greatest(F.size(pieces) - 2, F.lit(0)))

    def placed(end: Column, piece: Column) -> Column:
        at = F.position(piece, whole, end + 2)  # one character at least is what could not be read
        return F.when((end >= 0) & (at > 0), at - 1 + F.length(piece)).otherwise(F.lit(-1))

    end = F.aggregate(between, F.length(first), placed)
    fits = (end >= 0) & (F.length(whole) - F.length(last) > end)
    return F.contains(damaged, F.lit(_UNREADABLE)) & F.startswith(whole, first) & F.endswith(whole, last) & fits
