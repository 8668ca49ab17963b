"""The messages of one transaction, from any thread: each has one end, also when it comes to light after the commit."""

from __future__ import annotations

import threading

import pytest

from otel_mqtrace import SendHook
from otel_mqtrace.hooks.tracing import ClientInfo
from otel_mqtrace.hooks.transaction import TransactionHook
from otel_mqtrace.model import TransactionState

COMMIT = TransactionState.COMMIT_MESSAGE


@pytest.fixture
def hooks(tracing_with):
    tracing = tracing_with()
    return SendHook(tracing=tracing), TransactionHook(tracing, ClientInfo())


def _sent(hooks, topic="orders"):
    send, transaction = hooks
    call = send.before(topic, transaction_id=transaction.transaction_id)
    send.after(call, partition=0, offset=1)
    return call


def _ends(exporter):
    exporter.take_all("send orders")
    return [span.links[0].context.span_id for span in exporter.take_all("end_transaction orders")]


def test_a_send_that_returns_after_the_commit_still_gets_its_end(hooks, exporter):
    """Another thread's ``produce``: it was in the transaction, whenever its call comes back."""
    _, transaction = hooks
    transaction.begin()
    call = _sent(hooks)
    transaction.ended(COMMIT, start_ns=0)
    transaction.joined(call)
    assert _ends(exporter) == [call.span_context.span_id]


def test_a_send_of_before_has_no_part_in_the_next_transaction(hooks, exporter):
    _, transaction = hooks
    transaction.begin()
    late = _sent(hooks)
    transaction.ended(COMMIT, start_ns=0)
    transaction.begin()
    transaction.joined(late)
    transaction.ended(COMMIT, start_ns=0)
    assert _ends(exporter) == []


def test_a_send_outside_has_no_end(hooks, exporter):
    _, transaction = hooks
    call = _sent(hooks)
    transaction.begin()
    transaction.joined(call)
    transaction.ended(COMMIT, start_ns=0)
    assert _ends(exporter) == []


def test_sends_of_many_threads_that_return_during_the_commit_are_ended_once_each(hooks, exporter):
    _, transaction = hooks
    transaction.begin()
    calls = [_sent(hooks) for _ in range(400)]
    ready = threading.Barrier(5)

    def join(mine):
        ready.wait()
        for call in mine:
            transaction.joined(call)

    threads = [threading.Thread(target=join, args=(calls[number::4],)) for number in range(4)]
    for thread in threads:
        thread.start()
    ready.wait()
    transaction.ended(COMMIT, start_ns=0)
    for thread in threads:
        thread.join()
    assert sorted(_ends(exporter)) == sorted(call.span_context.span_id for call in calls)
