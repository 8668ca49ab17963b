"""Read a whole number out of a text."""

from __future__ import annotations

import re
from typing import Final

__all__ = ["whole_number"]

_AROUND: Final = "".join(map(chr, (*range(0x21), 0x7F)))
_INTEGER: Final = re.compile(r"([+-]?)0*([0-9]{1,19})")


def whole_number(text: str, *, bits: int) -> int | None:
    """Return the number that ``text`` is, as Spark's ``try_cast`` reads it; ``None`` where it is none.

    Args:
        text: ASCII digits, a sign before them, blanks and control characters around them.
        bits: the width of a signed integer that must hold the number.
    """
    found = _INTEGER.fullmatch(text.strip(_AROUND))
    number = None if found is None else int(found[1] + found[2])
    return number if number is not None and -(1 << bits - 1) <= number < 1 << bits - 1 else None
