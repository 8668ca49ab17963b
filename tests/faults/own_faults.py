"""Faults of one call of an application that we trace, in both formats, and the verdict that each must get.

Kinds of calls: send, deliver, end (of a transaction), recall. Every row happens to a message of its own.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from otel_mqtrace.model import ContextCode, MessageType, TraceType, TransactionState
from tests.faults import changes as do
from tests.faults.calls import Call, ending, recalling
from tests.faults.stage import CONSUMERS, Stage
from tests.faults.truth import EXACT, LOST, UNHARMED, Expected, one_sided

LENGTH_LIMIT = 24
"""The attribute length limit of the spans' SDK, told to the policy."""
_LONG = "a-tag-that-is-longer-than-the-limit-of-attributes"
_EVERY = ("send", "deliver", "end", "recall")
_SEND, _DELIVER = ("send",), ("deliver",)
_BOTH = (*_SEND, *_DELIVER)
_MALFORMED = "COUNTERPART_MALFORMED"
_MISMATCHED = Expected(status="MISMATCHED")
_LONGER_COPY = do.set_record_fields(adds=True, body_length=7)


@dataclass(frozen=True)
class Fault:
    """A row: what happens (``change``), to which kinds of calls, made as ``bean`` and ``call`` say, and what is said."""

    name: str
    on: tuple[str, ...]
    change: do.Change
    expected: Expected
    bean: dict[str, Any] | None = None
    call: dict[str, Any] | None = None


def _dup(side: str, how: str) -> Expected:
    return Expected(status=f"DUPLICATED_{side}", also={"duplicates": how})


def _half(which: str) -> Expected:
    return replace(_MISMATCHED, reason="HALF_RECORD", also={"reason_detail": which})


def _normalised(**fields: str) -> Expected:
    return Expected(status="MATCHED_NORMALISED", fields=fields)


def _mismatched(**fields: str) -> Expected:
    return replace(_MISMATCHED, fields=fields)


def faults_of_both(
    usual: Expected, *, every: tuple[str, ...], both: tuple[str, ...], deliver: tuple[str, ...]
) -> tuple[Fault, ...]:
    """Return what can happen to ``every`` call, to sends and deliveries (``both``) or deliveries, by any instrumentation."""
    return (
        Fault(UNHARMED, every, do.nothing, usual),
        Fault("native record lost, no drop counted", every, do.record_lost, one_sided("otlp", LOST)),
        Fault("native record landed twice", every, do.record_copied, _dup("NATIVE", "exact")),
        Fault("span written twice", every, do.copied(own_id=False), _dup("OTLP", "exact")),
        Fault("native copies differ", _SEND, _LONGER_COPY, _dup("NATIVE", "conflicting")),
        Fault("SubBefore lost", deliver, do.half_lost(TraceType.SUB_BEFORE), _half("after")),
        Fault("SubAfter lost", deliver, do.half_lost(TraceType.SUB_AFTER), _half("before")),
        Fault("the process died in the handler, long ago", deliver, do.died, one_sided("native", "ABANDONED")),
        Fault("native record damaged", every, do.damaged_record, one_sided("otlp", _MALFORMED)),
        Fault("line of the span cut off", every, do.torn_span, one_sided("native", _MALFORMED)),
        Fault("native arrives 90 s late", every, do.arrives_late(90_000), _timed(usual, "late_native")),
        Fault("the span's clock is 3 s ahead", both, do.restamped(start_ms=3000, end_ms=3000), _MISMATCHED),
    )


def _timed(usual: Expected, timing: str) -> Expected:
    return replace(usual, also={"timing": timing})


FAULTS: tuple[Fault, ...] = (
    *faults_of_both(EXACT, every=_EVERY, both=_BOTH, deliver=_DELIVER),
    Fault("nothing happens, the attempt failed", _DELIVER, do.nothing, EXACT, call={"code": ContextCode.FAILED}),
    Fault("a send fails", _SEND, do.nothing, EXACT, {"offset_msg_id": None}, {"success": False}),
    Fault("a send is one-way", _SEND, do.nothing, EXACT, {"offset_msg_id": None}, {"cost_ms": 0}),
    Fault("span lost, no drop counted", _EVERY, do.span_lost, one_sided("native", LOST)),
    Fault("both sides duplicated", _EVERY, do.both(do.record_copied, do.copied(own_id=False)), _dup("BOTH", "exact")),
    Fault("native record landed twice in other bytes", _BOTH, do.add_reordered_record, _dup("NATIVE", "equivalent")),
    Fault("span of a second instrumentation", _EVERY, do.copied(own_id=True), _dup("OTLP", "equivalent")),
    Fault(
        "native copies differ", _DELIVER, do.set_record_fields(adds=True, success=False), _dup("NATIVE", "conflicting")
    ),
    Fault(
        "span copies differ",
        _BOTH,
        do.set_span_attributes(adds=True, mqtrace__success=False),
        _dup("OTLP", "conflicting"),
    ),
    Fault(
        "SubBefore and span lost",
        _DELIVER,
        do.both(do.half_lost(TraceType.SUB_BEFORE), do.span_lost),
        one_sided("native", LOST),
    ),
    Fault("native arrives 50 s late", _EVERY, do.arrives_late(50_000), _timed(EXACT, "on_time")),
    Fault("a host's clock is 10 min ahead", _DELIVER, do.clock_off(600_000), _timed(EXACT, "future")),
    Fault("a host's clock is 5 s ahead", _DELIVER, do.clock_off(5_000), _timed(EXACT, "on_time")),
    Fault("a host's clock is 5 s behind", _DELIVER, do.clock_off(-5_000), _timed(EXACT, "on_time")),
    Fault("the span ends 3 ms later", _SEND, do.restamped(end_ms=3), _normalised(end_ms="WITHIN_TOLERANCE")),
    Fault(
        "attribute cut at the limit",
        _SEND,
        do.set_span_attributes(mqtrace__tags=_LONG[:LENGTH_LIMIT]),
        _normalised(tags="TRUNCATED"),
        {"tags": _LONG},
    ),
    Fault(
        "key cut at the limit",
        _SEND,
        do.set_span_attributes(mqtrace__keys=(_LONG[:LENGTH_LIMIT],)),
        _normalised(keys="TRUNCATED"),
        {"keys": _LONG},
    ),
    Fault(
        "keys masked in the span", _BOTH, do.set_span_attributes(mqtrace__keys=("***",)), _normalised(keys="REDACTED")
    ),
    Fault(
        "separators in keys and tags",
        _SEND,
        do.nothing,
        _normalised(keys="SANITISED", tags="SANITISED"),
        {"keys": "a\x01b c\x02d", "tags": "x\x01y"},
    ),
    Fault(
        "bytes of no UTF-8",
        _SEND,
        do.set_record_fields(tags="caf\ufffd"),
        _normalised(tags="SANITISED"),
        {"tags": "café"},
    ),
    Fault(
        "a missing text written as 'null'", _SEND, do.set_span_attributes(mqtrace__tags="null"), EXACT, {"tags": None}
    ),
    Fault("neither tags nor keys", _BOTH, do.nothing, EXACT, {"tags": None, "keys": None}),
    Fault("a key that is the word null", _SEND, do.nothing, EXACT, {"keys": "null order-1"}),
    Fault("id in lower case", _BOTH, do.set_span_attributes(messaging__message__id=str.lower), EXACT),
    Fault(
        "Java's form of a host",
        _SEND,
        do.set_record_fields(store_host="/10.0.0.5:10911"),
        _normalised(store_host="EQUAL_NORMALISED"),
    ),
    Fault(
        "topic with a namespace", _SEND, do.set_record_fields(topic="ns1%orders"), _normalised(topic="EQUAL_NORMALISED")
    ),
    Fault("tags differ", _SEND, do.set_span_attributes(mqtrace__tags="altered"), _mismatched(tags="DIFFERENT")),
    Fault("body length differs", _SEND, do.set_record_fields(body_length=4242), _mismatched(body_length="DIFFERENT")),
    Fault(
        "outcome differs",
        _DELIVER,
        do.set_span_attributes(mqtrace__success=False, mqtrace__context_code="FAILED"),
        _mismatched(success="DIFFERENT", context_code="DIFFERENT"),
    ),
    Fault(
        "retries differ", _DELIVER, do.set_span_attributes(mqtrace__retry_times=3), _mismatched(retry_times="DIFFERENT")
    ),
    Fault("attribute left out", _SEND, do.set_span_attributes(mqtrace__tags=None), _mismatched(tags="MISSING_OTLP")),
    Fault("written with access channel CLOUD", _DELIVER, do.over_cloud, EXACT),
    Fault(
        "span without its attempt",
        _DELIVER,
        do.set_span_attributes(mqtrace__request_id=None),
        replace(EXACT, also={"key_level": 2}),
    ),
)


def play_fault(stage: Stage, fault: Fault, on: str) -> None:
    """Let the fault befall one call of a new message; all its other calls are clean."""
    kinds = {"recall": {"msg_type": MessageType.DELAY}, "end": {"msg_type": MessageType.TRANS_HALF}}
    bean = stage.bean(**{**kinds.get(on, {}), **(fault.bean or {})})
    commit = {"transaction_state": TransactionState.COMMIT_MESSAGE}
    makers: dict[str, Callable[..., Call]] = {
        "send": lambda **more: stage.send(bean, **more),
        "deliver": lambda **more: stage.deliver(bean, **more),
        "deliver_old": lambda **more: stage.deliver(bean, to=CONSUMERS[1], **more),
        "end": lambda **more: ending(stage.producer, stage.now_ms + 1500, bean, **commit, **more),
        "recall": lambda **more: recalling(stage.producer, stage.now_ms + 1600, bean, **more),
    }
    if on != "send":
        stage.play(stage.send(bean))
    draft = stage.play(makers[on](**(fault.call or {})), fault.change, fault.expected, fault=fault.name)
    if fault.expected.reason == _MALFORMED:
        on_native = fault.expected.status == "OTLP_ONLY"
        stage.truth.malformed["native" if on_native else "otlp"] += len(draft.records) if on_native else 1
