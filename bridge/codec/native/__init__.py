"""RocketMQ's native trace format, both ways; ``DIALECTS`` is every form it may take. Standard library only."""

from bridge.codec.native.decode import BadRecord, DecodedBody, decode_body
from bridge.codec.native.dialects import IMITATORS, Imitator, writer_of
from bridge.codec.native.encode import EncodedContext, encode_context
from bridge.codec.native.layout import DEFAULT_DIALECT, DIALECTS, Dialect, absent

__all__ = [
    "DEFAULT_DIALECT",
    "DIALECTS",
    "IMITATORS",
    "BadRecord",
    "DecodedBody",
    "Dialect",
    "EncodedContext",
    "Imitator",
    "absent",
    "decode_body",
    "encode_context",
    "writer_of",
]
