"""Stories of messages that unmodified RocketMQ clients traced match their scenarios."""

import pytest

from bridge.query.findings import findings, in_one_sentence
from bridge.query.timeline import events
from otel_mqtrace.model import TraceType
from otel_mqtrace.wire.native import decode_body, explode
from tests.support.archives import answer_of, recorded_messages
from tests.support.native_vectors import RECORDED_FILES

REDELIVERED = "No send in the trace; consumed by 1 group, {} redeliver{}."
E2E = "Sent once; consumed by 2 groups{}."

GOLDEN = [
    ("rocketmq-5.3.3", "order-0", "Sent once; no consume in the trace.", ["not_consumed"]),
    ("rocketmq-5.3.3", "tx-commit", "Sent as a half message; committed; no consume in the trace.", ["not_consumed"]),
    (
        "rocketmq-5.3.3",
        "tx-unknown",
        "Sent as a half message; committed after 2 checks; no consume in the trace.",
        ["not_consumed"],
    ),
    ("rocketmq-5.3.3", "recalled", "Sent once; recalled; no consume in the trace.", []),
    ("rocketmq-5.3.3", "retry", REDELIVERED.format(2, "ies"), ["no_send"]),
    ("rocketmq-5.3.3", "boom", REDELIVERED.format(1, "y"), ["no_send"]),
    ("rocketmq-5.3.3", "slow", "No send in the trace; consumed by 1 group.", ["no_send", "timed_out"]),
    ("rocketmq-5.3.3", "e2e-0", E2E.format(", 1 redelivery"), []),
    ("rocketmq-5.3.3", "e2e-1", E2E.format(""), []),
    ("rocketmq-4.9.8-cloud", "e2e-1", E2E.format(", 1 redelivery"), []),
    ("rocketmq-5.3.3-cloud", "e2e-0", E2E.format(", 1 redelivery"), []),
    (
        "dual-scenarios-5.3.3-old",
        "tx-rollback",
        "Sent as a half message; rolled back; no consume in the trace.",
        ["rolled_back"],
    ),
    (
        "dual-scenarios-5.3.3-old",
        "tx-exception",
        "Sent as a half message; rolled back after 1 check; no consume in the trace.",
        ["rolled_back"],
    ),
]


@pytest.mark.parametrize(("file", "key", "sentence", "codes"), GOLDEN)
def test_recorded_message_has_its_story(file, key, sentence, codes):
    (story,) = answer_of(recorded_messages(file), key=key).stories
    assert (in_one_sentence(story), [finding.code for finding in findings(story)]) == (sentence, codes)


def test_checks_of_a_transaction_are_shown_in_order():
    (story,) = answer_of(recorded_messages("rocketmq-5.3.3"), key="tx-unknown").stories
    first, *others = events(story)
    assert (first.name, first.took_ms) == ("send", 192)
    assert [(event.from_ms - first.from_ms, event.outcome) for event in others] == [
        (193, "undecided"),
        (2871, "undecided on check"),
        (5204, "committed on check"),
    ]


def test_one_listener_call_for_a_batch_is_one_delivery_of_each():
    answers = [answer_of(recorded_messages("rocketmq-4.9.8-cloud"), key=f"b{number}") for number in range(4)]
    attempts = [answer.stories[0].groups[0].attempts for answer in answers]
    assert [len(them) for them in attempts] == [1, 1, 1, 1]
    assert len({them[0].request_id for them in attempts}) == 1
    assert {them[0].missing for them in attempts} == {None}


def test_keys_are_found_where_the_body_is_in_another_charset():
    """A Chinese machine's 4.x client: the body is GBK, the KEYS property UTF-8."""
    messages = recorded_messages("rocketmq-4.9.8-gbk")
    assert answer_of(messages, key="订单-1").stories == ()
    stories = answer_of(messages, key="订单-1", charset="gbk").stories
    assert stories
    assert all("订单-1" in story.keys for story in stories)


@pytest.mark.parametrize("file", RECORDED_FILES)
def test_no_record_of_a_file_is_left_out_of_the_stories(file):
    messages = recorded_messages(file)
    expected = {}
    for message in messages:
        for whole in decode_body(message.body).contexts:
            for trace_ctx in explode(whole):
                expected.setdefault(trace_ctx.beans[0].msg_id, []).append(trace_ctx.trace_type)
    answer = answer_of(messages, *expected, limit=10_000)
    stories = {
        story.msg_id: [
            *([TraceType.PUB] * len(story.sends)),
            *([TraceType.END_TRANSACTION] * len(story.transaction_ends)),
            *([TraceType.RECALL] * len(story.recalls)),
            *(half.trace_ctx.trace_type for group in story.groups for one in group.attempts for half in one.evidence),
        ]
        for story in answer.stories
    }
    repeats = sum(story.repeats for story in answer.stories)
    assert sum(map(len, stories.values())) + repeats == sum(map(len, expected.values()))
    assert {msg_id: set(types) for msg_id, types in stories.items()} == {i: set(types) for i, types in expected.items()}
