"""This module knows which SRC of the command line names a Kafka topic, ``kafka://BOOTSTRAP/TOPIC``, and not a file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from bridge.addresses import parse_address

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["LAYOUT", "TopicAddress", "apart"]

LAYOUT: Final = "kafka"
"""What the layout of a topic is called, beside those of files."""

_SCHEME: Final = "kafka://"


@dataclass(frozen=True, slots=True)
class TopicAddress:
    """One topic: ``bootstrap_servers`` is ``host:port[,host:port…]``; its text is the SRC it came from."""

    bootstrap_servers: str
    topic: str

    def __str__(self) -> str:
        return f"{_SCHEME}{self.bootstrap_servers}/{self.topic}"


def apart(srcs: Iterable[str]) -> tuple[tuple[str, ...], tuple[TopicAddress, ...]]:
    """Return the sources that are files, and the topics among them, each once and in order.

    Raises:
        UsageError: a source starts as a topic's address and is none.
    """
    srcs = tuple(srcs)
    addresses = [parse_address(src) for src in srcs if src.startswith(_SCHEME)]
    topics = [TopicAddress(each.servers, each.topic) for each in addresses]
    return tuple(src for src in srcs if not src.startswith(_SCHEME)), tuple(dict.fromkeys(topics))
