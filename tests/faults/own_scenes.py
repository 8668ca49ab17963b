"""Scenes of more than one call: bursts, ends of processes, silence, gaps, repetitions."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from otel_mqtrace.model import MessageType, TransactionState
from otel_mqtrace.spans.loss_ledger import BUCKET_MS, Ledger
from tests.faults import changes as do
from tests.faults.calls import Application, Draft, ending, sending
from tests.faults.own_spans import sdk_span, send_context
from tests.faults.stage import BEGIN_MS, Process, Stage
from tests.faults.truth import EXACT, LOST, Event, Expected, one_sided
from tests.support.otlp_json import CLIENT, PRODUCER, SERVER, line, resource, span

_HOUR_MS = 3_600_000
_COUNTED = "DROP_ATTRIBUTED"


def _scene_before_retention(stage: Stage) -> None:
    """The trace topic keeps what came after the beginning; spans are there of three hours before."""
    fault, expected = "before the trace topic begins", one_sided("otlp", "LATE_BEYOND_RETENTION")
    for number in range(5):
        at_ms = BEGIN_MS - 3 * _HOUR_MS + 60_000 * number
        bean = stage.bean(at_ms=at_ms)
        for call in (sending(stage.producer, at_ms, bean), stage.deliver(bean, after_ms=at_ms + 500 - stage.now_ms)):
            stage.play(call, do.record_lost, expected, fault=fault)


def _scene_before_the_window(stage: Stage) -> None:
    at_ms = BEGIN_MS - 6 * _HOUR_MS
    expected = Expected(status="OUT_OF_SCOPE", also={"reason_detail": "WINDOW"})
    call = sending(stage.producer, at_ms, stage.bean(at_ms=at_ms))
    stage.play(call, do.record_lost, expected, fault="before --begin")


def attempts(
    stage: Stage,
    *,
    fault: str = "redelivered twice",
    expected: Sequence[Expected] | None = None,
    apart_ms: int = 5000,
    is_retry: bool = True,
    changes: Mapping[int, do.Change] | None = None,
) -> None:
    """Deliver a message as often as verdicts are ``expected`` (three usual ones): each attempt is a key of its own."""
    bean, wanted = stage.sent(), expected or [stage.usual] * 3
    calls = [
        stage.deliver(bean, after_ms=2000 + apart_ms * number, retry_times=number * is_retry)
        for number in range(len(wanted))
    ]
    stage.several(calls, fault, *wanted, changes=changes)


def _scene_loss_and_copy_cancel(stage: Stage) -> None:
    """One span lost, one written twice, in the same second: the counts of both sides are equal."""
    for change, expected in (
        (do.span_lost, one_sided("native", LOST)),
        (do.copied(own_id=False), Expected(status="DUPLICATED_OTLP", also={"duplicates": "exact"})),
    ):
        bean = stage.sent()
        stage.play(stage.deliver(bean), change, expected, fault="a loss and a copy cancel in the counts")


def _batch(stage: Stage, change: do.Change, expected: Expected, fault: str) -> None:
    stage.play(stage.deliver(*(stage.sent() for _ in range(4)), cost_ms=43), change, expected, fault=fault)


def _scene_transaction_checked(stage: Stage) -> None:
    """The broker asks twice before it is told: three ends of one transaction."""
    bean = stage.bean(msg_type=MessageType.TRANS_HALF)
    stage.play(stage.send(bean))
    states = (TransactionState.UNKNOW, TransactionState.UNKNOW, TransactionState.ROLLBACK_MESSAGE)
    calls = [
        ending(stage.producer, stage.now_ms + 2000 * (1 + number), bean, transaction_state=state)
        for number, state in enumerate(states)
    ]
    stage.several(calls, "a transaction checked twice", EXACT, EXACT, EXACT)


def _scene_other_spans(stage: Stage) -> None:
    """What is in the same file and about no message of the application."""
    of_kafka = {"messaging.system": "kafka"}
    to_trace_topic = {"messaging.operation.type": "send", "messaging.destination.name": "RMQ_SYS_TRACE_TOPIC"}
    polled = {"messaging.operation.type": "receive", "messaging.operation.name": "poll"}
    others = {
        "NOT_MESSAGING": ("GET /orders", SERVER, {"http.request.method": "GET"}),
        "POLL": ("poll orders", CLIENT, of_kafka | polled),
        "TRACE_TRAFFIC": ("send RMQ_SYS_TRACE_TOPIC", PRODUCER, of_kafka | to_trace_topic),
    }
    for number, (scope, (name, kind, attributes)) in enumerate(others.items(), 1):
        made = span(number, kind, stage.now_ms + 3000, 5, attributes, name=name)
        stage.recording.lines.append(line(resource(stage.producer.service, made, scope="app")))
        stage.truth.scopes[scope] += 1


def _queue_full(stage: Stage, native: tuple[int, int], otlp: tuple[int, int]) -> None:
    _burst(stage, "native", *native)
    _burst(stage, "otlp", *otlp, after_ms=90_000)


def _scene_ledger_of_another(stage: Stage) -> None:
    """Another service counted far more drops at that time; they explain only its own losses."""
    other = Application("catalogue-service", "PG_catalogue", "10.9.9.9")
    losses = Ledger(None).add_lane(side="native", component="queue")
    for number in range(40):
        at_ms = stage.now_ms + 10_000 + 20 * number
        bean = stage.bean(topic="catalogue", process=Process("10.9.9.9", 7))
        call = sending(other, at_ms, bean)
        losses.note("queue_full", sdk_span(Draft.clean(call).spans[0]))
        if number == 0:  # the others are lost on both sides
            stage.play(call, do.record_lost, one_sided("otlp", _COUNTED), fault="lost, counted by the other service")
    stage.recording.ledgers.append({"ledger_version": 1, "rows": losses.rows()})
    for number in range(3):
        call = stage.send(stage.bean(), after_ms=10_000 + 20 * number)
        stage.play(call, do.record_lost, one_sided("otlp", LOST), fault="lost, only the other service counted drops")
    usual = sending(other, stage.now_ms + 200_000, stage.bean(topic="catalogue", process=Process("10.9.9.9", 8)))
    stage.play(usual)


def _burst(stage: Stage, side: str, lost: int, counted: int, *, after_ms: int = 0) -> None:
    """Lose ``lost`` sends within one bucket of ten seconds; the lane's own ledger counts ``counted`` of them."""
    losses = Ledger(None).add_lane(side=side, component="queue")
    here = stage.now_ms + 10_000 + after_ms
    at_ms = here - here % BUCKET_MS + 1000
    kept = "otlp" if side == "native" else "native"
    words = [one_sided(kept, _COUNTED)] * counted + [one_sided(kept, LOST)] * (lost - counted)
    fault = f"{side} queue full, {'all' if lost == counted else 'some'} counted"
    events = []
    for number in range(lost):
        call = sending(stage.producer, at_ms + 30 * number, stage.bean())
        if number < counted:
            losses.note("queue_full", sdk_span(Draft.clean(call).spans[0]))
        stage.record(call, do.record_lost if side == "native" else do.span_lost)
        events += call.events
    stage.truth.expect_among(events, fault, *words)
    stage.recording.ledgers.append({"ledger_version": 1, "rows": losses.rows()})


def _scene_process_ends(stage: Stage) -> None:
    """A batch job sends and ends without a flush: the last three seconds of its native trace never left."""
    job, process = Application("nightly-job", "PG_nightly", "10.1.7.7"), Process("10.1.7.7", 99)
    lost, fault = (do.record_lost, one_sided("otlp", "SHUTDOWN_WINDOW")), "last native records of a process lost"
    for number in range(30):
        at_ms = stage.now_ms + 1000 * number
        call = sending(job, at_ms, stage.bean(at_ms=at_ms, process=process))
        stage.play(call, *lost, fault=fault) if number >= 27 else stage.play(call)


def kill_consumer(stage: Stage, *, deliveries: int, every_ms: int, after_ms: int, lost: int) -> None:
    """Kill a consumer that receives messages ``after_ms`` behind their sends: its last spans never left, its records had."""
    killed = Application("loyalty-service", "CG_loyalty", "10.1.8.8")
    last, fault = (do.span_lost, one_sided("native", "SHUTDOWN_WINDOW")), "last spans of a killed consumer lost"
    for number in range(deliveries):
        bean = stage.sent(at_ms=stage.now_ms + every_ms * number, after_ms=every_ms * number)
        call = stage.deliver(bean, to=killed, after_ms=every_ms * number + after_ms)
        stage.play(call, *last, fault=fault) if number >= deliveries - lost else stage.play(call)


def _scene_silent_writers(stage: Stage) -> None:
    """A topic that only the native side knows, a group that only spans know."""
    audit = Application("audit-service", "PG_audit", "10.1.5.5")
    archive = Application("archive-service", "CG_archive", "10.1.6.6")
    for number in range(4):
        at_ms = stage.now_ms + 1000 + 100 * number
        bean = stage.bean(topic="audit", process=Process("10.1.5.5", 5 + number))
        silent = "a service without spans"
        stage.play(sending(audit, at_ms, bean), do.span_lost, one_sided("native", "WRITER_SILENT"), fault=silent)
        other = stage.bean()
        stage.play(stage.send(other))
        call = stage.deliver(other, to=archive, after_ms=1050 + 100 * number)
        expected = one_sided("otlp", "WRITER_SILENT")
        stage.play(call, do.record_lost, expected, fault="a group without native trace")


def _scene_id_left_out(stage: Stage) -> None:
    """The span carries no message id: only topic and time identify its message."""
    call = stage.send(stage.bean())
    stage.record(call, do.set_span_attributes(messaging__message__id=None, mqtrace__offset_msg_id=None))
    fault = "span without its message id"
    stage.truth.expect(call.events[0], fault, one_sided("native", "KEY_DEGRADED"))
    span_id = f"{send_context(call.events[0].message).span_id:016x}"
    stage.truth.expect(Event("publish", span_id), fault, one_sided("otlp", "KEY_DEGRADED"))


def _scene_handler_hangs(stage: Stage) -> None:
    bean = stage.sent()
    stage.play(stage.deliver(bean), do.died, one_sided("native", "IN_FLIGHT"), fault="a handler still at work")


def _scene_too_young(stage: Stage) -> None:
    """One-sided within the grace before the end: it may still arrive."""
    for change, fault in ((do.record_lost, "native record not yet landed"), (do.span_lost, "span not yet written")):
        expected = Expected(status="PENDING")
        bean = stage.bean()
        for call in (stage.send(bean), stage.deliver(bean)):
            stage.play(call, change, expected, fault=fault)
    stage.now_ms -= 230_000  # the end comes right after


PROLOGUE: tuple[Callable[[Stage], None], ...] = (_scene_before_the_window, _scene_before_retention)
"""What lies before the two sides overlap."""

SCENES: tuple[Callable[[Stage], None], ...] = (
    attempts,
    partial(attempts, fault="delivered twice, same retry count", expected=(EXACT, EXACT), apart_ms=1, is_retry=False),
    partial(
        attempts,
        fault="span of one attempt of three lost",
        expected=(EXACT, EXACT, one_sided("native", LOST)),
        changes={1: do.span_lost},
    ),
    _scene_loss_and_copy_cancel,
    partial(_batch, change=do.nothing, expected=EXACT, fault="a batch consumed"),
    partial(_batch, change=do.span_lost, expected=one_sided("native", LOST), fault="span of a batch lost"),
    partial(_batch, change=do.record_lost, expected=one_sided("otlp", LOST), fault="native records of a batch lost"),
    _scene_transaction_checked,
    _scene_other_spans,
    partial(_queue_full, native=(6, 6), otlp=(5, 5)),
    partial(_queue_full, native=(6, 4), otlp=(6, 2)),
    _scene_ledger_of_another,
    _scene_process_ends,
    partial(kill_consumer, deliveries=30, every_ms=2000, after_ms=900, lost=1),
    _scene_silent_writers,
    partial(  # one is lost for certain, which one is unknown
        attempts,
        fault="two attempts, one span without a request id",
        expected=(replace(EXACT, also={"key_level": 2}), one_sided("native", LOST)),
        apart_ms=0,
        is_retry=False,
        changes={0: do.set_span_attributes(mqtrace__request_id=None), 1: do.span_lost},
    ),
    _scene_id_left_out,
)
EPILOGUE: tuple[Callable[[Stage], None], ...] = (_scene_handler_hangs, _scene_too_young)
"""What must happen last: it depends on how far the data reaches."""
