"""This module knows the ids of spans: what is forwarded again has the ids that it had before.

Ids are BLAKE2b digests of what the record says:

* trace id: of the message id, so that all that happened to a message is one trace;
* root span id: of ``Pub`` and the message id, so that a listener call knows its parent before the send is seen;
* any other span id: of the trace type, the message id and what tells this event from its like.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING, Final

from otel_mqtrace.model import TraceType
from otel_mqtrace.wire.otlp.bounded_cache import BoundedCache

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["call_id", "event_id", "ids_of", "joined", "root_span_id", "trace_id_of"]

_SEPARATOR: Final = "\x01"  # the one character that no field holds
_OF_TRACE: Final = blake2b(f"trace{_SEPARATOR}".encode(), digest_size=16)
_OF_SEND: Final = blake2b(f"{TraceType.PUB.value}{_SEPARATOR}".encode(), digest_size=8)
_OF_CALL: Final = blake2b(f"Sub{_SEPARATOR}".encode(), digest_size=8)
_OF_OTHER: Final = blake2b(digest_size=8)
"""Digests that have read what all of a kind begin with: a copy costs half of a new one."""


def joined(words: Iterable[str]) -> str:
    """Return ``words`` as one text that no other words give."""
    return _SEPARATOR.join(words)


def ids_of(subject: str) -> tuple[bytes, bytes]:
    """Return the trace of a message, and the span of its send, which its other spans have for a parent, seen or not.

    ``subject`` is the message id; of a record without one, all that it says.
    """
    return _IDS[subject]


def call_id(subject: str, *told_apart_by: str) -> bytes:
    """Return the span id of a listener call, of which both halves say the same."""
    return _digest(_OF_CALL, joined((subject, *told_apart_by)))


def event_id(words: Iterable[str], subject: str) -> bytes:
    """Return the span id of any other event: by everything that its record says."""
    return _digest(_OF_OTHER, joined((*words, subject)))


def trace_id_of(msg_id: str) -> int:
    """Return the trace that everything about the message belongs to."""
    return int.from_bytes(ids_of(msg_id)[0], "big")


def root_span_id(msg_id: str) -> int:
    """Return the span id of the message's send, which its other spans have for a parent, seen or not."""
    return int.from_bytes(ids_of(msg_id)[1], "big")


def _digest(of_kind: blake2b, words: str) -> bytes:
    digest = of_kind.copy()
    digest.update(words.encode("utf-8", "replace"))
    made = digest.digest()
    return made if any(made) else made[:-1] + b"\x01"  # zero is no id


_IDS: Final = BoundedCache[str, tuple[bytes, bytes]](
    lambda subject: (_digest(_OF_TRACE, subject), _digest(_OF_SEND, subject)),
)
"""A message's records come close together, and each of them asks."""
