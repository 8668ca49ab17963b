"""Records of a message become its story in any order and with repeats."""

import json
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bridge.query.details import timeline_json
from bridge.query.timeline import Half, Outcome, Tone, events
from otel_mqtrace.model import ContextCode, TraceType
from otel_mqtrace.wire.native import encode_context
from tests.support.archives import ID, LIFE, T0, again, answer_of, consume, context, landed, pub, recall, story_of


def _story(story):
    """Return everything a reader is told but where and how often it was read."""

    def without_places(part):
        return {name: value for name, value in part.items() if name not in {"evidence", "repeats"}}

    return json.loads(json.dumps(timeline_json(story)), object_hook=without_places)


WHOLE = _story(story_of(*LIFE))


@settings(max_examples=80)
@given(st.data())
def test_neither_order_nor_repeats_change_a_story(data):
    messages = landed(*LIFE)
    repeats = data.draw(st.lists(st.sampled_from(messages), max_size=10))
    offsets = data.draw(st.lists(st.integers(1000, 2000), min_size=len(repeats), max_size=len(repeats)))
    copies = [again(message, offset=offset) for message, offset in zip(repeats, offsets, strict=True)]
    shuffled = data.draw(st.permutations([*messages, *copies]))
    (story,) = answer_of(shuffled, ID).stories
    assert _story(story) == WHOLE
    assert (story.records, story.repeats) == (len(LIFE), len(copies))


@settings(max_examples=40)
@given(st.permutations(LIFE), st.sets(st.integers(1, len(LIFE) - 1)))
def test_bodies_that_records_share_change_nothing(contexts, cuts):
    edges = [0, *sorted(cuts), len(contexts)]
    bodies = [b"".join(encode_context(one).body for one in contexts[start:stop]) for start, stop in pairwise(edges)]
    messages = [
        replace(message, body=body) for message, body in zip(landed(*contexts[: len(bodies)]), bodies, strict=True)
    ]
    (story,) = answer_of(messages, ID).stories
    assert _story(story) == WHOLE


def test_attempts_of_sends_and_of_a_group_are_distinct_and_in_order():
    story = story_of(*LIFE)
    assert [(send.outcome, send.cost_ms, send.store_host) for send in story.sends] == [
        (Outcome.FAILED, 3000, "broker-a:10911"),
        (Outcome.SUCCESS, 10, "broker-b:10911"),
    ]
    billing = story.groups[0]
    assert billing.group == "billing"
    assert [(one.request_id, one.retry_times, one.outcome, one.context_code) for one in billing.attempts] == [
        ("R1", 0, Outcome.FAILED, ContextCode.EXCEPTION),
        ("R2", 1, Outcome.SUCCESS, ContextCode.SUCCESS),
    ]


def test_single_half_is_shown_as_such():
    groups = {group.group: group.attempts[0] for group in story_of(*LIFE).groups}
    mail, audit = groups["mail"], groups["audit"]
    assert (mail.missing, mail.outcome, mail.end_ms) == (Half.END, Outcome.UNFINISHED, None)
    assert (audit.missing, audit.begin_ms, audit.from_ms) == (Half.BEGIN, None, T0 + 9012)
    (event,) = [event for event in events(story_of(*LIFE)) if event.group == "audit"]
    assert not event.begin_known


@pytest.mark.parametrize(
    ("halves", "groups"),
    [
        ([consume("R", T0)[0], consume("R", T0, group="stock")[1]], [("billing", [Half.END]), ("stock", [Half.BEGIN])]),
        (consume("null", T0), [("billing", [Half.END, Half.BEGIN])]),
    ],
    ids=["the counters of two clients meet", "no request id"],
)
def test_halves_of_two_calls_are_never_paired(halves, groups):
    assert [(each.group, [one.missing for one in each.attempts]) for each in story_of(*halves).groups] == groups


def test_halves_that_share_a_request_id_are_paired_in_their_order():
    story = story_of(*consume("R", T0 + 100, 9)[::-1], *consume("R", T0, 7)[::-1])
    assert [one.elapsed_ms for one in story.groups[0].attempts] == [7, 9]


@pytest.mark.parametrize("dialect", ["4.4.0", "4.9.1"])
def test_end_without_group_and_time_takes_both_from_its_begin(dialect):
    """Old clients write seven fields: the group is the begin's, the end is begin plus cost and said to be estimated."""
    (group,) = story_of(*consume("R", T0, 7), dialect=dialect).groups
    (attempt,) = group.attempts
    assert (group.group, attempt.end_ms, attempt.end_estimated, attempt.elapsed_ms) == ("billing", T0 + 7, True, 7)


def test_end_alone_without_a_group_is_shown_under_no_name():
    (group,) = story_of(*consume("R", T0)[1:], dialect="4.4.0").groups
    assert (group.group, group.attempts[0].from_ms) == (None, None)


@pytest.mark.parametrize(
    ("changes", "cost_ms", "end_ms"),
    [({"cost_ms": 20}, 20, T0 + 60), ({"timestamp_ms": T0 - 900}, 60, T0 - 900)],
    ids=["RocketMQ divides the cost of a batch by its messages", "the clock was set back"],
)
def test_elapsed_time_is_right_beside_a_share_of_the_cost_or_a_wrong_clock(changes, cost_ms, end_ms):
    before, after = consume("R", T0, 60)
    (group,) = story_of(before, after._replace(**changes)).groups
    attempt = group.attempts[0]
    assert (attempt.cost_ms, attempt.end_ms, attempt.elapsed_ms) == (cost_ms, end_ms, 60)


def test_client_host_is_shown_if_on_the_wire():
    assert story_of(pub(client_host="10.0.0.1"), dialect="4.8.0").sends[0].client_host == "10.0.0.1"
    assert story_of(pub(client_host="10.0.0.1")).sends[0].client_host is None


BATCH = pub(msg_id="A1,B2,C3", offset_msg_id="P1,P2,P3", tags=None, keys=None)
SECOND = pub(T0 + 9, msg_id="SECOND", keys="x order-1")
TWO_KEYS = [pub(), recall(T0 + 3), pub(T0 + 5, msg_id="OTHER", keys="order-10"), SECOND]
NAMELESS = [pub(msg_id=None), pub(T0 + 1, msg_id=None, keys="other")]
FOUND = {
    "one id of a batch": ([BATCH], ["B2"], None, [("B2", 1, 0, 0)]),
    "joined ids of a batch": (
        [BATCH],
        ["A1,B2,C3", "A1", "B2", "C3"],
        None,
        [(one, 1, 0, 0) for one in ("A1", "B2", "C3")],
    ),
    "the broker's offset id": ([pub(offset_msg_id="7F01"), *consume("R", T0)], ["7F01"], None, [(ID, 1, 0, 1)]),
    "a key, and records without it": (TWO_KEYS, [], "order-1", [(ID, 1, 1, 0), ("SECOND", 1, 0, 0)]),
    "a record without an id": (NAMELESS, [], "order-1", [("null", 1, 0, 0)]),  # Java writes null, which is no id
    "an id and its key": ([pub()], [ID], "order-1", [(ID, 1, 0, 0)]),
    "an id and another key": ([pub()], [ID], "order-2", []),
}


@pytest.mark.parametrize(("contexts", "ids", "key", "found"), FOUND.values(), ids=FOUND)
def test_message_is_found_by_its_ids_and_keys(contexts, ids, key, found):
    stories = answer_of(landed(*contexts), *ids, key=key).stories
    assert [(each.msg_id, len(each.sends), len(each.recalls), len(each.groups)) for each in stories] == found


def test_message_of_a_batch_has_its_own_offset():
    assert [(send.offset_msg_id, send.of_batch) for send in story_of(BATCH, msg_id="B2").sends] == [("P2", 3)]


def test_keys_of_a_4_x_client_are_one_key():
    """Up to 4.9.2 "k1 k2" is a key."""
    assert len(answer_of(landed(pub(keys="k1 k2"), dialect="4.9.0"), key="k1 k2").stories) == 1


def test_bad_records_without_number_are_bounded_and_counted():
    answer = answer_of(landed(pub(), extra=b"x\x02" * 5_000), ID)
    assert len(answer.stories[0].bad) == 1_000
    assert answer.searched.remarks == ("5,000 bad records lie beside what was found; the first 1,000 are kept",)


def test_id_with_separators_is_found_as_it_was_written():
    story = story_of(pub(msg_id="a\x01b"), msg_id="a_b")
    assert answer_of(landed(pub(msg_id="a\x01b")), "a\x01b").stories == (story,)


def test_bad_records_beside_a_message_are_part_of_its_story_only():
    damaged, other = landed(pub(), pub(T0 + 1, msg_id="OTHER"))
    damaged = replace(damaged, body=damaged.body + b"Pub\x01torn\x02")
    story, clean = answer_of([damaged, other], key="order-1").stories
    (bad,) = story.bad
    assert (bad.place.offset, bad.place.record_index, bad.reason) == (0, 1, "2 fields, needs 12")
    assert (clean.msg_id, clean.bad) == ("OTHER", ())


def test_late_consume_is_a_success_to_take_care_of():
    late, failed = (
        events(story_of(*consume("R", T0, success=success, code=ContextCode.TIME_OUT)))[0] for success in (True, False)
    )
    assert [(one.tone, one.outcome) for one in (late, failed)] == [
        (Tone.CARE, "success, TIME_OUT"),
        (Tone.BAD, "failed, TIME_OUT"),
    ]


def test_repeated_record_is_counted_with_every_place():
    (message,) = landed(pub())
    (story,) = answer_of([message, message, again(message, offset=7)], ID).stories
    (sighting,) = story.sends[0].evidence
    assert (story.repeats, sighting.seen, [place.offset for place in sighting.places]) == (2, 3, [0, 7])


def test_event_without_a_time_is_last():
    story = story_of(
        pub(), context(TraceType.SUB_AFTER, None, request_id="R", cost_ms=1, success=True), dialect="4.4.0"
    )
    assert [event.from_ms for event in events(story)] == [T0, None]
