"""Findings of a story, under stable codes; none for a clean message."""

from dataclasses import replace

import pytest

from bridge.query.details import details_of, timeline_json
from bridge.query.findings import FINDING_CODES, findings, summarise
from bridge.query.timeline import events
from otel_mqtrace.model import ContextCode, MessageType, TraceType, TransactionState
from otel_mqtrace.wire.native import decode_body, explode
from tests.support.archives import T0, answer_of, consume, end, landed, pub, recall, recorded_messages, story_of
from tests.support.native_vectors import RECORDED_FILES

HALF = pub(msg_type=MessageType.TRANS_HALF)
COMMIT = end(T0 + 20, TransactionState.COMMIT_MESSAGE)
ROLLBACK = end(T0 + 20, TransactionState.ROLLBACK_MESSAGE)
UNDECIDED = end(T0 + 20, TransactionState.UNKNOW)
USED, FAILED = consume("R1", T0 + 30), consume("R0", T0 + 20, success=False, code=ContextCode.FAILED)
REFUSED = pub(success=False, offset_msg_id="")
RETRIED = pub(T0 + 40, topic="retry", offset_msg_id="retry-0@1")
SENT_LATER, RECALLED = pub(T0 + 20), recall(T0 + 20)
BY_ONE, NOWHERE = "consumed by 1 group.", "{}; no consume in the trace."
NO_SEND, ONCE = f"No send in the trace; {BY_ONE}", f"Sent once; {BY_ONE}"
HALF_SENT = "Sent as a half message"
AGAIN = "Sent once; consumed by 1 group, 1 redelivery."

CASES = {
    "well": ([pub(), *USED], [], ONCE),
    "redelivered": ([pub(), *FAILED, *consume("R1", T0 + 900, retry=1)], [], AGAIN),
    "committed": (
        [HALF, end(T0 + 11, TransactionState.UNKNOW), end(T0 + 15, TransactionState.COMMIT_MESSAGE, check=True), *USED],
        [],
        "Sent as a half message; transaction committed after 1 check; consumed by 1 group.",
    ),
    "no send": (USED, ["no_send"], NO_SEND),
    "one attempt of two": ([REFUSED, SENT_LATER, *USED], ["send_failed"], f"2 send attempts, 1 successful; {BY_ONE}"),
    "no attempt": ([REFUSED], ["send_failed"], NOWHERE.format("1 send attempt, none successful")),
    "stored twice": ([pub(), SENT_LATER, *USED], ["stored_again"], f"2 send attempts, 2 successful; {BY_ONE}"),
    "stored twice, first on no slave": (
        [pub(success=False), SENT_LATER, *USED],
        ["send_failed", "stored_again"],
        f"2 send attempts, 1 successful; {BY_ONE}",
    ),
    "stored on no slave": (
        [pub(success=False)],
        ["send_failed", "not_consumed"],
        NOWHERE.format("1 send attempt, none successful"),
    ),
    "forwarded to a retry topic": ([pub(), RETRIED, *USED], [], "Sent to 2 topics; consumed by 1 group."),
    "forwarded at the second attempt": (
        [pub(), pub(T0 + 20, topic="retry", success=False, offset_msg_id=""), RETRIED, *USED],
        ["send_failed"],
        "Sent to 2 topics, 1 failed attempt; consumed by 1 group.",
    ),
    "half without an end": ([HALF], ["transaction_undecided"], NOWHERE.format(HALF_SENT)),
    "undecided": ([HALF, UNDECIDED], ["transaction_undecided"], NOWHERE.format(f"{HALF_SENT}; transaction undecided")),
    "rolled back": ([HALF, ROLLBACK], ["rolled_back"], NOWHERE.format(f"{HALF_SENT}; transaction rolled back")),
    "rolled back and consumed": (
        [HALF, ROLLBACK, *USED],
        ["rolled_back", "consumed_all_the_same"],
        "Sent as a half message; transaction rolled back; consumed by 1 group.",
    ),
    "recalled": ([pub(), RECALLED], [], NOWHERE.format("Sent once; recalled")),
    "recalled in vain": ([pub(), recall(T0 + 20, success=False), *USED], [], ONCE),
    "recalled and consumed": ([pub(), RECALLED, *USED], ["consumed_all_the_same"], f"Sent once; recalled; {BY_ONE}"),
    "waiting": ([HALF, COMMIT], ["not_consumed"], NOWHERE.format(f"{HALF_SENT}; transaction committed")),
    "clocks": ([pub(), *consume("R1", T0 - 7)], ["consumed_early"], ONCE),
    "failed": (
        [pub(), *USED, *consume("R2", T0 + 40, group="stock", success=False, code=ContextCode.RETURNNULL)],
        ["group_failed"],
        "Sent once; consumed by 1 of 2 groups.",
    ),
    "in flight": ([pub(), *USED[:1]], ["unfinished"], "Sent once; delivered to 1 group: unfinished."),
    "abandoned": ([pub(), *USED[:1], *consume("R2", T0 + 900, retry=1)], ["abandoned"], AGAIN),
    "end alone": ([pub(), *USED[1:]], ["begin_missing"], ONCE),
    "late": ([pub(), *consume("R1", T0 + 30, code=ContextCode.TIME_OUT)], ["timed_out"], ONCE),
    "twice": ([pub(), *USED, *consume("R2", T0 + 900)], ["consumed_again"], AGAIN),
}


@pytest.mark.parametrize(("contexts", "codes", "sentence"), CASES.values(), ids=CASES)
def test_story_is_one_sentence_with_findings(contexts, codes, sentence):
    story = story_of(*contexts)
    assert ([finding.code for finding in findings(story)], summarise(story)) == (codes, sentence)


def test_every_code_has_a_case():
    assert {code for _, codes, _ in CASES.values() for code in codes} | {"bad_records"} == set(FINDING_CODES)


def test_bad_records_beside_a_message_are_a_finding():
    (story,) = answer_of(landed(pub(), *USED, extra=b"Sub\x01\x02"), pub().beans[0].msg_id).stories
    assert [finding.code for finding in findings(story)] == ["bad_records"]
    assert findings(story)[0].text == "3 bad records beside this message's: their content is lost."
    (story,) = answer_of(landed(pub(), extra=b"Sub\x01\x02"), pub().beans[0].msg_id).stories
    assert findings(story)[-1].text == "1 bad record beside this message's: its content is lost."


def test_damaged_send_in_another_trace_message_is_a_finding():
    sent, *used = landed(pub(), *USED)
    damaged = replace(sent, body=sent.body.replace(b"%d" % T0, b"damaged", 1))
    (story,) = answer_of([damaged, *used], pub().beans[0].msg_id).stories
    assert [finding.text for finding in findings(story)] == [
        "No send can be read in what was searched; a bad record with this message's id may be one.",
        "1 bad record beside this message's, 1 with its id: its content is lost.",
    ]
    assert timeline_json(story)["bad_records"][0]["names_message"]


def test_hostile_group_cannot_leave_its_finding():
    bad = consume("R", T0 + 30, group="\x1b[2J\u202e" + "g" * 500, success=False, code=ContextCode.FAILED)
    (finding,) = findings(story_of(pub(), *bad))
    assert "⟨U+001B⟩[2J⟨U+202E⟩ggg" in finding.text
    assert len(finding.text) < 200


@pytest.mark.parametrize("ends", [[], [UNDECIDED]])
def test_consumed_message_is_not_called_invisible(ends):
    (finding,) = findings(story_of(HALF, *ends, *USED))
    assert (finding.code, finding.text.partition(",")[0]) == ("transaction_undecided", "It was consumed")


# -- messages that unmodified RocketMQ clients traced
E2E = "Sent once; consumed by 2 groups, 1 redelivery."
COMMITTED = "Sent as a half message; transaction committed after 2 checks; no consume in the trace."
ROLLED_BACK = "Sent as a half message; transaction rolled back after 1 check; no consume in the trace."
GOLDEN = [
    ("rocketmq-5.3.3", "tx-unknown", COMMITTED, ["not_consumed"]),
    ("rocketmq-5.3.3", "retry", "No send in the trace; consumed by 1 group, 2 redeliveries.", ["no_send"]),
    ("rocketmq-5.3.3", "slow", NO_SEND, ["no_send", "timed_out"]),
    ("rocketmq-5.3.3", "e2e-0", E2E, []),
    ("rocketmq-4.9.8-cloud", "e2e-1", E2E, []),
    ("rocketmq-4.9.8-cloud", "b0", NO_SEND, ["no_send"]),
    ("rocketmq-5.3.3-cloud", "e2e-0", E2E, []),
    ("dual-scenarios-5.3.3-old", "tx-exception", ROLLED_BACK, ["rolled_back"]),
]


@pytest.mark.parametrize(("file", "key", "sentence", "codes"), GOLDEN)
def test_recorded_message_has_its_story(file, key, sentence, codes):
    (story,) = answer_of(recorded_messages(file), key=key).stories
    assert (summarise(story), [finding.code for finding in findings(story)]) == (sentence, codes)


def test_checks_of_a_transaction_are_shown_in_order():
    (story,) = answer_of(recorded_messages("rocketmq-5.3.3"), key="tx-unknown").stories
    first, *others = events(story)
    assert (first.name, first.took_ms) == ("send", 192)
    assert [(event.from_ms - first.from_ms, event.outcome) for event in others] == [
        (193, "undecided"),
        (2871, "undecided on check"),
        (5204, "committed on check"),
    ]
    (ends,) = [items for title, items in details_of(story) if title == "Transaction"]
    assert [headline for headline, _ in ends] == [event.outcome for event in others]


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
