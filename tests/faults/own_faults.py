"""Faults of one call of an application that we trace, in both formats, and the verdict that each must get.

Kinds of calls: send, deliver, end (of a transaction), recall. Every row happens to a message of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from otel_mqtrace.model import ContextCode, MessageType, TraceType, TransactionState
from tests.faults import changes as do
from tests.faults.calls import Call, ending, recalling
from tests.faults.stage import Stage
from tests.faults.truth import EXACT, Expected, one_sided

__all__ = ["FAULTS", "LENGTH_LIMIT", "MASK", "Fault", "play_fault"]

LENGTH_LIMIT = 24
"""The attribute length limit of the spans' SDK, told to the policy."""
MASK = "***"
_LONG = "a-tag-that-is-longer-than-the-limit-of-attributes"
_EVERY = ("send", "deliver", "end", "recall")
_HALVES = ("deliver",)


@dataclass(frozen=True)
class Fault:
    """One row: what happens (``change``), to which kinds of calls, and what must be said.

    ``bean`` and ``call`` are what the message and the call are like before anything happens to them.
    """

    name: str
    on: tuple[str, ...]
    change: do.Change
    expected: Expected
    bean: dict[str, Any] | None = None
    call: dict[str, Any] | None = None
    malformed: tuple[str, ...] = ()


def _dup(side: str, how: str) -> Expected:
    return Expected(status=f"DUPLICATED_{side}", also={"duplicates": how})


def _field(status: str, **fields: str) -> Expected:
    return Expected(status=status, fields=fields)


def _half(which: str) -> Expected:
    return Expected(status="MISMATCHED", reason="HALF_RECORD", also={"reason_detail": which})


def _nothing(_draft: object) -> None:
    """Let both sides tell it as it was."""


def _timed(timing: str) -> Expected:
    return replace(EXACT, also={"timing": timing})


_LOST = "UNEXPLAINED"
_FAILED = {"code": ContextCode.FAILED}

FAULTS: tuple[Fault, ...] = (
    Fault("nothing happens", _EVERY, _nothing, EXACT),
    Fault("nothing happens, the attempt failed", _HALVES, _nothing, EXACT, call=_FAILED),
    Fault("a send fails", ("send",), _nothing, EXACT, {"offset_msg_id": None}, {"success": False}),
    Fault("a send is one-way", ("send",), _nothing, EXACT, {"offset_msg_id": None}, {"cost_ms": 0}),
    Fault("native record lost, nobody counted", _EVERY, do.record_lost, one_sided("otlp", _LOST)),
    Fault("span lost, nobody counted", _EVERY, do.span_lost, one_sided("native", _LOST)),
    Fault("native record landed twice", _EVERY, do.record_copied, _dup("NATIVE", "exact")),
    Fault("span written twice", _EVERY, do.copied(own_id=False), _dup("OTLP", "exact")),
    Fault("both doubled", _EVERY, do.both(do.record_copied, do.copied(own_id=False)), _dup("BOTH", "exact")),
    Fault("native record landed twice in other bytes", ("send", "deliver"), do.respelt, _dup("NATIVE", "equivalent")),
    Fault("span of a second instrumentation", _EVERY, do.copied(own_id=True), _dup("OTLP", "equivalent")),
    Fault("native copies contradict", ("send",), do.native_says(body_length=7), _dup("NATIVE", "conflicting")),
    Fault("native copies contradict", ("deliver",), do.native_says(success=False), _dup("NATIVE", "conflicting")),
    Fault(
        "spans contradict",
        ("send", "deliver"),
        do.contradicted(mqtrace__success=False),
        _dup("OTLP", "conflicting"),
    ),
    Fault("SubBefore lost", _HALVES, do.half_lost(TraceType.SUB_BEFORE), _half("after")),
    Fault("SubAfter lost", _HALVES, do.half_lost(TraceType.SUB_AFTER), _half("before")),
    Fault(
        "SubBefore and span lost",
        _HALVES,
        do.both(do.half_lost(TraceType.SUB_BEFORE), do.span_lost),
        one_sided("native", _LOST),
    ),
    Fault(
        "the process died in the handler, long ago",
        _HALVES,
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
    Fault("native arrives 50 s late", _EVERY, do.arrives_late(50_000), _timed("on_time")),
    Fault("native arrives 90 s late", _EVERY, do.arrives_late(90_000), _timed("late_native")),
    Fault("a host's clock is 10 min ahead", ("deliver",), do.clock_off(600_000), _timed("future")),
    Fault("a host's clock is 5 s ahead", ("deliver",), do.clock_off(5_000), _timed("on_time")),
    Fault("a host's clock is 5 s behind", ("deliver",), do.clock_off(-5_000), _timed("on_time")),
    Fault(
        "the span's clock is 3 s ahead",
        ("send", "deliver"),
        do.restamped(start_ms=3000, end_ms=3000),
        Expected(status="MISMATCHED"),
    ),
    Fault(
        "the span ends 3 ms later",
        ("send",),
        do.restamped(end_ms=3),
        _field("MATCHED_NORMALISED", end_ms="WITHIN_TOLERANCE"),
    ),
    Fault(
        "attribute cut at the limit",
        ("send",),
        do.span_says(mqtrace__tags=_LONG[:LENGTH_LIMIT]),
        _field("MATCHED_NORMALISED", tags="TRUNCATED"),
        {"tags": _LONG},
    ),
    Fault(
        "key cut at the limit",
        ("send",),
        do.span_says(mqtrace__keys=(_LONG[:LENGTH_LIMIT],)),
        _field("MATCHED_NORMALISED", keys="TRUNCATED"),
        {"keys": _LONG},
    ),
    Fault(
        "keys masked in the span",
        ("send", "deliver"),
        do.span_says(mqtrace__keys=(MASK,)),
        _field("MATCHED_NORMALISED", keys="REDACTED"),
    ),
    Fault(
        "separators in keys and tags",
        ("send",),
        _nothing,
        _field("MATCHED_NORMALISED", keys="SANITISED", tags="SANITISED"),
        {"keys": "a\x01b c\x02d", "tags": "x\x01y"},
    ),
    Fault(
        "bytes of no UTF-8",
        ("send",),
        do.record_says(tags="caf\ufffd"),
        _field("MATCHED_NORMALISED", tags="SANITISED"),
        {"tags": "café"},
    ),
    Fault("text 'null' for nothing", ("send",), do.span_says(mqtrace__tags="null"), EXACT, {"tags": None}),
    Fault("neither tags nor keys", ("send", "deliver"), _nothing, EXACT, {"tags": None, "keys": None}),
    Fault("a key that is the word null", ("send",), _nothing, EXACT, {"keys": "null order-1"}),
    Fault("id in lower case", ("send", "deliver"), do.span_says(messaging__message__id=str.lower), EXACT),
    Fault(
        "Java's form of a host",
        ("send",),
        do.record_says(store_host="/10.0.0.5:10911"),
        _field("MATCHED_NORMALISED", store_host="EQUAL_NORMALISED"),
    ),
    Fault(
        "topic with a namespace",
        ("send",),
        do.record_says(topic="ns1%orders"),
        _field("MATCHED_NORMALISED", topic="EQUAL_NORMALISED"),
    ),
    Fault("tags differ", ("send",), do.span_says(mqtrace__tags="altered"), _field("MISMATCHED", tags="DIFFERENT")),
    Fault(
        "body length differs",
        ("send",),
        do.record_says(body_length=4242),
        _field("MISMATCHED", body_length="DIFFERENT"),
    ),
    Fault(
        "outcome differs",
        ("deliver",),
        do.span_says(mqtrace__success=False, mqtrace__context_code="FAILED"),
        _field("MISMATCHED", success="DIFFERENT", context_code="DIFFERENT"),
    ),
    Fault(
        "retries differ",
        ("deliver",),
        do.span_says(mqtrace__retry_times=3),
        _field("MISMATCHED", retry_times="DIFFERENT"),
    ),
    Fault("attribute left out", ("send",), do.span_says(mqtrace__tags=None), _field("MISMATCHED", tags="MISSING_OTLP")),
    Fault("written over CLOUD", ("deliver",), do.over_cloud, EXACT),
    Fault(
        "span without its attempt",
        ("deliver",),
        do.span_says(mqtrace__request_id=None),
        replace(EXACT, also={"key_level": 2}),
    ),
)


def play_fault(stage: Stage, fault: Fault, on: str) -> None:
    """Let the fault befall one call of a new message; all its other calls are clean."""
    recall = {"msg_type": MessageType.DELAY} if on == "recall" else {}
    half = {"msg_type": MessageType.TRANS_HALF} if on == "end" else {}
    bean = stage.bean(**{**recall, **half, **(fault.bean or {})})
    options = fault.call or {}
    makers: dict[str, Callable[..., Call]] = {
        "send": lambda **more: stage.send(bean, **more),
        "deliver": lambda **more: stage.deliver(bean, **more),
        "deliver_old": lambda **more: stage.deliver(bean, to=1, **more),
        "end": lambda **more: ending(
            stage.producer, stage.now_ms + 1500, bean, transaction_state=TransactionState.COMMIT_MESSAGE, **more
        ),
        "recall": lambda **more: recalling(stage.producer, stage.now_ms + 1600, bean, **more),
    }
    for kind in dict.fromkeys(("send", on)):
        if kind == on:
            draft = stage.play(makers[kind](**options), fault.change, fault.expected, fault=fault.name)
            _count(stage, fault, len(draft.records))
        else:
            stage.play(makers[kind]())


def _count(stage: Stage, fault: Fault, records: int) -> None:
    for side in fault.malformed:
        stage.truth.malformed[side] += records if side == "native" else 1
