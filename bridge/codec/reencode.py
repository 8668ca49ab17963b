"""This module knows how the JSON of records becomes native bytes again, and which line could not."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from bridge.codec.records import read_record
from otel_mqtrace._errors import EncodeError
from otel_mqtrace.model import AccessChannel
from otel_mqtrace.wire.native.dialects import CLOUD_SUFFIX, dialect_named
from otel_mqtrace.wire.native.encode import EncodedContext, encode_context
from otel_mqtrace.wire.native.layout import DEFAULT_DIALECT, DIALECTS, CloudSubAfter

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["EncodedLine", "Refusal", "Target", "encode_lines"]


@dataclass(frozen=True, slots=True)
class Target:
    """What to write: a dialect, and the access channel that decides the end of a ``SubAfter``."""

    dialect: str = DEFAULT_DIALECT
    access_channel: AccessChannel = AccessChannel.LOCAL

    @classmethod
    def named(cls, name: str) -> Target:
        """Return the target of a name such as ``4.8.0`` or ``5.5.0/CLOUD``; ``UsageError`` when there is none."""
        dialect = dialect_named(name.removesuffix(CLOUD_SUFFIX)).name
        return cls(dialect, AccessChannel.CLOUD if name.endswith(CLOUD_SUFFIX) else AccessChannel.LOCAL)

    @classmethod
    def of_record(cls, name: object) -> Target:
        """Return the target that writes a record's own ``dialect`` again, or the nearest one we are willing to write.

        A glued CLOUD record is mended by the default dialect's CLOUD form; an imitator's record becomes Java's.
        """
        text = str(name)
        channel = AccessChannel.CLOUD if text.endswith(CLOUD_SUFFIX) else AccessChannel.LOCAL
        known = DIALECTS.get(text.removesuffix(CLOUD_SUFFIX))
        glued = channel is AccessChannel.CLOUD and known and known.cloud_sub_after is CloudSubAfter.GLUED
        return cls(DEFAULT_DIALECT if known is None or glued else known.name, channel)


@dataclass(frozen=True, slots=True)
class EncodedLine:
    """One record, encoded; ``body_index`` is that of its object, ``None`` when it has none."""

    body_index: object
    encoded: EncodedContext


@dataclass(frozen=True, slots=True)
class Refusal:
    """A line (from 1) that did not become a record, and why."""

    line: int
    reason: str


def encode_lines(
    lines: Iterable[bytes], target: Target | None = None, *, charset: str = "utf-8"
) -> Iterator[EncodedLine | Refusal]:
    """Encode JSON lines one by one as ``target``, by default each as its own dialect; blank lines do not count.

    Raises:
        UsageError: no such charset.
    """
    for number, line in enumerate(lines, start=1):
        if line.strip():
            yield _encoded(number, line, target, charset)


def _encoded(number: int, line: bytes, target: Target | None, charset: str) -> EncodedLine | Refusal:
    try:
        item: Any = json.loads(line)
        trace_ctx = read_record(item)
        chosen = target or Target.of_record(item.get("dialect"))
        of_channel = replace(trace_ctx, access_channel=chosen.access_channel)
        encoded = encode_context(of_channel, chosen.dialect, charset=charset)
    except EncodeError as error:
        return Refusal(number, str(error))
    except (ValueError, RecursionError):
        return Refusal(number, "not JSON")
    return EncodedLine(item.get("body_index"), encoded)
