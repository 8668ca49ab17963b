"""This module knows what is looked for, and which trace messages can speak of it.

A record holds the message id and the keys verbatim, so a search for their bytes in the body finds every record, also
the single id of a batch, whose ids are joined in one field, and ids that a bounded or cut ``KEYS`` header left out.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from otel_mqtrace._errors import UsageError
from otel_mqtrace.model import KEY_SEPARATOR
from otel_mqtrace.wire.native.batches import BATCH_SEPARATOR
from otel_mqtrace.wire.native.layout import FIELD_SEPARATOR, RECORD_TERMINATOR, REPLACEMENT

if TYPE_CHECKING:
    from collections.abc import Collection

    from otel_mqtrace.landing.layout import LandedMessage
    from otel_mqtrace.model import TraceBean

__all__ = ["Wanted", "mentioned", "wanted"]

_AS_WRITTEN = str.maketrans({FIELD_SEPARATOR: REPLACEMENT, RECORD_TERMINATOR: REPLACEMENT})


@dataclass(frozen=True, slots=True)
class Wanted:
    """Message ids, any of which will do, and a key; with both, a message must have both.

    ``texts`` is what to search for: the ids, or the key where there are none; as given and as our encoder writes it.
    """

    msg_ids: frozenset[str] = frozenset()
    key: str | None = None
    texts: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        said = self.msg_ids or frozenset({self.key} if self.key is not None else ())
        object.__setattr__(self, "texts", said | {_written(text) for text in said})

    def means(self, bean: TraceBean) -> bool:
        """Whether one message of a record is meant: by its unique id, the id of its place, or else by the key."""
        if not self.msg_ids:
            return self.has_key(bean)
        return bean.msg_id in self.texts or (bean.offset_msg_id or "") in self.texts

    def has_key(self, bean: TraceBean) -> bool:
        """Whether the record carries the key; 4.x clients write all keys of a message as one."""
        if self.key is None or bean.keys is None:
            return False
        key = _written(self.key)
        return bean.keys in {key, self.key} or key in bean.keys.split(KEY_SEPARATOR)


def _written(text: str) -> str:
    """Return ``text`` as the encoder writes it: without separators, and as UTF-8 can say it."""
    return text.translate(_AS_WRITTEN).encode("utf-8", "replace").decode("utf-8")


def wanted(msg_id: str | None, key: str | None) -> Wanted:
    """Return what the options ask for; the joined ids of a batch, as its ``Pub`` has them, mean each of its messages.

    Raises:
        UsageError: neither is given, or one is empty.
    """
    if msg_id is None and key is None:
        raise UsageError("say which message: --msg-id ID, --key KEY or both")
    empty = (
        "--msg-id" if msg_id is not None and not msg_id.strip() else "--key" if key is not None and not key else None
    )
    if empty:
        raise UsageError(f"{empty} is empty: give the text that the message carries")
    ids = frozenset() if msg_id is None else frozenset({msg_id, *filter(None, msg_id.split(BATCH_SEPARATOR))})
    return Wanted(ids, key)


def mentioned(message: LandedMessage, needles: Collection[bytes]) -> bool:
    """Whether a trace message can speak of one of ``needles`` (UTF-8), by its body or its keys.

    The keys matter where the body is in another charset: RocketMQ 4.x writes it in the platform's.
    """
    if any(needle in message.body for needle in needles):
        return True
    keys = (message.keys or "").encode("utf-8", "replace")
    return any(needle in keys for needle in needles)
