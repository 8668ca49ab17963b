"""Decode the bodies of an open file, large ones in parts of bounded size."""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bridge.codec.framing import BadBody, Framing, detect, read_bodies, unreadable
from otel_mqtrace.wire.native import DecodedBody, decode_body, decode_stream
from otel_mqtrace.wire.native.stream import PART_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@dataclass(frozen=True, slots=True)
class Reading:
    """How the bytes are to be understood: see :func:`~otel_mqtrace.wire.native.decode_body`."""

    msg_type_map: str = "a"
    charset: str = "utf-8"

    def parts_of(self, read: Callable[[int], bytes]) -> Iterator[DecodedBody]:
        """Yield the contexts of one body in parts: see :func:`~otel_mqtrace.wire.native.decode_stream`."""
        return decode_stream(read, msg_type_map=self.msg_type_map, charset=self.charset)


def decoded_bodies(
    stream: io.BufferedReader, framing: Framing, how: Reading, *, name: str
) -> Iterator[tuple[int, DecodedBody | BadBody]]:
    """Yield the index of each body of the file, from 0, with its contexts: a large body in several parts.

    Raises:
        UnreadableInputError, MissingExtraError: as :func:`~bridge.codec.framing.read_bodies`.
        UsageError: unknown charset.
    """
    try:
        chosen = detect(stream) if framing is Framing.AUTO else framing
        if chosen is Framing.RAW:
            yield from ((0, part) for part in how.parts_of(stream.read))
            return
    except OSError as error:
        raise unreadable(name, error) from error
    for index, body in enumerate(read_bodies(stream, chosen, name=name)):
        if isinstance(body, BadBody):
            yield index, body
        elif len(body) > PART_BYTES:
            yield from ((index, part) for part in how.parts_of(io.BytesIO(body).read))
        else:
            yield index, decode_body(body, msg_type_map=how.msg_type_map, charset=how.charset)
