"""RocketMQ's native trace format, both ways; ``DIALECTS`` is every form it may take. Standard library only."""

from bridge.codec.native.batches import explode
from bridge.codec.native.decode import BadRecord, DecodedBody, decode_body
from bridge.codec.native.dialects import IMITATORS, Imitator, started_ms, writer_of
from bridge.codec.native.encode import EncodedContext, encode_context
from bridge.codec.native.guess import Guess, WriterGuesses
from bridge.codec.native.layout import DEFAULT_DIALECT, DIALECTS, Dialect, absent
from bridge.codec.native.stream import decode_stream

__all__ = [
    "DEFAULT_DIALECT",
    "DIALECTS",
    "IMITATORS",
    "BadRecord",
    "DecodedBody",
    "Dialect",
    "EncodedContext",
    "Guess",
    "Imitator",
    "WriterGuesses",
    "absent",
    "decode_body",
    "decode_stream",
    "encode_context",
    "explode",
    "started_ms",
    "writer_of",
]
