"""Pairing of records of one event: any order, any batches, late, lost and repeated ones."""

import tracemalloc
from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.forwarder.pairing import Pairing, Position
from otel_mqtrace.model import TraceType
from tests.support.forwarded_spans import context_of, record_of
from tests.support.trace_stories import START_MS, after, batched, before, events_of, lives


def _record(trace_ctx, *, arrival_ms=START_MS, offset=0):
    return record_of(trace_ctx, Position("trace", 0, offset), arrival_ms)


@pytest.mark.parametrize("other", [after(request_id="R2"), after("M2"), after(request_id=None), before()])
def test_half_waits_for_the_other_half_of_its_own_call(other):
    pairing = Pairing()
    pairing.add([_record(before())])
    assert all(event.before is None for event in pairing.add([_record(other)]))
    assert Position("trace", 0, 0) in pairing.uncommitted()


def test_oldest_waiting_halves_are_released_beyond_the_limit():
    pairing = Pairing(max_pending=2)
    gone = []
    for number, arrival_ms in enumerate((30, 10, 20, 40)):
        gone += pairing.add([_record(before(request_id=f"R{number}"), arrival_ms=arrival_ms)])
    assert [event.record[0].arrival_ms for event in gone] == [10, 20]
    assert (pairing.counts.pending, pairing.counts.overflowed) == (2, 2)


def test_memory_of_pairing_is_bounded():
    pairing = Pairing(max_pending=10)
    sizes, paired = [], 0
    tracemalloc.start()
    for number in range(1_000):
        pairing.add([_record(before(request_id=f"R{number}"), offset=2 * number)])
        paired += len(pairing.add([_record(after(request_id=f"R{number}"), offset=2 * number + 1)]))
        sizes.append(tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()
    assert (paired, pairing.counts.pending, pairing.counts.halves) == (1_000, 0, 0)
    assert sizes[-1] - sizes[200] < 50 * 800  # bytes: less than one key for each of the pairs in between


def _expected(records):
    """The small oracle: what there must be of each listener call, each send and everything else, from the whole."""
    calls, sends, roots = defaultdict(set), defaultdict(list), set()
    for each in set(records):
        bean = each.beans[0]
        if each.trace_type in (TraceType.SUB_BEFORE, TraceType.SUB_AFTER):
            calls[each.request_id, bean.msg_id].add(each.trace_type)
        elif each.trace_type is TraceType.PUB:
            sends[bean.msg_id].append(each)
        else:
            roots.add((each.trace_type, bean.msg_id, bean.transaction_state))
    for call, halves in calls.items():
        half = "before" if TraceType.SUB_BEFORE in halves else "after"
        roots.add(("Sub", call, (TraceType.SUB_BEFORE, TraceType.SUB_AFTER) if len(halves) == 2 else half))
    for msg_id, attempts in sends.items():
        root = max(attempts, key=lambda each: (each.success, -each.timestamp_ms))
        roots |= {("Pub", msg_id, each.timestamp_ms, each is root) for each in attempts}
    return roots


def _fields(event):
    trace_ctx = context_of(event.record)
    (bean,) = trace_ctx.beans
    if trace_ctx.trace_type in (TraceType.SUB_BEFORE, TraceType.SUB_AFTER):
        halves = event.before and (context_of(event.before).trace_type, trace_ctx.trace_type)
        return "Sub", (trace_ctx.request_id, bean.msg_id), halves or event.half
    if trace_ctx.trace_type is TraceType.PUB:
        return "Pub", bean.msg_id, trace_ctx.timestamp_ms, event.is_root
    return trace_ctx.trace_type, bean.msg_id, bean.transaction_state


@given(st.data())
def test_any_order_and_batches_give_the_same_events(data):
    records = data.draw(lives())
    assert {_fields(event) for event in events_of(data.draw(batched(records)))} == _expected(records)
