"""Sends without a native record whose producer does not trace, told by the ids that its process drew.

RocketMQ's client draws message ids, the ids of its own trace messages and one id per trace context from one counter of
the JVM (``MessageClientIDSetter``, clients 4.4 to 5.5). A traced send with counter c makes its context before it
leaves. That takes a later number: a request id that never becomes the id of a message. So when c + 1, drawn after this
send was over, *is* the id of another message (or of a listener call), this send made no context: native trace is off in
its producer. Sends without an id and ends of transactions in between are counted: the first take two numbers (their own
id and a context), the second one.

What the rule cannot see stays unexplained: sends that overlap, batches of the agent's new convention, sends after which
the process drew many ids that no record names. It would excuse a lost record only in two cases: where the send's
context was drawn late, behind another thread's id (the first send of a JVM, while it loads the classes of the hook);
or where an id-less send of an untraced producer, or of another instance of the service, followed directly.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from spark_jobs.explain.ids import COUNTER_VALUES
from spark_jobs.explain.questions import NEXT_IDS
from spark_jobs.policy.profiles import NO_TRACE_CONTEXT, PRODUCER_NOT_TRACED
from spark_jobs.taxonomy import Kind

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

    from spark_jobs.explain.answered import AnsweredRows, Heard
    from spark_jobs.explain.keys import Keys
    from spark_jobs.judging.columns import Mask

__all__ = ["find_sends_without_producer_record", "find_untraced_sends", "is_of_untraced_producer"]

_IDS_PER_KEY: Final = 4  # a message, its context, its share of a trace message, and one to spare
_BUSY_MS: Final = 1_000  # in which not even a busy process draws 65 536 ids
_PROVING_SENDS: Final = 2  # without a context, before their producer is one that does not trace
_LEAST, _MOST = -(1 << 63), (1 << 63) - 1


class _Send(NamedTuple):
    """A send and the ids around it; milliseconds.

    Attributes:
        next_ms: how long after its own id the next one that a record names was drawn.
        ids_between: how many ids were drawn between the two.
        process_keys: how many keys of its process there are in the run.
        idless_ms: when sends without an id began around its end; ``None`` where too many did.
        ends_ms: when transactions ended around its end; ``None`` where too many did.
    """

    start_ms: int
    end_ms: int
    next_ms: int
    ids_between: int
    process_keys: int
    idless_ms: Sequence[int] | None
    ends_ms: Sequence[int] | None


def find_untraced_sends(rows: AnsweredRows) -> npt.NDArray[np.int8]:
    """Return 1 for sends after which the ids show that no trace context was made."""
    found = rows.none()
    if rows.holds(NO_TRACE_CONTEXT):
        for row, send in _sends_with_next_id(rows):
            found[row] = _made_no_context(send)
        found &= rows.may_concern(NO_TRACE_CONTEXT)
    return found.astype(np.int8)


def _sends_with_next_id(rows: AnsweredRows) -> Iterator[tuple[int, _Send]]:
    nexts = [rows.hear(f"next{step}") for step in range(1, NEXT_IDS + 1)]
    idless, ends = ([rows.hear(f"{what}{later}") for later in (0, 1)] for what in ("idless", "end"))
    start_ms, end_ms = rows.number("otlp.start_ms"), rows.number("otlp.end_ms")
    own_ms, keys = rows.named.sender.drawn_ms, rows.hear("process").count("keys")
    is_concerned = np.logical_or.reduce([heard.is_answered for heard in nexts]) & start_ms.known & end_ms.known
    for row in np.flatnonzero(is_concerned & rows.on_otlp & rows.is_kind(Kind.PUBLISH)).tolist():
        behind = _find_next(nexts, row, int(own_ms[row]))
        if behind is not None:
            times_ms = int(start_ms.values[row]), int(end_ms.values[row])
            yield row, _Send(*times_ms, *behind, int(keys[row]), _collect(idless, row), _collect(ends, row))


def _find_next(nexts: Sequence[Heard], row: int, own_ms: int) -> tuple[int, int] | None:
    """Return when the nearest known id after a send's own was drawn, and how many ids stand between them."""
    for between, heard in enumerate(nexts):
        later_ms = [moment for moment in heard.moments(row) or () if moment >= own_ms]
        if later_ms:
            return min(later_ms) - own_ms, between
    return None


def _collect(slices: Sequence[Heard], row: int) -> Sequence[int] | None:
    found: list[int] = []
    for heard in slices:
        moments = heard.moments(row)
        if moments is None:
            return None
        found += moments
    return found


def _made_no_context(send: _Send) -> bool:
    if not _LEAST <= send.end_ms - send.start_ms <= min(send.next_ms, _MOST):
        return False
    # Otherwise the counter may have come round in between.
    is_near = send.process_keys * _IDS_PER_KEY < COUNTER_VALUES or send.next_ms <= _BUSY_MS
    if not is_near or send.idless_ms is None or send.ends_ms is None:
        return False
    idless, ends = (_count_within(moments, send) for moments in (send.idless_ms, send.ends_ms))
    return send.ids_between == 2 * idless + ends


def _count_within(moments: Sequence[int], send: _Send) -> int:
    until_ms = send.start_ms + send.next_ms
    return sum(send.end_ms <= moment <= until_ms for moment in moments) if until_ms <= _MOST else 0


def find_sends_without_producer_record(rows: AnsweredRows) -> npt.NDArray[np.int8]:
    """Return 1 for sends of a producer that the span names and of which the run has no native record at all.

    A native record of the group whose client host is unknown may be of this producer.
    """
    if not rows.holds(PRODUCER_NOT_TRACED):
        return rows.none().astype(np.int8)
    is_unrecorded = (rows.hear("producer").count("native") == 0) & (rows.hear("producer group").count("native") == 0)
    is_sent = rows.on_otlp & rows.is_kind(Kind.PUBLISH) & rows.may_concern(PRODUCER_NOT_TRACED)
    found: Mask = is_sent & rows.asked["producer"].known & is_unrecorded
    return found.astype(np.int8)


def is_of_untraced_producer(producers: Keys, is_untraced_send: Mask) -> Mask:
    """Tell which residue rows are of a producer that made no trace context for at least ``_PROVING_SENDS`` sends."""
    keys, counts = np.unique(producers.values[producers.known & is_untraced_send], return_counts=True)
    return producers.known & np.isin(producers.values, keys[counts >= _PROVING_SENDS])
