"""This module knows a graph that is collected with whatever else is: its small tables, and how their rows are read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from spark_jobs.graph.edges import edges, members, messaging_calls
from spark_jobs.graph.journeys import journeys
from spark_jobs.graph.legs import legs
from spark_jobs.graph.read import read_calls, read_graph

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import DataFrame

    from spark_jobs.judging.facts import Facts
    from spark_jobs.report.graph import Graph

__all__ = ["Drawing", "drawing", "drawing_of_verdicts", "judged_span"]

_MOST_IN_RESULT: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    """``tables`` by name, to be collected; what each row of them means is that of ``graph.edges``."""

    sides: tuple[str, ...]
    opening_ms: int | None
    horizon_ms: int | None
    tables: Mapping[str, DataFrame]

    def read(self, rows: Mapping[str, Sequence[Any]]) -> Graph:
        """Return the graph of the collected rows of ``tables``, by name; a table without rows may be left out."""
        return read_graph(
            rows.get("graph_edges", ()),
            rows.get("graph_members", ()),
            sides=self.sides,
            opening_ms=self.opening_ms,
            horizon_ms=self.horizon_ms,
            calls=read_calls(rows.get("graph_direct", ()), rows.get("graph_messages", ())),
        )


def drawing(  # noqa: PLR0913 - what is drawn, and by what
    frame: DataFrame,
    owned: Mapping[tuple[str, str], str],
    *,
    sides: tuple[str, ...],
    judged: tuple[int | None, int | None],
    at_most: int,
    direct: DataFrame | None = None,
) -> Drawing:
    """Return the drawing of ``LEG``.

    Args:
        frame: ``LEG``.
        owned: ``owners.read_owners`` of it.
        sides: the sides that were read.
        judged: ``judged_span``.
        at_most: edges of each kind that are told one by one.
        direct: ``parent, child, calls`` of the calls that no message carried, where they are known.
    """
    opening_ms, horizon_ms = judged
    ways = journeys(frame, owned, opening_ms=opening_ms, horizon_ms=horizon_ms)
    tables = {
        "graph_edges": edges(ways, at_most=at_most),
        "graph_members": members(ways, at_most=at_most),
        "graph_messages": messaging_calls(ways, at_most=at_most),
        **({} if direct is None else {"graph_direct": direct}),
    }
    return Drawing(sides=sides, opening_ms=opening_ms, horizon_ms=horizon_ms, tables=tables)


def drawing_of_verdicts(
    judged: DataFrame, owned: Mapping[tuple[str, str], str], known: Facts, *, grace_ms: int
) -> Drawing:
    """Return the drawing of a reconciliation's verdicts, for its report; direct calls are not in verdicts.

    Args:
        judged: ``VERDICT``, as written.
        owned: ``owners.read_owners`` of its legs.
        known: the facts it was judged by.
        grace_ms: how late a record may arrive.
    """
    end_ms = None if known.horizon_ms is None else known.horizon_ms + grace_ms
    span = judged_span(known.first_ms, end_ms, grace_ms)
    return drawing(legs(judged), owned, sides=("native", "otlp"), judged=span, at_most=_MOST_IN_RESULT)


def judged_span(first_ms: int | None, end_ms: int | None, grace_ms: int) -> tuple[int | None, int | None]:
    """Return from when to when the data is complete enough to say that a send or a delivery is missing."""
    opening_ms = None if first_ms is None else first_ms + grace_ms
    return opening_ms, None if end_ms is None else end_ms - grace_ms
