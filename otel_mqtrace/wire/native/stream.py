"""Read a body of any size: in parts cut at U+0002, in the memory of one part.

In UTF-8, GBK and every other charset in which ASCII stands for itself the separators are single bytes, so a part can
be cut before it is decoded; any other (UTF-16, or the shifting ISO-2022) has to be read whole.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from otel_mqtrace.wire.native.charsets import is_cuttable, text_of
from otel_mqtrace.wire.native.decode import (
    MAX_OFFENDING_TEXT,
    MAX_RECORD_LENGTH,
    TOO_LONG,
    BadRecord,
    DecodedBody,
    decode_body,
)
from otel_mqtrace.wire.native.layout import RECORD_TERMINATOR

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


PART_BYTES: Final = 1 << 18
"""How much is read at once; larger parts are not read faster, and cost memory when they are full of short nonsense."""
_TERMINATOR: Final = RECORD_TERMINATOR.encode()


def decode_stream(
    read: Callable[[int], bytes],
    *,
    msg_type_map: str = "a",
    charset: str = "utf-8",
    part_bytes: int = PART_BYTES,
    max_record_bytes: int = MAX_RECORD_LENGTH,
) -> Iterator[DecodedBody]:
    """Yield one body in parts: what :func:`decode_body` makes of the whole, the record indexes running on.

    ``read(n)`` returns up to ``n`` bytes, none at the end. No bytes make it raise. A piece that grows beyond
    ``max_record_bytes`` without a terminator is one bad record and is not kept.

    Raises:
        UsageError: as :func:`decode_body`, before anything is read.
    """
    decode_body(b"", msg_type_map=msg_type_map, charset=charset)  # a mistake of the caller comes first
    index = 0
    for part in _parts(read, part_bytes, max_record_bytes, cut=is_cuttable(charset)):
        if isinstance(part, _TooLong):
            yield DecodedBody(errors=(part.as_bad_record(index, charset),))
            index += 1
            continue
        decoded = decode_body(part, msg_type_map=msg_type_map, charset=charset)
        yield _moved(decoded, index)
        index += len(decoded.contexts) + len(decoded.errors)


class _TooLong:
    def __init__(self, start: bytes) -> None:
        self._start = start

    def as_bad_record(self, index: int, charset: str) -> BadRecord:
        text = text_of(self._start, charset)[:MAX_OFFENDING_TEXT]
        return BadRecord(index, None, TOO_LONG, text)


def _parts(
    read: Callable[[int], bytes], part_bytes: int, max_record_bytes: int, *, cut: bool
) -> Iterator[bytes | _TooLong]:
    if not cut:
        yield b"".join(iter(lambda: read(part_bytes), b""))
        return
    held = bytearray()
    skipping = False
    while chunk := read(part_bytes):
        if skipping:
            _, found, chunk = chunk.partition(_TERMINATOR)
            skipping = not found
        end = chunk.rfind(_TERMINATOR) + 1
        if end:
            held += chunk[:end]
            yield bytes(held)
            held = bytearray(chunk[end:])
        else:
            held += chunk
        if len(held) > max_record_bytes:
            yield _TooLong(bytes(held[: 4 * MAX_OFFENDING_TEXT]))
            held = bytearray()
            skipping = True
    if held:
        yield bytes(held)


def _moved(decoded: DecodedBody, by: int) -> DecodedBody:
    if not by:
        return decoded
    return replace(
        decoded,
        record_indexes=tuple(index + by for index in decoded.record_indexes),
        errors=tuple(replace(error, record_index=error.record_index + by) for error in decoded.errors),
    )
