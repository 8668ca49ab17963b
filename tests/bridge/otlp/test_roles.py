"""What part a span plays, who wrote it and how it ended, from the words it shares with many."""

import pytest

from bridge.otlp.roles import SpanFacts, role_of
from otel_mqtrace.model import ContextCode

AGENT = "io.opentelemetry.rocketmq-client-4.8"
NEW = {"library": AGENT, "operation": "process", "operation_name": "process"}
OLD = {"library": AGENT, "operation": "process", "old_operation": "process"}


def test_row_that_is_no_span_has_no_role():
    assert role_of(SpanFacts(is_span=False, trace_type="Pub")) is None


FACTS = {
    ("kind", "scope"): [
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
    ("writer",): [
        ({"trace_type": "", "library": AGENT}, "mqtrace"),
        ({"library": "otel_mqtrace"}, "mqtrace"),
        (NEW, "java-agent-new"),
        ({**NEW, "old_operation": "process"}, "java-agent-new"),
        (OLD, "java-agent-old"),
        ({"library": AGENT, "operation": "process"}, "other"),
        ({**NEW, "library": "kafka-python"}, "other"),
        ({**NEW, "library": None}, "other"),
    ],
    ("success", "context_code"): [
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
        # RocketMQ calls two of its codes successes
        *(
            ({"operation": "process", "error_type": code.name}, code.name in {"SUCCESS", "TIME_OUT"}, code.name)
            for code in ContextCode
        ),
    ],
    ("is_alone",): [  # in its call, unless the span leaves it open
        ({"operation": "process"}, True),
        ({"operation": "Create"}, False),
        ({**OLD, "linked": True}, False),
        (OLD, True),
        ({**NEW, "linked": True}, True),
        ({**OLD, "operation": "send", "linked": True}, True),
    ],
    ("msg_type",): [
        ({"msg_type": "Delay_Msg", "registry_msg_type": "fifo"}, "Delay_Msg"),
        ({"msg_type": ""}, ""),
        ({"registry_msg_type": "FIFO"}, "Order_Msg"),
        ({"registry_msg_type": "transaction"}, "Trans_Msg_Half"),
        ({"registry_msg_type": "priority"}, None),
        ({}, None),
    ],
    ("half", "has_ended"): [
        ({"trace_type": "Sub", "half": "before"}, "before", False),
        ({"trace_type": "Sub", "half": "after"}, "after", True),
        ({"trace_type": "Sub", "half": "Before"}, "whole", True),
        ({"trace_type": "Sub", "half": None}, "whole", True),
    ],
    ("from_transaction_check",): [
        ({"from_transaction_check": None}, None),
        ({"from_transaction_check": "true"}, True),
        ({"from_transaction_check": "false"}, False),
        ({"from_transaction_check": "TRUE"}, False),
    ],
}


@pytest.mark.parametrize(
    ("names", "words", "values"),
    [(names, words, values) for names, rows in FACTS.items() for words, *values in rows],
    ids=lambda part: ",".join(part) if isinstance(part, (tuple, dict)) else None,
)
def test_facts_of_a_role_follow_from_the_words_of_the_span(names, words, values):
    facts = role_of(SpanFacts(is_span=True, **{"status": "UNSET", **words}))
    assert [getattr(facts, name) for name in names] == values
    assert (facts.half is None) == (facts.kind is None)
