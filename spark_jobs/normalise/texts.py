"""This module knows how a text of either side is brought to one form, so that only real differences are left to see."""

from __future__ import annotations

import sys
import unicodedata
from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F

from bridge.codec.native.layout import ABSENT_TEXTS, KEY_SEPARATOR

__all__ = ["folded_id", "integer_text", "key_set", "present"]

_HEX: Final = r"\A[0-9A-Fa-f]+\z"
_ASCII_INTEGER: Final = r"\A[+-]?[0-9]+\z"
_DIGITS: Final = tuple(
    (char, str(unicodedata.decimal(char)))
    for char in map(chr, range(0x80, min(0x10000, sys.maxunicode)))
    if unicodedata.category(char) == "Nd"
)


def present(text: Column) -> Column:
    """Return ``text``, or null where a writer says "nothing" (``bridge.codec.native.layout.absent``)."""
    return F.when(~text.isin(*sorted(ABSENT_TEXTS)), text)


def folded_id(text: Column) -> Column:
    """Return an id in upper case when it is hexadecimal, as it is otherwise, null when absent."""
    known = present(F.trim(text))
    return F.when(known.rlike(_HEX), F.upper(known)).otherwise(known)


def key_set(keys: Column) -> Column:
    """Return an array of keys as a set: blanks out, distinct, sorted; null when nothing is left."""
    split = F.flatten(F.transform(keys, lambda key: F.split(F.coalesce(key, F.lit("")), KEY_SEPARATOR)))
    kept = F.array_sort(F.array_distinct(F.filter(split, lambda key: ~key.isin(*sorted(ABSENT_TEXTS)))))
    return F.when(F.size(kept) > 0, kept)


def integer_text(text: Column) -> Column:
    """Return ``text`` in ASCII digits when ``Long.parseLong`` would take it for a number of any size, else null."""
    ascii_digits = F.translate(text, "".join(char for char, _ in _DIGITS), "".join(digit for _, digit in _DIGITS))
    return F.when(text.rlike(_ASCII_INTEGER), text).when(ascii_digits.rlike(_ASCII_INTEGER), ascii_digits)
