"""This module knows how values in Arrow columns are told and made over without a step of Python for each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = [
    "DIGITS",
    "HEX",
    "JSON_PLAIN",
    "LOWER_HEX",
    "Array",
    "fields_of",
    "has_repeats",
    "is_made_of",
    "lists_of",
    "maps_of",
    "offsets_of",
    "parents_of",
    "pc",
]

Array: TypeAlias = Any
"""An Arrow array of any kind."""
pc: Final[Any] = pyarrow.compute
"""Arrow's functions of whole columns; the stubs know fewer of their forms than there are."""

_BYTES: Final = 256
_WIDEST_TABLE: Final = 1 << 23


def _alphabet(characters: bytes) -> npt.NDArray[np.bool_]:
    table = np.zeros(_BYTES, dtype=bool)
    table[list(characters)] = True
    return table


DIGITS: Final = _alphabet(b"0123456789")
"""What a number that is not negative is made of."""
LOWER_HEX: Final = _alphabet(b"0123456789abcdef")
"""What an id is made of as the specification has it, in lower case."""
HEX: Final = _alphabet(b"0123456789abcdefABCDEF")
"""What an id is made of as the specification has it."""
JSON_PLAIN: Final = _alphabet(bytes(set(range(0x20, _BYTES)) - set(b'"\\')))
"""What stands in a text of JSON as it is."""


def is_made_of(texts: Array, alphabet: npt.NDArray[np.bool_]) -> bool:
    """Return whether every byte of every text is one of ``alphabet``."""
    _, offsets, data = texts.buffers()
    if data is None or not len(texts):
        return True
    bounds = np.frombuffer(offsets, dtype=np.int32)[texts.offset : texts.offset + len(texts) + 1]
    return bool(alphabet[np.frombuffer(data, dtype=np.uint8)[bounds[0] : bounds[-1]]].all())


def fields_of(objects: Array) -> dict[str, Array]:
    """Return the fields of objects by name; those of an object that is null are null."""
    return dict(zip((field.name for field in objects.type), objects.flatten(), strict=True))


def parents_of(lists: Array) -> npt.NDArray[np.int64]:
    """Return for each item of ``lists.flatten()`` the position of the list that holds it."""
    return np.asarray(pc.list_parent_indices(lists))


def offsets_of(lists: Array) -> Array:
    """Return where each list begins in ``lists.flatten()``, and where the last one ends; a null list holds nothing."""
    lengths = np.asarray(pc.fill_null(pc.list_value_length(lists), 0))
    return pa.array(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32))


def has_repeats(owners: npt.NDArray[np.int64], keys: Array) -> bool:
    """Return whether any owner has a key twice; ``owners`` ascend, one for each of ``keys``."""
    if not len(keys):
        return False
    coded = keys.dictionary_encode()
    width = len(coded.dictionary)
    pairs = owners * width + np.asarray(coded.indices)
    if (cells := (int(owners[-1]) + 1) * width) > _WIDEST_TABLE:
        return len(np.unique(pairs)) < len(pairs)
    seen = np.zeros(cells, dtype=bool)
    seen[pairs] = True
    return int(np.count_nonzero(seen)) < len(pairs)


def lists_of(offsets: Array, items: Array) -> Array:
    """Return lists of ``items``; see :func:`offsets_of`."""
    return pa.ListArray.from_arrays(offsets, items)


def maps_of(offsets: Array, keys: Array, values: Array) -> Array:
    """Return maps of ``keys`` to ``values``; see :func:`offsets_of`."""
    return pa.MapArray.from_arrays(offsets, keys, values)
