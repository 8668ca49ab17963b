"""Faults of a call of a RocketMQ client 5.3.3 with native trace, run under the Java agent."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from otel_mqtrace.model import ContextCode, TraceType
from tests.faults import changes as do
from tests.faults.agent_spans import send_ids
from tests.faults.calls import Application, Call, Draft, consuming, received, sending
from tests.faults.own_faults import Fault
from tests.faults.stage import Process, Stage
from tests.faults.truth import NORMALISED, Event, Expected, one_sided

__all__ = ["AGENT_EPILOGUE", "AGENT_FAULTS", "AGENT_SCENES", "REFUSED"]

_LOST = "UNEXPLAINED"
_FIRST, _OLD = ("send", "deliver"), ("deliver_old",)
_DELIVER = ("deliver", "deliver_old")
_EVERY = (*_FIRST, *_OLD)
REFUSED = "span refused by the Collector, counted"


def _nothing(_draft: object) -> None:
    """Let both sides tell it as it was."""


def _dup(side: str, how: str) -> Expected:
    return Expected(status=f"DUPLICATED_{side}", also={"duplicates": how})


def _half(which: str) -> Expected:
    return Expected(status="MISMATCHED", reason="HALF_RECORD", also={"reason_detail": which})


def _by_design(side: str, rule: str) -> Expected:
    return one_sided(side, "BY_DESIGN", reason_detail=rule)


AGENT_FAULTS: tuple[Fault, ...] = (
    Fault("nothing happens", _EVERY, _nothing, NORMALISED),
    Fault("the listener fails", _DELIVER, _nothing, NORMALISED, call={"code": ContextCode.FAILED}),
    Fault("the listener throws", _DELIVER, _nothing, NORMALISED, call={"code": ContextCode.EXCEPTION}),
    Fault("the listener returns null", _DELIVER, _nothing, NORMALISED, call={"code": ContextCode.RETURNNULL}),
    Fault("the listener takes too long", _DELIVER, _nothing, NORMALISED, call={"code": ContextCode.TIME_OUT}),
    Fault("native record lost, nobody counted", _EVERY, do.record_lost, one_sided("otlp", _LOST)),
    Fault(REFUSED, _EVERY, do.span_lost, one_sided("native", "DROP_ATTRIBUTED")),
    Fault("native record landed twice", _EVERY, do.record_copied, _dup("NATIVE", "exact")),
    Fault("span written twice", _EVERY, do.copied(own_id=False), _dup("OTLP", "exact")),
    Fault("native copies contradict", ("send",), do.native_says(body_length=7), _dup("NATIVE", "conflicting")),
    Fault("SubBefore lost", _DELIVER, do.half_lost(TraceType.SUB_BEFORE), _half("after")),
    Fault("SubAfter lost", _DELIVER, do.half_lost(TraceType.SUB_AFTER), _half("before")),
    Fault(
        "the process died in the handler, long ago",
        _DELIVER,
        do.both(do.half_lost(TraceType.SUB_AFTER), do.span_lost),
        one_sided("native", "ABANDONED"),
    ),
    Fault(
        "native record damaged",
        _EVERY,
        do.damaged_record,
        one_sided("otlp", "COUNTERPART_MALFORMED"),
        malformed=("native",),
    ),
    Fault(
        "line of the span cut off",
        _EVERY,
        do.torn_span,
        one_sided("native", "COUNTERPART_MALFORMED"),
        malformed=("otlp",),
    ),
    Fault(
        "outcome differs",
        ("send",),
        do.span_says(messaging__rocketmq__send_result="SLAVE_NOT_AVAILABLE"),
        Expected(status="MISMATCHED"),
    ),
    Fault("the span's clock is 3 s ahead", _EVERY, do.restamped(start_ms=3000, end_ms=3000),
          Expected(status="MISMATCHED")),
    Fault("a cold hook: 300 ms", _EVERY, do.restamped(start_ms=300, end_ms=300), NORMALISED),
    Fault("native arrives 90 s late", _EVERY, do.arrives_late(90_000),
          replace(NORMALISED, also={"timing": "late_native"})),
    Fault("a transaction ends", ("end",), _nothing,
          _by_design("native", "java_agent_makes_no_span_for_transaction_end")),
    Fault("a message is recalled", ("recall",), _nothing,
          _by_design("native", "java_agent_makes_no_span_for_recall")),
)  # fmt: skip


def _spanless_id(stage: Stage, fault: str, rule: str, **attributes: str) -> None:
    """A send that got no answer: a span without an id, no native record; its message id was made all the same."""
    bean = stage.bean(offset_msg_id=None)
    call = stage.send(bean)
    draft = Draft.clean(call)
    do.both(do.record_lost, do.span_says(**attributes))(draft)
    stage.record(draft)
    stage.truth.expect(Event("publish", send_ids(bean.msg_id or "")[1]), fault, _by_design("otlp", rule))


def _scene_one_way(stage: Stage) -> None:
    _spanless_id(stage, "a one-way send", "rocketmq_records_no_one_way_send")


def _scene_send_fails(stage: Stage) -> None:
    _spanless_id(stage, "a send is refused", "rocketmq_records_no_failed_send", error__type="MQBrokerException")


def _scene_batch_sent(stage: Stage) -> None:
    """One record with joined ids, a span per message and one for the call; clients since 5.3.1 trace no delivery."""
    beans = [stage.bean() for _ in range(3)]
    call = sending(stage.producer, stage.now_ms + 1000, *beans)
    stage.burn()
    stage.play(call, _nothing, NORMALISED, fault="a batch is sent")
    stage.truth.scopes["BATCH_PARENT"] += 1
    rule = "rocketmq_records_no_delivery_of_batch_sent_messages"
    for bean in beans:
        stage.play(stage.deliver(bean), do.record_lost, _by_design("otlp", rule), fault="a delivery of a batch sent")


def _scene_batch_consumed(stage: Stage) -> None:
    for to, fault in ((0, "a batch consumed, new names"), (1, "a batch consumed, old names")):
        beans = [stage.bean() for _ in range(4)]
        for bean in beans:
            stage.play(sending(stage.producer, stage.now_ms + 1000, bean))
            stage.burn()
        stage.play(stage.deliver(*beans, to=to, cost_ms=43), _nothing, NORMALISED, fault=fault)
        stage.truth.scopes["POLL"] += to


def _scene_not_sampled(stage: Stage) -> None:
    """Two of four messages are not sampled: only the links of a batch that another decision sampled say so."""
    sampler, process = Application("campaign-service", "PG_campaign", "10.1.2.2"), Process("10.1.2.2", 22)
    beans = []
    for number in range(4):
        at_ms = stage.now_ms + 1000 + 100 * number
        bean = stage.bean(at_ms=at_ms, process=process)
        process.new_id(at_ms)
        beans.append(bean)
        change, expected = (do.span_lost, one_sided("native", "NOT_SAMPLED")) if number % 2 else (_nothing, NORMALISED)
        stage.play(sending(sampler, at_ms, bean), change, expected, fault=_SAMPLED)
        other = stage.deliver(bean, to=1, after_ms=1500 + 100 * number)
        stage.play(other, change, expected, fault=_SAMPLED)
    ids = frozenset(bean.msg_id or "" for bean in beans[1::2])

    def sampled_alone(draft: Draft) -> None:
        draft.spans[:] = [replace(span, unsampled=ids) for span in draft.spans]

    stage.play(stage.deliver(*beans, after_ms=3000), sampled_alone, NORMALISED, fault=_SAMPLED)


_SAMPLED = "half of the traffic sampled"


def _scene_untraced_producer(stage: Stage) -> None:
    """A producer without native trace: it makes no trace context, so its next message has the very next id."""
    untraced = Application("gateway", "PG_gateway", "10.1.4.4")
    process = Process("10.1.4.4", 44)
    rule = _by_design("otlp", "producer_made_no_trace_context")
    for number in range(6):
        at_ms = stage.now_ms + 1000 + 200 * number
        call = sending(untraced, at_ms, stage.bean(at_ms=at_ms, process=process))
        fault, expected = "a producer without native trace", rule
        if number == 5:  # whose successor nobody knows
            fault, expected = "the last send of a producer without native trace", one_sided("otlp", "SHUTDOWN_WINDOW")
        stage.play(call, do.record_lost, expected, fault=fault)


def _scene_trace_topic_alike(stage: Stage) -> None:
    bean = stage.bean(topic="RMQ_SYS_TRACE_TOPIC_of_ours")
    rule = "rocketmq_skips_topics_named_like_the_trace_topic"
    stage.play(stage.send(bean), do.record_lost, _by_design("otlp", rule), fault="a topic named like the trace topic")


def _scene_trace_traffic(stage: Stage) -> None:
    """The trace producer is traced, too."""
    for number in range(3):
        bean = stage.bean(topic="RMQ_SYS_TRACE_TOPIC")
        call = sending(stage.producer, stage.now_ms + 100 * number, bean)
        draft = Draft.clean(call)
        do.record_lost(draft)
        stage.record(draft)
        stage.truth.scopes["TRACE_TRAFFIC"] += 1


def _scene_spanless_groups(stage: Stage) -> None:
    """The agent does not know the lite pull consumer, whose hooks run one after the other; another is not under it."""
    puller = Application("report-service", "CG_litepull", "10.1.3.3")
    other = Application("mail-service", "CG_mail", "10.1.3.4")
    lite_pull = _by_design("native", "java_agent_makes_no_span_for_lite_pull")
    for number in range(3):
        bean = stage.bean()
        stage.play(stage.send(bean))
        for consumer, cost_ms, expected, fault in (
            (puller, 0, lite_pull, "a lite pull consumer"),
            (other, 30, one_sided("native", "WRITER_SILENT"), "a consumer without the agent"),
        ):
            at_ms = stage.now_ms + 3000 + number
            attempt = stage.attempt(consumer)
            call = consuming(consumer, at_ms, received(bean), attempt=attempt, cost_ms=cost_ms)
            stage.play(call, do.span_lost, expected, fault=fault)


def _scene_killed(stage: Stage) -> None:
    """SIGKILL: the agent's last spans never left, the client's records had; nothing of the group ever after."""
    killed = Application("loyalty-service", "CG_loyalty", "10.1.8.8")
    for number in range(20):
        bean = stage.bean(at_ms=stage.now_ms + 1000 * number)
        stage.play(stage.send(bean, after_ms=1000 * number))
        last = number >= 17
        stage.play(
            consuming(killed, stage.now_ms + 1000 * number + 300, received(bean), attempt=stage.attempt(killed)),
            do.span_lost if last else _nothing,
            one_sided("native", "SHUTDOWN_WINDOW") if last else NORMALISED,
            fault="span tail of a killed consumer" if last else "none",
        )


def _scene_redelivered(stage: Stage) -> None:
    """Three attempts: the spans know none of them and pair in the order of time."""
    bean = stage.bean()
    stage.play(stage.send(bean))
    calls = [stage.deliver(bean, after_ms=2000 + 5000 * retry, retry_times=retry) for retry in range(3)]
    _several(stage, calls, "redelivered twice", NORMALISED, NORMALISED, NORMALISED)


def _scene_second_instrumentation(stage: Stage) -> None:
    """Two spans, one record: the agent's spans know no offset id, so it might be a second send that left no record."""
    bean = stage.bean()
    call = stage.send(bean)
    draft = Draft.clean(call)
    do.copied(own_id=True)(draft)
    stage.record(draft)
    expected = (NORMALISED, one_sided("otlp", _LOST))
    stage.truth.expect(call.events[0], "span of a second instrumentation", *expected)


def _several(stage: Stage, calls: list[Call], fault: str, *expected: Expected) -> None:
    for call in calls:
        stage.record(Draft.clean(call))
    stage.truth.expect(calls[0].events[0], fault, *expected)


def _scene_handler_hangs(stage: Stage) -> None:
    bean = stage.bean()
    stage.play(stage.send(bean))
    change = do.both(do.half_lost(TraceType.SUB_AFTER), do.span_lost)
    stage.play(stage.deliver(bean), change, one_sided("native", "IN_FLIGHT"), fault="a handler still at work")


def _scene_too_young(stage: Stage) -> None:
    for change, fault in ((do.record_lost, "native record not there yet"), (do.span_lost, "span not there yet")):
        bean = stage.bean()
        stage.play(stage.send(bean), change, Expected(status="PENDING"), fault=fault)
        stage.play(stage.deliver(bean), change, Expected(status="PENDING"), fault=fault)
    stage.now_ms -= 230_000  # the end comes right after


AGENT_SCENES: tuple[Callable[[Stage], None], ...] = (
    _scene_one_way,
    _scene_send_fails,
    _scene_batch_sent,
    _scene_batch_consumed,
    _scene_not_sampled,
    _scene_untraced_producer,
    _scene_trace_topic_alike,
    _scene_trace_traffic,
    _scene_spanless_groups,
    _scene_killed,
    _scene_redelivered,
    _scene_second_instrumentation,
)
AGENT_EPILOGUE: tuple[Callable[[Stage], None], ...] = (_scene_handler_hangs, _scene_too_young)
