"""How the answer of a client's future is heard before the application hears it."""

from __future__ import annotations

from concurrent.futures import CancelledError, Future

from otel_mqtrace.clients.rocketmq.client import complete_after


def test_an_answer_that_was_cancelled_is_heard_as_such():
    """It is no receipt: what is recorded of it must end, and not stumble over nothing."""
    answer, heard = Future(), []
    told = complete_after(answer, lambda result, exception: heard.append((result, type(exception))), None)
    answer.cancel()
    assert (heard, told.cancelled()) == ([(None, CancelledError)], True)
