"""Two days of one application: what the first leaves open, and how it ends on the second."""

from dataclasses import replace

from otel_mqtrace.model import TraceType
from tests.faults import changes as do
from tests.faults.calls import Draft
from tests.faults.corpora import Corpus, own_stage
from tests.faults.recording import Recording
from tests.faults.stage import Stage
from tests.faults.truth import EXACT, Expected, Truth, one_sided

_DAY_MS = 86_400_000
_LOST, _HANGING = "a loss nobody explains", "a handler that takes long"
_YOUNG = "a span of the last moment"


def _open(expected: Expected, lifecycle: str) -> Expected:
    return replace(expected, also={**expected.also, "lifecycle": lifecycle})


def two_days() -> tuple[Corpus, Corpus]:
    """Return the corpora of both days, to be reconciled one after the other with one history."""
    stage = own_stage()
    stage.chat()
    lost = stage.send(stage.bean())
    stage.play(lost, do.record_lost, _open(one_sided("otlp", "UNEXPLAINED"), "new"), fault=_LOST)
    stage.now_ms += 600_000
    bean = stage.bean()
    stage.play(stage.send(bean))
    hanging, young = stage.deliver(bean), stage.deliver(bean, to=1)
    half = do.both(do.half_lost(TraceType.SUB_AFTER), do.span_lost)
    stage.play(hanging, half, _open(one_sided("native", "IN_FLIGHT"), "new"), fault=_HANGING)
    stage.play(young, do.span_lost, _open(Expected(status="PENDING"), "new"), fault=_YOUNG)
    stage.now_ms += 10_000
    stage.chat()
    first = _corpus(stage, "the first day")
    _next_day(stage)
    stage.truth.expect(lost.events[0], _LOST, _open(one_sided("otlp", "UNEXPLAINED"), "still_open"))
    _rest(stage, Draft.clean(hanging), half_there=TraceType.SUB_BEFORE)
    stage.truth.expect(hanging.events[0], _HANGING, _open(EXACT, "resolved"))
    _rest(stage, Draft.clean(young), half_there=None)
    stage.truth.expect(young.events[0], _YOUNG, _open(EXACT, "resolved"))
    stage.chat()
    stage.play(stage.send(stage.bean()), do.record_lost, _open(one_sided("otlp", "UNEXPLAINED"), "new"), fault=_LOST)
    stage.now_ms += 600_000
    stage.chat()
    return first, _corpus(stage, "the second day")


def _next_day(stage: Stage) -> None:
    stage.now_ms += _DAY_MS
    stage.recording, stage.truth = Recording(), Truth()


def _rest(stage: Stage, draft: Draft, *, half_there: TraceType | None) -> None:
    """Record what had not arrived yet: all but the half that had, or the span alone where both halves had."""
    kept = [record for record in draft.records if half_there and record.context.trace_type is not half_there]
    stage.record(Draft(draft.call, kept, draft.spans))


def _corpus(stage: Stage, name: str) -> Corpus:
    options = {"profile": "mqtrace", "native_writer": "mqtrace"}
    return Corpus(name=name, recording=stage.recording, truth=stage.truth, options=options)
