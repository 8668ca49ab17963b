"""Spans of a RocketMQ call as OpenTelemetry's Java agent writes them: old names and new ones, as recorded.

Names, kinds, parents, links and flags are those of the two recorded runs in ``tests/vectors/dual``.
"""

import json
from collections.abc import Iterable, Mapping
from hashlib import md5
from typing import Any

from otel_mqtrace.model import ContextCode, TraceType
from tests.faults.calls import Application, SpanDraft
from tests.support.otlp_json import CLIENT, CONSUMER, PRODUCER, Span, listed, span

_ROOT, _REMOTE, _UNSAMPLED = 259, 771, 770
_SCOPE = {"name": "io.opentelemetry.rocketmq-client-4.8", "version": "2.33.1-alpha"}
_COLD_MS = 1  # the native hook runs first
_INSTANT_NS = 8_000
_TORN_CHARACTERS = 4


def _hex(text: str, digits: int) -> str:
    return md5(text.encode(), usedforsecurity=False).hexdigest()[:digits]


def send_ids(msg_id: str) -> tuple[str, str]:
    return _hex(f"trace {msg_id}", 32), _hex(f"send {msg_id}", 16)


def agent_spans(draft: SpanDraft, *, old: bool) -> list[Span]:
    """Return what the agent exports of a call; nothing of ends of transactions and recalls."""
    kind = draft.context.trace_type
    if kind is TraceType.PUB:
        return _sends(draft, old=old)
    if kind is not TraceType.SUB_AFTER:
        return []
    if len(draft.context.beans) == 1:
        return [_single_process(draft, old=old)]
    return _old_batch(draft) if old else [_new_batch(draft)]


def _sends(draft: SpanDraft, *, old: bool) -> list[Span]:
    beans = draft.context.beans
    if len(beans) == 1:
        trace_id, span_id = send_ids(beans[0].msg_id or "")
        attributes = _operation("send", beans[0].topic, old=old) | _send_result(draft)
        return [_span(draft, trace_id, span_id, _name("send", beans[0].topic, old=old), PRODUCER, attributes)]
    creates = [
        _span(
            draft,
            *send_ids(bean.msg_id or ""),
            f"create {bean.topic}",
            PRODUCER,
            _operation("create", bean.topic, old=False) | {"messaging.message.id": bean.msg_id},
        )
        for bean in beans
    ]
    trace_id, span_id = _hex(f"batch {beans[0].msg_id}", 32), _hex(f"batch {beans[0].msg_id}", 16)
    attributes = _operation("send", beans[0].topic, old=False) | {"messaging.batch.message_count": len(beans)}
    parent = _span(draft, trace_id, span_id, f"send {beans[0].topic}", CLIENT, attributes)
    parent["links"] = [_link(bean.msg_id or "", _ROOT) for bean in beans]
    return [*creates, parent]


def _send_result(draft: SpanDraft) -> dict[str, Any]:
    bean = draft.context.beans[0]
    experimental = {"messaging.rocketmq.broker_address": bean.store_host, "messaging.rocketmq.message.tag": bean.tags}
    answered = {"messaging.message.id": bean.msg_id, "messaging.rocketmq.send_result": "SEND_OK"}
    return experimental | (answered if bean.offset_msg_id else {})


def _single_process(draft: SpanDraft, *, old: bool) -> Span:
    bean = draft.context.beans[0]
    trace_id, parent_id = send_ids(bean.msg_id or "")
    attributes = _operation("process", bean.topic, old=old) | _receiver(draft, old=old)
    own_id = _hex(f"{_call_id(draft)} {bean.msg_id}", 16)
    attributes["messaging.message.id"] = bean.msg_id
    span = _span(draft, trace_id, own_id, _name("process", bean.topic, old=old), CONSUMER, attributes)
    span |= {"parentSpanId": parent_id, "flags": _REMOTE}
    if not old:
        span["links"] = [_link(bean.msg_id or "", _REMOTE)]
    return span


def _new_batch(draft: SpanDraft) -> Span:
    beans = draft.context.beans
    own = _call_id(draft)
    attributes = _operation("process", beans[0].topic, old=False) | _receiver(draft, old=False)
    attributes["messaging.batch.message_count"] = len(beans)
    span = _span(draft, _hex(own, 32), _hex(own, 16), f"process {beans[0].topic}", CONSUMER, attributes)
    span["links"] = [
        _link(
            bean.msg_id or "",
            _UNSAMPLED if bean.msg_id in draft.unsampled else _REMOTE,
            {"messaging.message.id": bean.msg_id},
        )
        for bean in beans
    ]
    return span


def _old_batch(draft: SpanDraft) -> list[Span]:
    beans = draft.context.beans
    own = _call_id(draft)
    trace_id, root_id = _hex(own, 32), _hex(own, 16)
    receive = {"messaging.system": "rocketmq", "messaging.operation": "receive"} | _receiver(draft, old=True)
    root = _span(draft, trace_id, root_id, "multiple_sources receive", CONSUMER, receive)
    children = []
    for bean in beans:
        attributes = _operation("process", bean.topic, old=True) | _receiver(draft, old=True)
        attributes["messaging.message.id"] = bean.msg_id
        own_id = _hex(f"{own} {bean.msg_id}", 16)
        child = _span(draft, trace_id, own_id, f"{bean.topic} process", CONSUMER, attributes)
        child |= {"parentSpanId": root_id, "links": [_link(bean.msg_id or "", _REMOTE)]}
        child["endTimeUnixNano"] = str(int(child["startTimeUnixNano"]) + _INSTANT_NS)
        children.append(child)
    return [root, *children]


def _call_id(draft: SpanDraft) -> str:
    return f"process {draft.context.group_name} {draft.context.request_id} {draft.copy}"


def _operation(word: str, topic: str | None, *, old: bool) -> dict[str, Any]:
    attributes: dict[str, Any] = {"messaging.system": "rocketmq", "messaging.destination.name": topic}
    if old:
        return attributes | {"messaging.operation": "publish" if word == "send" else word}
    return attributes | {"messaging.operation.name": word, "messaging.operation.type": word}


def _name(word: str, topic: str | None, *, old: bool) -> str:
    return f"{topic} {'publish' if word == 'send' else word}" if old else f"{word} {topic}"


def _receiver(draft: SpanDraft, *, old: bool) -> dict[str, Any]:
    group, code = draft.context.group_name, draft.context.context_code
    attributes: dict[str, Any] = {"thread.name": f"ConsumeMessageThread_{group}_3", "thread.id": "42"}
    if not old:
        attributes["messaging.consumer.group.name"] = group
        if code is not None and code is not ContextCode.SUCCESS:
            attributes["error.type"] = code.name
    return attributes


def _span(
    draft: SpanDraft, trace_id: str, span_id: str, name: str, kind: int, own_attributes: Mapping[str, Any]
) -> Span:
    if draft.copy and kind == PRODUCER:
        span_id = _hex(f"{span_id} {draft.copy}", 16)
    attributes = {**own_attributes, **draft.attributes}
    failed = "error.type" in attributes and attributes["error.type"] is not None
    fields = {"flags": _ROOT, "name": name, "status": {"code": 2} if failed else {}}
    fields |= {"traceId": trace_id, "spanId": span_id}
    return span(0, kind, draft.start_ms + _COLD_MS, draft.end_ms - draft.start_ms, attributes, **fields)


def _link(msg_id: str, flags: int, attributes: Mapping[str, Any] | None = None) -> Span:
    trace_id, span_id = send_ids(msg_id)
    return {"traceId": trace_id, "spanId": span_id, "flags": flags, "attributes": listed(attributes or {})}


def agent_line(application: Application, spans: Iterable[Span], *, torn: bool = False) -> str:
    """Return one line of the Collector's file exporter, cut off when ``torn``."""
    resource = {"service.name": application.service, "service.instance.id": "1"}
    scope_spans = [{"scope": _SCOPE, "spans": list(spans)}]
    line = json.dumps(
        {"resourceSpans": [{"resource": {"attributes": listed(resource)}, "scopeSpans": scope_spans}]},
        separators=(",", ":"),
    )
    return (line[:-_TORN_CHARACTERS] if torn else line) + "\n"
