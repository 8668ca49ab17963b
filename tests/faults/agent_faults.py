"""Faults of a call of a RocketMQ client 5.3.3 with native trace, run under the Java agent."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from otel_mqtrace.model import ContextCode
from tests.faults import changes as do
from tests.faults.agent_spans import send_ids
from tests.faults.calls import Application, Draft, sending
from tests.faults.own_faults import Fault, faults_of_both
from tests.faults.own_scenes import attempts, kill_consumer
from tests.faults.stage import CONSUMERS, Process, Stage
from tests.faults.truth import LOST, NORMALISED, Event, Expected, by_design, one_sided

_DELIVER = ("deliver", "deliver_old")
_EVERY = ("send", *_DELIVER)
REFUSED = "span refused by the Collector, counted"

AGENT_FAULTS: tuple[Fault, ...] = (
    *faults_of_both(NORMALISED, every=_EVERY, both=_EVERY, deliver=_DELIVER),
    Fault("the listener fails", _DELIVER, do.nothing, NORMALISED, call={"code": ContextCode.FAILED}),
    Fault("the listener throws", _DELIVER, do.nothing, NORMALISED, call={"code": ContextCode.EXCEPTION}),
    Fault("the listener returns null", _DELIVER, do.nothing, NORMALISED, call={"code": ContextCode.RETURNNULL}),
    Fault("the listener times out", _DELIVER, do.nothing, NORMALISED, call={"code": ContextCode.TIME_OUT}),
    Fault(REFUSED, _EVERY, do.span_lost, one_sided("native", "DROP_ATTRIBUTED")),
    Fault(
        "outcome differs",
        ("send",),
        do.set_span_attributes(messaging__rocketmq__send_result="SLAVE_NOT_AVAILABLE"),
        Expected(status="MISMATCHED"),
    ),
    Fault("a cold hook: 300 ms", _EVERY, do.restamped(start_ms=300, end_ms=300), NORMALISED),
    Fault(
        "a transaction ends", ("end",), do.nothing, by_design("native", "java_agent_makes_no_span_for_transaction_end")
    ),
    Fault("a message is recalled", ("recall",), do.nothing, by_design("native", "java_agent_makes_no_span_for_recall")),
)


def _spanless_id(stage: Stage, fault: str, rule: str, **attributes: str) -> None:
    """A send that got no answer: a span without an id, no native record; its message id was made all the same."""
    bean = stage.bean(offset_msg_id=None)
    stage.record(stage.send(bean), do.both(do.record_lost, do.set_span_attributes(**attributes)))
    stage.truth.expect(Event("publish", send_ids(bean.msg_id or "")[1]), fault, by_design("otlp", rule))


def _scene_batch_sent(stage: Stage) -> None:
    """One record with joined ids, a span per message and one for the call; clients since 5.3.1 trace no delivery."""
    beans = [stage.bean() for _ in range(3)]
    call = sending(stage.producer, stage.now_ms + 1000, *beans)
    stage.burn()
    stage.play(call, do.nothing, NORMALISED, fault="a batch is sent")
    stage.truth.scopes["BATCH_PARENT"] += 1
    rule = "rocketmq_records_no_delivery_of_batch_sent_messages"
    for bean in beans:
        stage.play(stage.deliver(bean), do.record_lost, by_design("otlp", rule), fault="a delivery of a batch sent")


def _scene_batch_consumed(stage: Stage) -> None:
    for to, fault in zip(CONSUMERS, ("a batch consumed, new names", "a batch consumed, old names"), strict=True):
        beans = [stage.bean() for _ in range(4)]
        for bean in beans:
            stage.play(stage.send(bean))
        stage.play(stage.deliver(*beans, to=to, cost_ms=43), do.nothing, NORMALISED, fault=fault)
    stage.truth.scopes["POLL"] += 1  # by the one that uses old names


def _scene_not_sampled(stage: Stage) -> None:
    """Two of four messages are not sampled: only the links of a batch that another decision sampled say so."""
    sampler, process = Application("campaign-service", "PG_campaign", "10.1.2.2"), Process("10.1.2.2", 22)
    beans = []
    for number in range(4):
        at_ms = stage.now_ms + 1000 + 100 * number
        bean = stage.bean(at_ms=at_ms, process=process)
        process.new_id(at_ms)
        beans.append(bean)
        change, expected = (
            (do.span_lost, one_sided("native", "NOT_SAMPLED")) if number % 2 else (do.nothing, NORMALISED)
        )
        stage.play(sending(sampler, at_ms, bean), change, expected, fault=_SAMPLED)
        other = stage.deliver(bean, to=CONSUMERS[1], after_ms=1500 + 100 * number)
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
    rule = by_design("otlp", "producer_made_no_trace_context")
    for number in range(6):
        at_ms = stage.now_ms + 1000 + 200 * number
        call = sending(untraced, at_ms, stage.bean(at_ms=at_ms, process=process))
        fault, expected = "a producer without native trace", rule
        if number == 5:  # no later send follows it
            fault, expected = "the last send of a producer without native trace", one_sided("otlp", "SHUTDOWN_WINDOW")
        stage.play(call, do.record_lost, expected, fault=fault)


def _scene_trace_topic_alike(stage: Stage) -> None:
    bean = stage.bean(topic="RMQ_SYS_TRACE_TOPIC_of_ours")
    rule = "rocketmq_skips_topics_named_like_the_trace_topic"
    stage.play(stage.send(bean), do.record_lost, by_design("otlp", rule), fault="a topic named like the trace topic")


def _scene_trace_traffic(stage: Stage) -> None:
    for number in range(3):
        bean = stage.bean(topic="RMQ_SYS_TRACE_TOPIC")
        stage.record(sending(stage.producer, stage.now_ms + 100 * number, bean), do.record_lost)
        stage.truth.scopes["TRACE_TRAFFIC"] += 1


def _scene_spanless_groups(stage: Stage) -> None:
    """The agent does not know the lite pull consumer, whose hooks run one after the other; another is not under it."""
    puller = Application("report-service", "CG_litepull", "10.1.3.3")
    other = Application("mail-service", "CG_mail", "10.1.3.4")
    lite_pull = by_design("native", "java_agent_makes_no_span_for_lite_pull")
    for number in range(3):
        bean = stage.sent()
        for consumer, cost_ms, expected, fault in (
            (puller, 0, lite_pull, "a lite pull consumer"),
            (other, 30, one_sided("native", "WRITER_SILENT"), "a consumer without the agent"),
        ):
            call = stage.deliver(bean, to=consumer, after_ms=3000 + number, cost_ms=cost_ms)
            stage.play(call, do.span_lost, expected, fault=fault)


def _scene_second_instrumentation(stage: Stage) -> None:
    """Two spans, one record: the agent's spans know no offset id, so it might be a second send that left no record."""
    expected = (NORMALISED, one_sided("otlp", LOST))
    stage.play(stage.send(stage.bean()), do.copied(own_id=True), *expected, fault="span of a second instrumentation")


AGENT_SCENES: tuple[Callable[[Stage], None], ...] = (
    partial(_spanless_id, fault="a one-way send", rule="rocketmq_records_no_one_way_send"),
    partial(
        _spanless_id, fault="a send is refused", rule="rocketmq_records_no_failed_send", error__type="MQBrokerException"
    ),
    _scene_batch_sent,
    _scene_batch_consumed,
    _scene_not_sampled,
    _scene_untraced_producer,
    _scene_trace_topic_alike,
    _scene_trace_traffic,
    _scene_spanless_groups,
    partial(kill_consumer, deliveries=20, every_ms=1000, after_ms=300, lost=3),
    attempts,
    _scene_second_instrumentation,
)
