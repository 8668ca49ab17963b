"""This module knows how to look at a screenshot: the colours in an 8-bit PNG, with the standard library."""

from __future__ import annotations

import struct
import zlib
from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

CHANNELS = {2: 3, 6: 4}


def colours(picture: Path) -> Counter[str]:
    """Return how many pixels have which ``#rrggbb``."""
    width, channels, rows = _read(picture.read_bytes())
    seen: Counter[str] = Counter()
    above = bytearray(width * channels)
    for kind, coded in rows:
        line = bytearray(coded)
        _unfilter(kind, line, above, channels)
        seen.update(line[at : at + 3].hex() for at in range(0, len(line), channels))
        above = line
    return Counter({f"#{colour}": n for colour, n in seen.items()})


def _read(data: bytes) -> tuple[int, int, list[tuple[int, bytes]]]:
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    at, packed = 8, b""
    while at < len(data):
        length, name = struct.unpack(">I4s", data[at : at + 8])
        body = data[at + 8 : at + 8 + length]
        if name == b"IHDR":
            width, height, depth, kind = struct.unpack(">IIBB", body[:10])
        packed += body if name == b"IDAT" else b""
        at += length + 12
    assert depth == 8
    stride = width * CHANNELS[kind] + 1
    raw = zlib.decompress(packed)
    lines = [raw[start : start + stride] for start in range(0, stride * height, stride)]
    return width, CHANNELS[kind], [(line[0], line[1:]) for line in lines]


def _unfilter(kind: int, line: bytearray, above: bytearray, step: int) -> None:
    """Undo one of the five filters of the PNG specification, section 9, in place."""
    for at in range(len(line)) if kind else ():
        left = line[at - step] if at >= step else 0
        corner = above[at - step] if at >= step else 0
        line[at] = (line[at] + _predict(kind, left, above[at], corner)) & 255


def _predict(kind: int, left: int, up: int, corner: int) -> int:
    if kind == 4:
        nearest = left + up - corner
        return min((left, up, corner), key=lambda value: abs(nearest - value))
    return {1: left, 2: up, 3: (left + up) // 2}[kind]
