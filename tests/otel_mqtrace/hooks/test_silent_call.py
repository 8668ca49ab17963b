"""A listener call of which nothing is recorded: what is current meanwhile is put together when somebody looks."""

from __future__ import annotations

import gc
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry import baggage, context, propagate, trace
from opentelemetry.baggage.propagation import W3CBaggagePropagator
from opentelemetry.context import Context
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags

from otel_mqtrace import ConsumeHook, process
from otel_mqtrace.config import Settings
from otel_mqtrace.hooks._holding import Held
from otel_mqtrace.hooks._scope import AutomaticScope, Lent, UnreadContext, ambient_context
from otel_mqtrace.hooks.consume import IncomingMessage
from otel_mqtrace.hooks.tracing import Tracing

SENT = ("traceparent", b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
HEADERS = st.lists(
    st.sampled_from(
        [
            SENT,
            ("traceparent", b"no such thing"),
            ("tracestate", b"a=b"),
            ("baggage", b"order=42"),
            ("TAGS", b"paid"),
        ]
    ),
    max_size=4,
)
AMBIENT = st.sampled_from(
    [
        Context(),
        baggage.set_baggage("mine", "1", Context()),
        trace.set_span_in_context(NonRecordingSpan(SpanContext(0xB, 0xA, False, TraceFlags(1))), Context()),
    ]
)
LOOKS = {
    "in": lambda seen: "a" in seen,
    "equals": lambda seen: seen == {"a": 1, "b": 2},
    "differs": lambda seen: seen != {},
    "item": lambda seen: seen["a"],
    "every": list,
    "backwards": lambda seen: list(reversed(seen)),
    "how many": len,
    "any": bool,
    "joined": lambda seen: seen | {"c": 3},
    "joined on": lambda seen: {"c": 3} | seen,
    "unpacked": lambda seen: {**seen, "c": 3},
    "as a dict": dict,
    "copy": lambda seen: seen.copy(),
    "get": lambda seen: (seen.get("a"), seen.get("c", 3)),
    "items": lambda seen: list(seen.items()),
    "keys": lambda seen: list(seen.keys()),
    "values": lambda seen: list(seen.values()),
    "printed": repr,
    "more": lambda seen: context.set_value("c", 3, seen),
}


def _as_a_dict(otel_ctx=None):
    return {"a": 1, "b": 2}


class _Asked(IdGenerator):
    """Draws the same ids each time, and counts."""

    asked = 0

    def generate_trace_id(self) -> int:
        self.asked += 1
        return 0xA0 + self.asked

    def generate_span_id(self) -> int:
        self.asked += 1
        return 0xB0 + self.asked


def _hook(ids=None, **settings):
    provider = TracerProvider(sampler=ALWAYS_OFF, id_generator=ids or _Asked())
    return ConsumeHook(tracing=Tracing.create(settings=Settings(**settings), tracer_provider=provider))


def _message(*headers):
    return IncomingMessage(topic="orders", partition=0, offset=7, headers=list(headers))


def _handed_over(hook, *headers):
    """As a client does that has its messages to itself."""
    (call,) = hook.before([_message(*headers)], unchanging=True, silent=hook.asks_nothing)
    held = Held()
    held.hold(hook, [call])
    held.enter(call)
    return held, call


def _seen():
    """What a handler can learn of where it runs."""
    span_ctx = trace.get_current_span().get_span_context()
    carried: dict[str, str] = {}
    propagate.inject(carried)
    return {
        "trace": span_ctx.trace_id,
        "span": span_ctx.span_id,
        "flags": int(span_ctx.trace_flags),
        "state": dict(span_ctx.trace_state),
        "remote": span_ctx.is_remote,
        "baggage": dict(baggage.get_all()),
        "headers": carried,
        "handled": process.current().span is trace.get_current_span(),
        "behind": dict(ambient_context()),
    }


@pytest.mark.parametrize("look", LOOKS.values(), ids=LOOKS)
def test_an_unread_context_reads_as_any_other(look):
    """Whatever the first look is."""
    unread = UnreadContext(_as_a_dict)
    assert look(unread) == look(Lent(_as_a_dict()))
    assert type(unread) is Lent


def test_an_unread_context_that_was_taken_back_reads_as_what_it_stood_on():
    """And what it would have been is never put together."""
    unread = UnreadContext(lambda: pytest.fail("somebody looked"))
    unread.take_back(Context({"z": 26}))
    assert dict(unread) == {"z": 26}


def test_one_that_is_taken_back_during_the_first_look_is_taken_back():
    """Another thread closes the consumer while a handler looks; it must not find itself in the message for good."""

    def taken_back_meanwhile():
        unread.take_back(Context({"z": 26}))
        return _as_a_dict()

    unread = UnreadContext(taken_back_meanwhile)
    assert dict(unread) == {"z": 26}
    assert type(unread) is Lent


def test_one_that_is_read_during_the_first_look_is_read_by_both():
    """Two threads look at the same moment; the second is done first."""

    def read_meanwhile():
        if not others:
            others.append(None)
            others[0] = dict(unread)
        return _as_a_dict()

    others = []
    unread = UnreadContext(read_meanwhile)
    assert dict(unread) == others[0] == _as_a_dict()


def test_two_that_say_the_same_are_equal():
    """Whichever of them is asked."""
    assert UnreadContext(_as_a_dict) == UnreadContext(_as_a_dict)
    assert (UnreadContext(_as_a_dict) != UnreadContext(_as_a_dict)) is False


def test_whoever_leaves_it_does_not_look():
    """It may be a finaliser, in the middle of anything: an id generator that holds a lock, say."""
    before = context.get_current()
    scope = AutomaticScope(UnreadContext(lambda: pytest.fail("somebody looked")), before)
    copy_context().run(scope.leave)
    assert dict(context.get_current()) == dict(before)


@given(headers=HEADERS, ambient=AMBIENT, mode=st.sampled_from(["auto", "parent", "link"]))
def test_a_handler_sees_what_it_would_have_seen_at_once(headers, ambient, mode):
    """Trace, flags, state, baggage, what it would send on, and where it stands: in every mode."""

    def handled(*, silent):
        token = context.attach(ambient)
        try:
            hook = _hook(process_context=mode)
            (call,) = hook.before([_message(*headers)], unchanging=True, silent=silent)
            assert call.is_silent is silent
            held = Held()
            held.hold(hook, [call])
            held.enter(call)
            seen = _seen()
            held.finish()
            assert context.get_current() == ambient
            return seen
        finally:
            context.detach(token)

    assert handled(silent=True) == handled(silent=False)


def test_nothing_is_put_together_when_nobody_looks():
    """Not even an id is drawn."""
    ids = _Asked()
    held, _ = _handed_over(_hook(ids), SENT)
    held.finish()
    assert ids.asked == 0


def test_two_who_look_at_the_same_moment_see_the_same_span():
    """A handler's threads, in copies of its context."""
    held, call = _handed_over(_hook(), SENT)
    with ThreadPoolExecutor(8) as threads:
        looks = [threads.submit(copy_context().run, trace.get_current_span) for _ in range(64)]
        seen = {id(look.result()) for look in looks}
    assert seen == {id(call.span)}
    held.finish()


def test_a_look_after_the_next_poll_still_sees_the_message():
    """A task that goes on by itself keeps the context it was begun in."""
    held, call = _handed_over(_hook(), SENT)
    task = copy_context()
    held.finish()
    assert task.run(trace.get_current_span) is call.span
    assert trace.get_current_span() is trace.INVALID_SPAN


def test_what_a_message_carried_is_let_go_of_with_the_next_poll():
    """The last ten thousand messages are remembered: not with their headers."""
    held, call = _handed_over(_hook(), SENT, ("big", b"x" * 100_000))
    remembered = call.remembered
    assert remembered() is call
    held.finish()
    del call
    gc.collect()
    assert remembered() is None


def test_a_block_takes_it_over():
    """It is current in the block, and not any more behind it."""
    hook = _hook()
    held, call = _handed_over(hook, SENT)
    taken = held.take(call)
    assert trace.get_current_span() is trace.INVALID_SPAN
    assert taken.call.span.get_span_context().trace_id == 0x0AF7651916CD43DD8448EB211C80319C
    taken.finish(process.current().code, None)


def test_what_records_by_now_began_too_late_for_it():
    """A span that nobody would end must not begin: the handler stays in what the message was created in."""
    hook = _hook()
    held, call = _handed_over(hook, SENT)
    hook._tracing.tracer.sampler = ALWAYS_ON
    assert not call.span.is_recording()
    assert trace.get_current_span().get_span_context().span_id == 0xB7AD6B7169203331
    held.finish()


def test_what_was_recorded_in_between_changes_nothing_for_it():
    """Whoever looks decides by what holds then: a sampler was switched on and off again while the handler ran."""
    hook = _hook()
    tracing = hook._tracing
    held, call = _handed_over(hook, SENT)
    tracing.tracer.sampler = ALWAYS_ON
    with ThreadPoolExecutor(1) as elsewhere:
        assert elsewhere.submit(hook.before, [_message()]).result()[0].span.is_recording()
    tracing.tracer.sampler = ALWAYS_OFF
    here = trace.get_current_span().get_span_context()
    assert (here.trace_id, here.span_id == 0xB7AD6B7169203331, here.trace_flags) == (
        0x0AF7651916CD43DD8448EB211C80319C,
        False,
        TraceFlags(0),
    )
    assert call.span.get_span_context() == here
    held.finish()


@pytest.mark.parametrize(
    "settings",
    [{}, {"topic_exclude": ("orders",)}, {"topic_sampling": {"orders": 0.0}}],
    ids=["any", "none", "left-out"],
)
def test_the_short_way_is_found_again_when_nothing_is_recorded_any_more(settings):
    """By the third poll at the latest, even where no span ever starts."""
    hook, asked = _hook(**settings), []
    for sampler in (ALWAYS_ON, *[ALWAYS_OFF] * 4):
        hook._tracing.tracer.sampler = sampler
        asked.append(hook.asks_nothing)
        for call in hook.before([_message(SENT)], unchanging=True, silent=asked[-1]):
            hook.after(call)
    assert (asked[0], all(asked[3:])) == (False, True)


def test_a_part_that_no_call_has_is_missed():
    """As of any object."""
    held, call = _handed_over(_hook(), SENT)
    with pytest.raises(AttributeError, match="colour"):
        _ = call.colour
    held.finish()


@pytest.mark.parametrize("looks", [{"capture_headers": ("tenant",)}, {"topic_sampling": {"orders": 0.5}}])
def test_where_somebody_decides_by_the_message_it_is_opened_at_once(looks):
    """Headers that are captured, a share of a topic's traces."""
    hook = _hook(**looks)
    (call,) = hook.before([_message(SENT)], unchanging=True, silent=True)
    assert not call.is_silent


def test_a_propagator_of_the_applications_own_is_asked_at_once():
    """It may look at more than the message, and not from any thread."""

    class Own(W3CBaggagePropagator):
        pass

    before = propagate.get_global_textmap()
    propagate.set_global_textmap(Own())
    try:
        hook = _hook()
        (call,) = hook.before([_message(SENT)], unchanging=True, silent=True)
        assert not call.is_silent
    finally:
        propagate.set_global_textmap(before)
