"""What part a span plays, who wrote it and how it ended, from the words it shares with many."""

import pytest

from bridge.otlp.roles import SpanFacts, role_of
from otel_mqtrace.model import ContextCode

AGENT = "io.opentelemetry.rocketmq-client-4.8"
NEW = {"library": AGENT, "operation": "process", "operation_name": "process"}
OLD = {"library": AGENT, "operation": "process", "old_operation": "process"}


def role(**words):
    return role_of(SpanFacts(is_span=True, **{"status": "UNSET", **words}))


def test_row_that_is_no_span_has_no_role():
    assert role_of(SpanFacts(is_span=False, trace_type="Pub")) is None


@pytest.mark.parametrize(
    ("words", "kind", "scope"),
    [
        ({"trace_type": "Pub"}, "publish", None),
        ({"trace_type": "Sub", "operation": "send"}, "consume", None),
        ({"trace_type": "EndTransaction"}, "transaction_end", None),
        ({"trace_type": "Recall"}, "recall", None),
        ({"trace_type": "Other", "operation": "send"}, "publish", None),
        ({"operation": "SEND"}, "publish", None),
        ({"operation": "dance", "span_kind": "PRODUCER"}, None, "NOT_MESSAGING"),
        ({"system": "kafka", "span_kind": "PRODUCER"}, "publish", None),
        ({"system": "kafka", "span_kind": "CONSUMER"}, "consume", None),
        ({"system": "kafka", "span_kind": "CLIENT"}, None, "NOT_MESSAGING"),
        ({"span_kind": "CONSUMER"}, None, "NOT_MESSAGING"),
        ({"operation": "receive"}, None, "POLL"),
        ({"operation": "settle"}, None, "SETTLE"),
        ({"operation": "send", "linked": True, "unnamed": True}, None, "BATCH_PARENT"),
        ({"operation": "send", "linked": True, "unnamed": True, "has_id": True}, "publish", None),
        ({"operation": "process", "linked": True, "unnamed": True}, "consume", None),
        ({"operation": "send", "is_trace_traffic": True}, "publish", "TRACE_TRAFFIC"),
        ({"operation": "receive", "is_trace_traffic": True}, None, "TRACE_TRAFFIC"),
    ],
)
def test_span_is_an_event_or_has_a_scope(words, kind, scope):
    facts = role(**words)
    assert (facts.kind, facts.scope) == (kind, scope)
    assert (facts.half is None) == (kind is None)


@pytest.mark.parametrize(
    ("words", "writer"),
    [
        ({"trace_type": "", "library": AGENT}, "mqtrace"),
        ({"library": "otel_mqtrace"}, "mqtrace"),
        (NEW, "java-agent-new"),
        ({**NEW, "old_operation": "process"}, "java-agent-new"),
        (OLD, "java-agent-old"),
        ({"library": AGENT, "operation": "process"}, "other"),
        ({**NEW, "library": "kafka-python"}, "other"),
        ({**NEW, "library": None}, "other"),
    ],
)
def test_writer_of_a_span_is_detected_by_library_and_names(words, writer):
    assert role(**words).writer == writer


@pytest.mark.parametrize(
    ("words", "success", "code"),
    [
        ({"operation": "send"}, True, None),
        ({"operation": "send", "status": "ERROR"}, False, None),
        ({"operation": "send", "error_type": "timeout"}, False, None),
        ({"operation": "send", "send_result": "SEND_OK", "status": "ERROR"}, True, None),
        ({"operation": "send", "send_result": "FLUSH_DISK_TIMEOUT"}, False, None),
        ({**NEW, "operation": "send"}, None, None),
        ({"operation": "process"}, True, "SUCCESS"),
        ({"operation": "process", "status": "ERROR"}, False, None),
        ({"operation": "process", "error_type": "java.lang.X"}, False, None),
        ({"operation": "process", "error_type": "FAILED", "status": "ERROR"}, False, "FAILED"),
        ({"operation": "process", "error_type": "TIME_OUT", "status": "ERROR"}, True, "TIME_OUT"),
        ({"operation": "process", "status": None}, None, None),
        (OLD, None, None),
        ({**OLD, "status": "ERROR"}, False, None),
        ({"trace_type": "Sub", "success": "false", "context_code": "TIME_OUT"}, False, "TIME_OUT"),
        ({"trace_type": "Sub", "success": "True"}, False, "SUCCESS"),
        ({"trace_type": "Sub", "success": "true", "half": "before"}, None, None),
        ({"trace_type": "EndTransaction"}, None, None),
        ({"operation": "receive", "success": "true", "context_code": "?"}, True, "?"),
    ],
)
def test_outcome_is_read_as_far_as_the_span_has_it(words, success, code):
    facts = role(**words)
    assert (facts.success, facts.context_code) == (success, code)


@pytest.mark.parametrize("code", ContextCode)
def test_error_type_of_a_rocketmq_code_is_that_code(code):
    """RocketMQ calls two of its codes successes."""
    facts = role(operation="process", error_type=code.name)
    assert (facts.context_code, facts.success) == (code.name, code.name in {"SUCCESS", "TIME_OUT"})


@pytest.mark.parametrize(
    ("words", "is_alone"),
    [
        ({"operation": "process"}, True),
        ({"operation": "Create"}, False),
        ({**OLD, "linked": True}, False),
        (OLD, True),
        ({**NEW, "linked": True}, True),
        ({**OLD, "operation": "send", "linked": True}, True),
    ],
)
def test_message_is_alone_in_its_call_unless_the_span_leaves_it_open(words, is_alone):
    assert role(**words).is_alone is is_alone


@pytest.mark.parametrize(
    ("words", "msg_type"),
    [
        ({"msg_type": "Delay_Msg", "registry_msg_type": "fifo"}, "Delay_Msg"),
        ({"msg_type": ""}, ""),
        ({"registry_msg_type": "FIFO"}, "Order_Msg"),
        ({"registry_msg_type": "transaction"}, "Trans_Msg_Half"),
        ({"registry_msg_type": "priority"}, None),
        ({}, None),
    ],
)
def test_message_type_has_the_name_of_rocketmq(words, msg_type):
    assert role(**words).msg_type == msg_type


@pytest.mark.parametrize(
    ("half", "expected", "has_ended"),
    [("before", "before", False), ("after", "after", True), ("Before", "whole", True), (None, "whole", True)],
)
def test_span_of_the_first_half_has_not_ended(half, expected, has_ended):
    seen = role(trace_type="Sub", half=half)
    assert (seen.half, seen.has_ended) == (expected, has_ended)


@pytest.mark.parametrize(("text", "expected"), [(None, None), ("true", True), ("false", False), ("TRUE", False)])
def test_transaction_check_is_read_from_the_span(text, expected):
    assert role(from_transaction_check=text).from_transaction_check is expected
