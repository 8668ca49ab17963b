"""Draw the graph of a reconciliation from its verdict files: a part for each bucket, put together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from spark_jobs.graph.build import build_graph
from spark_jobs.graph.legs import read_verdict_legs
from spark_jobs.graph.parts import add_up, merge_parts

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from spark_jobs.graph.parts import GraphPart
    from spark_jobs.report.graph import Graph

__all__ = ["draw", "judged_span", "part_of"]

_MOST_IN_RESULT: Final = 200


def draw(parts: Iterable[GraphPart], judged: tuple[int | None, int | None]) -> Graph:
    """Return the graph of a reconciliation; calls without a message are not in verdicts.

    Args:
        parts: ``part_of`` of every bucket, in any order.
        judged: as they were given it.
    """
    return build_graph(merge_parts(parts), sides=("native", "otlp"), judged=judged, at_most=_MOST_IN_RESULT)


def part_of(
    owned: Mapping[tuple[str, str], str], judged: tuple[int | None, int | None], bucket: Sequence[str]
) -> GraphPart:
    """Return what a bucket's files add to the graph.

    Args:
        owned: the services of groups (``graph.legs.choose_owners``).
        judged: ``judged_span``.
        bucket: files of ``VERDICT``; all verdicts of a message are among them.
    """
    return add_up(read_verdict_legs(bucket), owned, opening_ms=judged[0], horizon_ms=judged[1])


def judged_span(first_ms: int | None, end_ms: int | None, grace_ms: int) -> tuple[int | None, int | None]:
    """Return from when to when the data is complete enough to say that a send or a delivery is missing."""
    opening_ms = None if first_ms is None else first_ms + grace_ms
    return opening_ms, None if end_ms is None else end_ms - grace_ms
