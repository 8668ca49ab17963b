"""Made-up lives of messages as native trace records, in any order and any batches, and what spans they must become."""

import itertools
from typing import Any

from hypothesis import strategies as st

from bridge.forwarder.pairing import Event, Pairing, Position
from otel_mqtrace import model
from otel_mqtrace.wire.native import encode_context
from tests.support.forwarded_spans import record_of
from tests.support.native_vectors import context

START_MS = 1_700_000_000_000


def pub(msg_id: str = "M1", *, stamp_ms: int = START_MS, **fields: Any) -> model.TraceContext:
    message = {"topic": "orders", "tags": "TagA", "keys": "k1", "store_host": "10.0.0.5:10911", "body_length": 128}
    message |= {"msg_type": model.MessageType.NORMAL, "offset_msg_id": "0A9A002600002A9F0000000000002329"}
    call = {"region_id": "DefaultRegion", "group_name": "PG_order", "cost_ms": 9, "success": True}
    return context(model.TraceType.PUB, stamp_ms, msg_id=msg_id, **{**message, **call, **fields})


def before(
    msg_id: str = "M1", request_id: str = "R1", *, stamp_ms: int = START_MS + 100, **fields: Any
) -> model.TraceContext:
    call = {"region_id": "DefaultRegion", "group_name": "CG_bill", "request_id": request_id}
    half = {"msg_id": msg_id, "keys": "k1", "retry_times": 0, **call, **fields}
    return context(model.TraceType.SUB_BEFORE, stamp_ms, **half)


def after(msg_id: str = "M1", request_id: str = "R1", *, stamp_ms: int | None = START_MS + 150, **fields: Any) -> Any:
    """The second half; ``stamp_ms=None`` is the short one of the CLOUD channel, which names no group either."""
    ended = {"success": True, "cost_ms": 50, "context_code": model.ContextCode.SUCCESS, "request_id": request_id}
    half = {"msg_id": msg_id, "keys": "k1", "group_name": None if stamp_ms is None else "CG_bill", **ended, **fields}
    return context(model.TraceType.SUB_AFTER, stamp_ms, **half)


def end_transaction(
    msg_id: str = "M1", state: model.TransactionState = model.TransactionState.COMMIT_MESSAGE
) -> model.TraceContext:
    end = {"transaction_id": msg_id, "transaction_state": state, "from_transaction_check": False}
    message = {"topic": "orders", "msg_id": msg_id, "msg_type": model.MessageType.TRANS_COMMIT}
    return context(model.TraceType.END_TRANSACTION, START_MS + 20, group_name="PG_order", **message, **end)


def body_of(*contexts: model.TraceContext, dialect: str = "5.5.0") -> bytes:
    return b"".join(encode_context(each, dialect=dialect).body for each in contexts)


def cloud(trace_ctx: model.TraceContext) -> model.TraceContext:
    return trace_ctx._replace(access_channel=model.AccessChannel.CLOUD)


Bodies = list[tuple[model.TraceContext, ...]]
"""Trace messages: each some records, some of them stored twice."""


def events_of(bodies: Bodies) -> list[Event]:
    """Return the events of trace messages that arrive at once: a record without a time takes that of arrival."""
    pairing = Pairing()
    records = (
        record_of(each, Position("trace", number % 3, number), START_MS + 900)
        for number, body in enumerate(bodies)
        for each in body
    )
    return pairing.add(records) + pairing.flush()


@st.composite
def lives(draw: st.DrawFn) -> list[model.TraceContext]:
    """Draw the records of up to four messages, each at most once accepted, in no order."""
    records: list[model.TraceContext] = []
    for msg_id in draw(st.lists(st.sampled_from(["M1", "M2", "M3", "M4"]), unique=True, max_size=4)):
        refused = draw(st.integers(0, 2))
        records += [pub(msg_id, success=False, stamp_ms=START_MS + attempt) for attempt in range(refused)]
        records += [pub(msg_id, stamp_ms=START_MS + refused)] * draw(st.integers(0, 1))
        for call in range(draw(st.integers(0, 3))):
            request_id = f"{msg_id}-R{call}"
            stamp_ms = draw(st.sampled_from([START_MS + 150, None]))
            halves = [before(msg_id, request_id, retry_times=call), after(msg_id, request_id, stamp_ms=stamp_ms)]
            records += draw(st.sampled_from([halves, halves, halves[:1], halves[1:]]))
        states = draw(st.lists(st.sampled_from(model.TransactionState), unique=True, max_size=2))
        records += [end_transaction(msg_id, state) for state in states]
    return records


@st.composite
def batched(draw: st.DrawFn, records: list[model.TraceContext]) -> Bodies:
    """Draw ``records`` in any order, cut into trace messages anywhere, any of them stored twice."""
    order = draw(st.permutations(records))
    cuts = sorted(draw(st.sets(st.integers(0, len(order)))) | {0, len(order)})
    bodies = [tuple(order[first:last]) for first, last in itertools.pairwise(cuts)]
    again = draw(st.lists(st.sampled_from(bodies), max_size=2)) if bodies else []
    return draw(st.permutations(bodies + again))
