"""A 64-bit hash of texts, all rows of a column at once and the same in every process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["hash_texts", "mix"]

# Odd multipliers of xxHash64, whose mixing this follows: https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md
_PRIME_1: Final = np.uint64(0x9E3779B185EBCA87)
_PRIME_2: Final = np.uint64(0xC2B2AE3D27D4EB4F)
_NULL: Final = np.uint64(0x165667B19E3779F9)
_WORD: Final = 8
_ALL_BITS: Final = np.uint64(0xFFFFFFFFFFFFFFFF)


def hash_texts(texts: Any) -> npt.NDArray[np.uint64]:
    """Return a hash of each text of an Arrow array, dictionary-encoded or not; null has a value of its own."""
    if isinstance(texts, pa.DictionaryArray):
        words: npt.NDArray[np.uint64] = np.append(hash_texts(texts.dictionary), _NULL)
        found: npt.NDArray[np.uint64] = words[np.asarray(texts.indices.fill_null(len(texts.dictionary)))]
        return found
    if not len(texts) or texts.null_count == len(texts):
        return np.full(len(texts), _NULL)
    _, offsets, data = texts.buffers()
    bounds = np.frombuffer(offsets, np.int32)[texts.offset : texts.offset + len(texts) + 1].astype(np.int64)
    hashes = _hash_bytes(np.frombuffer(data, np.uint8) if data is not None else np.empty(0, np.uint8), bounds)
    if texts.null_count:
        hashes[np.asarray(texts.is_null())] = _NULL
    return hashes


def mix(*parts: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Return one hash of several; their order counts."""
    mixed = parts[0]
    with np.errstate(over="ignore"):
        for part in parts[1:]:
            mixed = _scramble(mixed * _PRIME_1 ^ part)
    return mixed


def _hash_bytes(data: npt.NDArray[np.uint8], bounds: npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]:
    """Hash ``data[bounds[i]:bounds[i + 1]]``, eight bytes at a time of all rows."""
    sizes = bounds[1:] - bounds[:-1]
    padded = np.concatenate([data, np.zeros(_WORD, np.uint8)])
    words = np.lib.stride_tricks.as_strided(padded, (len(data) + 1, _WORD), (1, 1))
    with np.errstate(over="ignore"):
        hashes = sizes.astype(np.uint64) * _PRIME_1
        for step in range(0, int(sizes.max(initial=0)), _WORD):
            rows = np.flatnonzero(sizes > step)
            word = np.ascontiguousarray(words[bounds[rows] + step]).view("<u8")[:, 0]
            spare = np.maximum(_WORD - (sizes[rows] - step), 0).astype(np.uint64)
            hashes[rows] = _scramble(hashes[rows] ^ (word & (_ALL_BITS >> (spare * np.uint64(_WORD)))))
    return hashes


def _scramble(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    values = values * _PRIME_2
    values ^= values >> np.uint64(29)
    values = values * _PRIME_1
    return values ^ (values >> np.uint64(32))
