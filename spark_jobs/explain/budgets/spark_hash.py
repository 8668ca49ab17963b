"""Spark's ``xxhash64`` of one row: XXH64 chained over the columns, the hash of one column being the seed of the next.

It decides between keys of equal times, so that a run chooses the same ones as it did when Spark ranked them.
Algorithm: https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md
"""

from __future__ import annotations

from typing import Final

__all__ = ["spark_hash"]

_SEED: Final = 42
_BITS: Final = (1 << 64) - 1
_SIGN: Final = 1 << 63
_PRIME_1: Final = 0x9E3779B185EBCA87
_PRIME_2: Final = 0xC2B2AE3D27D4EB4F
_PRIME_3: Final = 0x165667B19E3779F9
_PRIME_4: Final = 0x85EBCA77C2B2AE63
_PRIME_5: Final = 0x27D4EB2F165667C5
_STRIPE: Final = 32
_WORD: Final = 8
_HALF: Final = 4


def spark_hash(*values: str | int | None) -> int:
    """Return Spark's ``xxhash64`` of strings and longs, as a signed 64-bit integer; nulls are skipped."""
    found = _SEED
    for value in values:
        if value is not None:
            data = value.encode() if isinstance(value, str) else (value & _BITS).to_bytes(_WORD, "little")
            found = _xxh64(data, found)
    return found - 2 * _SIGN if found & _SIGN else found


def _xxh64(data: bytes, seed: int) -> int:
    stripes = len(data) // _STRIPE * _STRIPE
    found = _hash_stripes(data[:stripes], seed) if stripes else seed + _PRIME_5
    found = (found + len(data)) & _BITS
    words = len(data) // _WORD * _WORD
    for place in range(stripes, words, _WORD):
        found = _rotate(found ^ _round(0, _read(data, place, _WORD)), 27) * _PRIME_1 + _PRIME_4 & _BITS
    place = words
    if len(data) - place >= _HALF:
        found = _rotate(found ^ (_read(data, place, _HALF) * _PRIME_1 & _BITS), 23) * _PRIME_2 + _PRIME_3 & _BITS
        place += _HALF
    for byte in data[place:]:
        found = _rotate(found ^ (byte * _PRIME_5 & _BITS), 11) * _PRIME_1 & _BITS
    return _avalanche(found)


def _hash_stripes(data: bytes, seed: int) -> int:
    lanes = [seed + _PRIME_1 + _PRIME_2 & _BITS, seed + _PRIME_2 & _BITS, seed, seed - _PRIME_1 & _BITS]
    for place in range(0, len(data), _WORD):
        lane = place // _WORD % len(lanes)
        lanes[lane] = _round(lanes[lane], _read(data, place, _WORD))
    found = sum(_rotate(lane, bits) for lane, bits in zip(lanes, (1, 7, 12, 18), strict=True)) & _BITS
    for lane_value in lanes:
        found = ((found ^ _round(0, lane_value)) * _PRIME_1 + _PRIME_4) & _BITS
    return found


def _round(lane: int, word: int) -> int:
    return _rotate(lane + word * _PRIME_2 & _BITS, 31) * _PRIME_1 & _BITS


def _avalanche(value: int) -> int:
    value = (value ^ value >> 33) * _PRIME_2 & _BITS
    value = (value ^ value >> 29) * _PRIME_3 & _BITS
    return value ^ value >> 32


def _rotate(value: int, bits: int) -> int:
    return (value << bits | value >> 64 - bits) & _BITS


def _read(data: bytes, place: int, size: int) -> int:
    return int.from_bytes(data[place : place + size], "little")
