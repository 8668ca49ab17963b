"""One example of every kind of page we write, with something in every part of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from bridge.query.render.html import page
from bridge.query.search import Answer, Searched
from otel_mqtrace.model import ContextCode, MessageType, TransactionState
from spark_jobs.report.graph_files import render_graph_page
from spark_jobs.report.html import render_page
from tests.support.archives import T0, consume, end, pub, recall, story_of
from tests.support.results import graph, result

if TYPE_CHECKING:
    from collections.abc import Callable


def answered() -> str:
    """Return the answer of a query that found one message: two sends, a transaction, four groups, a recall."""
    story = story_of(
        pub(success=False, cost_ms=3000, offset_msg_id=""),
        pub(T0 + 3000, msg_type=MessageType.TRANS_HALF),
        end(T0 + 3010, TransactionState.UNKNOW),
        end(T0 + 9000, TransactionState.COMMIT_MESSAGE, check=True),
        *consume("R1", T0 + 9010, success=False, code=ContextCode.EXCEPTION),
        *consume("R2", T0 + 619_010, retry=1),
        *consume("R3", T0 + 9011, group="stock", code=ContextCode.TIME_OUT),
        *consume("R4", T0 + 9012, group="mail")[:1],
        recall(T0 + 20_000, success=False),
    )
    return page(Answer((story,), 0, Searched(where="a landing", messages=9, remarks=("one file was cut off",))))


PAGES: Final[dict[str, Callable[[], str]]] = {
    "report": lambda: render_page(result()),
    "query": answered,
    "graph": lambda: render_graph_page(graph()),
}
