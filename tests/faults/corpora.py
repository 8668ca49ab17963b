"""The corpora: which tables are played on which stage, and how each is reconciled."""

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from tests.faults.agent_faults import AGENT_FAULTS, AGENT_SCENES, REFUSED
from tests.faults.agent_spans import agent_line, agent_spans
from tests.faults.calls import SpanDraft
from tests.faults.own_faults import FAULTS, LENGTH_LIMIT, Fault, play_fault
from tests.faults.own_scenes import EPILOGUE, PROLOGUE, SCENES
from tests.faults.own_spans import line_of, sdk_span
from tests.faults.recording import Recording
from tests.faults.stage import BEGIN_MS, CONSUMERS, SLOT_MS, Process, Stage
from tests.faults.truth import NORMALISED, Truth

_HOUR_MS = 3_600_000
Scene = Callable[[Stage], object]


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """What was recorded, what is true of it, and the options and policy it is reconciled with."""

    recording: Recording
    truth: Truth
    options: dict[str, Any]
    policy: str = ""
    join: tuple[str, ...] = ()
    """By what a plain join would have to match the two sides."""
    tolerance_ms: int = 5
    """By how much times of the two sides may differ for a plain comparison."""


def own_corpus(seed: int = 0) -> Corpus:
    """Return the corpus in which both formats come from one instrumentation: ours; the sender lives in New York."""
    process = Process("10.1.0.1", 4711, utc_offset_ms=_new_york)
    stage = Stage(recording=Recording(), write_spans=_own_lines, process=process)
    for scene in PROLOGUE:
        scene(stage)
    _play(stage, FAULTS, SCENES, seed)
    return Corpus(
        recording=stage.recording,
        truth=stage.truth,
        options={"profile": "mqtrace", "native_writer": "mqtrace", "begin_ms": BEGIN_MS - 5 * _HOUR_MS},
        policy=f"value_length_limit = {LENGTH_LIMIT}\n",
        join=("kind", "msg_id", "attempt_id", "transaction_state"),
    )


def agent_corpus(seed: int = 0) -> Corpus:
    """Return the corpus of RocketMQ 5.3.3 clients under the Java agent; one consumer's agent uses the old names."""
    stage = Stage(recording=Recording(dialect="5.3.2"), write_spans=_agent_lines, usual=NORMALISED, burns_ids=True)
    _play(stage, AGENT_FAULTS, AGENT_SCENES, seed)
    refused = sum(fault == REFUSED for fault in stage.truth.faults.values())
    stage.recording.prometheus.append(
        "# TYPE otelcol_receiver_refused_spans counter\n"
        f'otelcol_receiver_refused_spans{{receiver="otlp",transport="http"}} {refused}\n'
    )
    return Corpus(
        recording=stage.recording,
        truth=stage.truth,
        options={"profile": "java-agent", "native_writer": "rocketmq-5.3.3"},
        join=("kind", "msg_id", "consumer"),
        tolerance_ms=500,
    )


def _play(stage: Stage, faults: Sequence[Fault], scenes: Sequence[Scene], seed: int) -> None:
    """Play faults and scenes in an order drawn from ``seed``, the epilogue last: each in a slot of its own."""
    plays: list[Scene] = [partial(play_fault, fault=fault, on=on) for fault in faults for on in fault.on]
    plays += scenes
    random.Random(seed).shuffle(plays)
    for play in [*plays, *EPILOGUE]:
        stage.chat()
        play(stage)
        stage.now_ms += SLOT_MS
    stage.chat()


def _agent_lines(spans: Iterable[SpanDraft]) -> list[str]:
    pairs = ((span, agent_spans(span, old=span.call.application is CONSUMERS[1])) for span in spans)
    return [agent_line(span.call.application, made, torn=span.torn) for span, made in pairs if made]


def _own_lines(spans: Iterable[SpanDraft]) -> list[str]:
    return [line_of(sdk_span(span), torn=span.torn) for span in spans]


def _new_york(at_ms: int) -> int:
    """Daylight saving time until 2026-11-01T06:00Z, standard time after."""
    return -4 * _HOUR_MS if at_ms < BEGIN_MS + 6 * _HOUR_MS + _HOUR_MS // 2 else -5 * _HOUR_MS


CORPORA: dict[str, Callable[[int], Corpus]] = {"mqtrace": own_corpus, "java-agent": agent_corpus}
"""Name of a corpus, which is the profile it is reconciled with → how it is made from a seed."""
