"""Messages are found by topic, group, outcome and time of arrival, and listed by group."""

from dataclasses import replace

import pytest

from bridge.addresses import parse_instant_ms
from bridge.codec.files import BodyDecoder
from bridge.query import search as searching
from bridge.query.matching import OutcomeFilter, Query, parse_query
from bridge.query.search import ALWAYS, ArrivalRange, arrival_range, rows_of
from otel_mqtrace._errors import UsageError
from otel_mqtrace.model import ContextCode, TransactionState
from tests.support.archives import T0, Shelf, consume, end, landed, pub, recall

FAILED = {"success": False, "code": ContextCode.FAILED}
SHELF = Shelf(
    landed(
        pub(msg_id="A1"),
        *consume("R1", T0 + 50, msg_id="A1", **FAILED),
        *consume("R2", T0 + 90, msg_id="A1", retry=1),
        *consume("R3", T0 + 60, msg_id="A1", group="ns1%stock", **FAILED),
        pub(T0 + 100, msg_id="A2", topic="refunds"),
        *consume("R4", T0 + 150, msg_id="A2", topic="refunds", **FAILED),
        pub(T0 + 200, msg_id="B3"),
        *consume("R5", T0 + 250, msg_id="B3")[:1],
    )
)

FOUND = {
    "everything": ({}, ["A1", "A2", "B3"]),
    "prefix": ({"msg_id": "A*"}, ["A1", "A2"]),
    "id with the blanks that it was copied with": ({"msg_id": " A1\n"}, ["A1"]),
    "topic": ({"topic": "refunds"}, ["A2"]),
    "topic whose namespace the record lacks": ({"topic": "ns1%refunds"}, ["A2"]),
    "group without its namespace": ({"group": "stock"}, ["A1"]),
    "group of another namespace": ({"group": "ns2%stock"}, []),
    "failed deliveries of a namespace": ({"group": "ns1%stock", "outcome": OutcomeFilter.FAILED}, ["A1"]),
    "failed deliveries of billing": ({"group": "billing", "outcome": OutcomeFilter.FAILED}, ["A2"]),
    "failed": ({"outcome": OutcomeFilter.FAILED}, ["A1", "A2"]),
    "retried": ({"outcome": OutcomeFilter.RETRIED}, ["A1"]),
    "unfinished": ({"outcome": OutcomeFilter.UNFINISHED}, ["B3"]),
    "ok deliveries of billing": ({"group": "billing", "outcome": OutcomeFilter.OK}, ["A1"]),
    "id and outcome": ({"msg_id": "A1", "group": "billing", "outcome": OutcomeFilter.FAILED}, []),
    "id in another case": ({"msg_id": "a1"}, []),
    "key and topic": ({"key": "order-1", "topic": "refunds"}, ["A2"]),
    "prefix and key": ({"msg_id": "A*", "key": "order-2"}, []),
    "part of a topic": ({"topic": "refund"}, []),
}


def _search(options, **how):
    options = {"msg_id": None, **options}
    return searching.search(SHELF, parse_query(**options), BodyDecoder(), **{"limit": 64, **how})


@pytest.mark.parametrize(("options", "msg_ids"), FOUND.values(), ids=FOUND)
def test_search_returns_messages_that_meet_all_criteria(options, msg_ids):
    answer = _search(options)
    assert [story.msg_id for story in answer.stories] == msg_ids
    assert answer.total == len(msg_ids)


def test_search_by_topic_returns_the_whole_story():
    """Ends name no topic in the trace, and other groups' records are part of the message."""
    by_id = searching.search(SHELF, Query(frozenset({"A1"})), BodyDecoder(), limit=1).stories
    assert _search({"group": "stock"}).stories == by_id


def test_rows_tell_the_last_outcome_and_the_failed_attempts():
    story = _search({"msg_id": "A1"}).stories[0]
    rows = rows_of(story, Query())
    assert [(row.role, row.group, row.outcome.value, row.attempts, row.failed) for row in rows] == [
        ("producer", "shop", "success", 1, 0),
        ("consumer", "billing", "success", 2, 1),
        ("consumer", "ns1%stock", "failed", 1, 1),
    ]
    assert [row.group for row in rows_of(story, Query(outcome=OutcomeFilter.FAILED))] == ["ns1%stock"]


def test_producer_without_a_send_has_a_row_by_its_transaction_or_recall():
    """Its group finds the message, alone and with another criterion; without a row it would be in no list."""
    shelf = Shelf(landed(end(T0, TransactionState.COMMIT_MESSAGE), recall(T0 + 5), *consume("R1", T0 + 60)))
    for options in ({}, {"topic": "orders"}, {"outcome": OutcomeFilter.UNKNOWN}):
        query = parse_query(None, group="shop", **options)
        (story,) = searching.search(shelf, query, BodyDecoder(), limit=1).stories
        (row,) = rows_of(story, query)
        assert (row.role, row.group, row.outcome.value) == ("producer", "shop", "unknown")
        assert (row.time_ms, row.attempts) == (T0, 0)
    nameless = end(T0, TransactionState.COMMIT_MESSAGE)._replace(group_name="")
    for events, groups in (([nameless], [None]), ([nameless, pub()], ["shop"])):
        (story,) = searching.search(Shelf(landed(*events)), Query(), BodyDecoder(), limit=1).stories
        assert [row.group for row in rows_of(story, Query())] == groups


def test_delivery_without_a_topic_is_of_the_topic_that_its_message_was_first_sent_to():
    sends = pub(msg_id="A1"), pub(T0 + 50, msg_id="A1", topic="orders.billing.retry.1")
    shelf = Shelf(landed(*sends, *consume("R1", T0 + 60, msg_id="A1", group="stock")))
    (story,) = searching.search(shelf, Query(), BodyDecoder(), limit=1).stories
    assert [row.topic for row in rows_of(story, Query()) if row.group == "stock"] == ["orders"]


@pytest.mark.parametrize(("text", "named"), [("A10", 1), ("order-1", 1), ("A1", 0), ("order", 0), (",A1", 0)])
@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (lambda body: body[:-20], "11 fields, needs 12"),
        (lambda body: body.replace(b"%d" % T0, b"damaged", 1), "timestamp_ms, not a number"),
    ],
)
def test_bad_record_names_the_ids_and_keys_in_it(text, named, damage, why):
    """A longer id is another one. What only a bad record has is not found, and a remark says so."""
    message = landed(pub(msg_id="B,A10", keys="order-1 order-2"))[0]
    shelf = Shelf([replace(message, body=damage(message.body))])
    query, what = (parse_query(None, text), "text") if "order" in text else (parse_query(text), "id")
    remark = f"1 bad record has that {what}, which mqtrace decode shows: {why}"
    assert searching.search(shelf, query, BodyDecoder(), limit=1).searched.remarks == (remark,) * named
    (remark,) = searching.search(shelf, Query(topic="orders"), BodyDecoder(), limit=1).searched.remarks
    assert remark.startswith("1 bad record of the trace messages that contain the text cannot be searched; ")
    (remark,) = searching.search(shelf, Query(), BodyDecoder(), limit=1).searched.remarks
    assert remark.startswith("1 bad record cannot be searched; ")


def test_more_messages_than_are_examined_are_a_remark(monkeypatch):
    monkeypatch.setattr(searching, "MOST_EXAMINED", 2)
    answer = _search({"outcome": OutcomeFilter.FAILED})
    assert [story.msg_id for story in answer.stories] == ["A2"]
    assert answer.searched.remarks[0].startswith("only the newest 2 of 3 messages were examined")


NOW = 1_795_260_000_000


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        *((now, NOW) for now in ("2026-11-21T11:20:00Z", "2026-11-21 12:20:00+01:00", "1795260000000")),
        ("2026-11-21", NOW - 11 * 3_600_000 - 20 * 60_000),
        ("2026-11-21T11:20:00.250Z", NOW + 250),
        ("15m", NOW - 900_000),
        ("3d", NOW - 259_200_000),
        ("999999999d", 0),
        ("253402300799999", 253_402_300_799_999),
    ],
)
def test_instant_is_read(text, expected):
    assert parse_instant_ms(text, name="--begin", now_ms=NOW) == expected


@pytest.mark.parametrize("text", ["", "yesterday", "15x", "-5m", "1e12", "٣d", "2026-13-01", "5m ago"])
def test_other_text_is_refused_with_the_accepted_forms(text):
    with pytest.raises(UsageError, match=r"--end: invalid time .*: use 2026.*, or 15m"):
        parse_instant_ms(text, name="--end", now_ms=NOW)


def test_range_includes_both_ends_and_may_be_open():
    day = ArrivalRange(10, 20)
    assert [instant for instant in (9, 10, 20, 21) if instant in day] == [10, 20]
    assert -1 in ALWAYS
    assert day.overlaps(0, 10)
    assert not day.overlaps(21, 30)
    assert arrival_range(None, None, now_ms=NOW) == ALWAYS
