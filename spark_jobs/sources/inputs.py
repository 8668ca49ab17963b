"""Find the files and the topics behind the sources of one side."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from bridge.otlp.detect import Side
from spark_jobs.sources.files import source_files
from spark_jobs.sources.kafka.address import apart
from spark_jobs.sources.kafka.offsets import topic_ranges
from spark_jobs.sources.otlp import span_files

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from spark_jobs.sources.files import SourceFile
    from spark_jobs.sources.kafka.address import TopicAddress
    from spark_jobs.sources.kafka.offsets import PartitionRange

__all__ = ["Inputs", "find_inputs"]


@dataclass(frozen=True, slots=True)
class Inputs:
    """What one side reads: files, and what each topic holds now."""

    files: tuple[SourceFile, ...] = ()
    topics: Mapping[TopicAddress, tuple[PartitionRange, ...]] = field(default_factory=dict)


def find_inputs(
    side: Side, srcs: Sequence[str], client_config: Mapping[str, str], *, layout: str | None = None
) -> Inputs:
    """Return what is behind the sources of a side; of files only the heads are read.

    Args:
        side: native or OTLP.
        srcs: sources as the command line takes them.
        client_config: properties of the Kafka client.
        layout: of the spans, in place of detection.

    Raises:
        UsageError: a source names nothing, or there is no such layout.
        UnreadableInputError: a file is not what it was given for.
        PeerError: the broker of a topic does not answer, or has no such topic.
    """
    paths, addresses = apart(srcs)
    files = source_files(paths, side) if side is Side.NATIVE else span_files(paths, layout=layout)
    return Inputs(files, {address: topic_ranges(address, client_config) for address in addresses})
