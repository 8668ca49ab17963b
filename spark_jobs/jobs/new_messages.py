"""This module knows which messages of topics are new to a stream: those behind the offsets that it has taken in."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from otel_mqtrace._errors import PeerError
from spark_jobs.sources.kafka.offsets import topic_ranges

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from spark_jobs.sources.kafka.address import TopicAddress
    from spark_jobs.sources.kafka.offsets import PartitionRange

__all__ = ["new_ranges"]


def new_ranges(
    addresses: Iterable[TopicAddress], client_config: Mapping[str, str], taken: Iterable[PartitionRange]
) -> tuple[PartitionRange, ...]:
    """Return what the topics hold behind ``taken``, empty ranges left out.

    A range begins where the last one ended even where retention has been faster: what was missed is then counted as
    offsets without a message.

    Raises:
        PeerError: a broker does not answer, has no such topic, or has one that was made anew.
    """
    ends: dict[tuple[TopicAddress, int], int] = {}
    for one in taken:
        ends[one.address, one.partition] = max(one.end, ends.get((one.address, one.partition), 0))
    held = [one for address in addresses for one in topic_ranges(address, client_config)]
    behind = [replace(one, first=_first(one, ends.get((one.address, one.partition)))) for one in held]
    return tuple(one for one in behind if one.first < one.end)


def _first(held: PartitionRange, end: int | None) -> int:
    if end is None:
        return held.first
    if end > held.end:
        raise PeerError(
            f"{held.address} ends at offset {held.end} of partition {held.partition}, before the {end} read already: "
            "it was made anew; begin with another --out"
        )
    return end
