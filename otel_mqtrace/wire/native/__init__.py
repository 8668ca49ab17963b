"""RocketMQ's native trace format, both ways; ``DIALECTS`` is every form it may take. Standard library only."""

from otel_mqtrace.wire.native.decode import BadRecord, DecodedBody, decode_body, decode_stream, explode
from otel_mqtrace.wire.native.dialects import IMITATORS, Imitator, started_ms, writer_of
from otel_mqtrace.wire.native.encode import EncodedContext, encode_context
from otel_mqtrace.wire.native.guess import Guess, WriterGuesses
from otel_mqtrace.wire.native.layout import DEFAULT_DIALECT, DIALECTS, Dialect, absent

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
