"""What the rest of a run testifies of a key that its own message leaves unexplained, and what it must not excuse."""

from collections import Counter
from dataclasses import replace
from operator import itemgetter
from typing import Any

import pytest

from spark_jobs.explain.explainers import EXPLAINERS
from spark_jobs.policy.policy import read_policy
from spark_jobs.taxonomy import Reason
from tests.spark_jobs.explain.explained_runs import explain_events
from tests.support.events import START_MS, agent, consumed, delivery, event, publish

END_MS = 400_000
HOST = "C0000202"


def uid(counter: int, *, at_ms: int = 0, process: str = "62BB60E53B93") -> str:
    return f"{HOST}{process}{0x69939000 + at_ms:08X}{counter:04X}"


def sent(counter: int, *, at_ms: int, traced: bool = True, process: str = "62BB60E53B93", **fields: Any) -> list:
    """Return both records of a send, or its span alone; its id is drawn when it starts."""
    msg_id = uid(counter, at_ms=at_ms, process=process)
    own = {"service": "shop", "batch_size": 1, "id_source": "own", **fields}
    span = agent(publish("otlp", msg_id, at_ms=at_ms, **own), group_name=None)
    native = publish("native", msg_id, at_ms=at_ms, writer="rocketmq", batch_size=1, **fields)
    return [native, span] if traced else [span]


def taken(msg_id: str, *, group: str = "billing", at_ms: int, call: str | None = None, **fields: Any) -> dict:
    row = agent(consumed(msg_id, group=group, attempt=None, at_ms=at_ms, service="bill", batch_size=1))
    return {**row, **({} if call is None else {"trace_id": call * 32, "span_id": call * 16}), **fields}


def explained(events: list, key: Any, writer: str = "rocketmq-5.3.3", *, grace_ms: int = 1_000, **named: str) -> dict:
    policy = read_policy(None, **{"profile": "java-agent", "native_writer": writer, **named})
    rows = explain_events(events, policy=replace(policy, grace_ms=grace_ms))
    return {key(row): (row["reason"], row["reason_detail"]) for row in rows if row["reason"]}


def ends() -> list:
    message = sent(1, at_ms=END_MS, process="0E0E0E0E0E0E")
    return [*message, *delivery("LAST", at_ms=END_MS), taken("LAST", at_ms=END_MS)]


def _sequence() -> list:
    sent_off = publish("otlp", None, at_ms=5_100, cost_ms=5, service="shop", batch_size=1)
    one_way = agent(sent_off, group_name=None)
    far = "0000000000F0"
    return [
        *(row for step in range(12) for row in sent(0x100 + 2 * step, at_ms=100 * step)),
        *sent(0x200, at_ms=2_000, traced=False),  # U: the next number is the next message's
        *sent(0x201, at_ms=2_050),
        *sent(0x300, at_ms=3_000, traced=False),  # L: lost, its context took the next number
        *sent(0x302, at_ms=3_050),
        *sent(0x400, at_ms=4_000, traced=False, cost_ms=90),  # O: lost, another thread drew the next number meanwhile
        *sent(0x401, at_ms=4_030),
        *sent(0x500, at_ms=5_000, traced=False),  # W: a one-way send with its context in between
        one_way,
        *sent(0x503, at_ms=5_200),
        *sent(0x600, at_ms=6_000, traced=False),  # X: lost, one more number than the one-way send took
        {**one_way, "start_ms": START_MS + 6_100, "end_ms": START_MS + 6_105, "span_id": "5" * 16},
        *sent(0x604, at_ms=6_200),
        *sent(0x800, at_ms=7_000, traced=False, topic="ns1%orders"),  # N: lost, and records cut the namespace off
        *sent(0x802, at_ms=7_050),
        *(row for step in range(12) for row in sent(2 * step, at_ms=8_000 + step, process=far, traced=False)),
    ]


def _calls() -> list:
    batch = [row for n in range(2) for row in sent(0x700 + n, at_ms=20_000, process="0BA7C4000000")]
    batch = [{**row, "batch_size": 2, "span_id": "b" * 16 if row["side"] == "otlp" else None} for row in batch]
    ids = [uid(0x700 + n, at_ms=20_000, process="0BA7C4000000") for n in range(2)]
    call = {"batch_size": 2, "group": "mixed"}
    return [
        *batch,
        *(row for name in ("PLAIN", "OTHER") for row in delivery(name, group="mixed", attempt=f"{name}1", at_ms=90)),
        *(taken(name, group="mixed", at_ms=90) for name in ("PLAIN", "OTHER")),
        taken("SPACED", group="ns1%mixed", at_ms=19_000),
        # PLAIN before a batch-sent message: the whole call is missing. OTHER behind one: only OTHER's record is.
        *(taken(name, at_ms=21_000, call="c", record_index=n, **call) for n, name in enumerate(("PLAIN", ids[0]))),
        *(taken(name, at_ms=22_000, call="d", record_index=n, **call) for n, name in enumerate((ids[1], "OTHER"))),
    ]


def _without_ids() -> list:
    span = {"group": "ns1%odd", "attempt": None, "topic": "odd", "service": "odd", "writer": "other"}
    return [
        *(publish(side, "PAIRED", at_ms=30_000, topic="odd") for side in ("native", "otlp")),
        *delivery("N1", group="odd", at_ms=30_500),
        *(consumed(None, at_ms=at_ms, **span) for at_ms in (30_501, 80_000, 90_000)),
        *delivery("N3", group="odd", at_ms=60_000),
        publish("native", "N7", at_ms=80_000, topic="odd", writer="rocketmq"),
        *(row for name in ("N5", "N6") for row in delivery(name, group="odd", at_ms=90_000)),
        *delivery("N4", group="odd", attempt="A4", at_ms=70_000),
        consumed("N4", group="odd", attempt="A4", at_ms=70_000),
    ]


SAMPLER = "5A5A00000000"
OUTAGE = range(37_000, 44_800, 195)


def _sampled() -> list:
    """Return sends of a process that samples every other one; during the outage none has a span, sampled or not."""
    times = [*range(0, 36_000, 225), *OUTAGE, *range(53_000, 61_000, 225)]
    made = [(number, at_ms, sent(0x1000 + number, at_ms=at_ms, process=SAMPLER)) for number, at_ms in enumerate(times)]
    spans = [rows[:1] if number % 2 and number < len(times) - 1 else rows for number, _, rows in made]
    kept = [rows[:1] if at_ms in OUTAGE else rows for (_, at_ms, _), rows in zip(made, spans, strict=True)]
    links = [
        taken(rows[0]["msg_id"], group="mixed", at_ms=at_ms, call=f"{number % 16:x}", batch_size=2)
        for number, at_ms, rows in made[:20]
    ]
    linked = [{**row, "sent_sampled": number % 2 == 0} for number, row in enumerate(links)]
    traced = sent(0x1FFF, at_ms=62_000, process=SAMPLER)  # it was sampled: its delivery's span is lost
    lost = delivery(traced[0]["msg_id"], group="mixed", attempt="LOST1", at_ms=62_100, batch_size=1)
    # a batch decides for itself: the span of one call is missing, half of the other's
    batches = [
        row
        for name, at_ms in (("WHOLE", 63_000), ("PART", 64_000))
        for n in range(2)
        for row in delivery(f"{name}{n}", group="mixed", attempt=name, at_ms=at_ms, batch_size=2)
    ]
    half = consumed("PART1", group="mixed", attempt="PART", at_ms=64_000, batch_size=2)
    return [*(row for rows in kept for row in rows), *linked, *traced, *lost, *batches, half]


def _same_place() -> list:
    """Return a call whose last place is taken twice: by a message sent in a batch, and by one that was not."""
    batch = [row for n in range(2) for row in sent(0x7F0 + n, at_ms=24_000, process="0BA7C4000000")]
    batch = [{**row, "batch_size": 2, "span_id": "e" * 16 if row["side"] == "otlp" else None} for row in batch]
    sent_in_batch = uid(0x7F0, at_ms=24_000, process="0BA7C4000000")
    calls = {"e": ("FIRST", sent_in_batch), "f": (sent_in_batch, "SECOND")}
    both = ((name, call) for call, names in calls.items() for name in names)
    return [*batch, *(taken(name, group="mixed", at_ms=25_000, call=call, batch_size=2) for name, call in both)]


@pytest.fixture(scope="module")
def answers():
    silent = [taken(f"QUIET{number}", group="quiet", at_ms=80_000 + 2_000 * number) for number in range(20)]
    events = [*_sequence(), *_calls(), *_without_ids(), *_sampled(), *_same_place(), *silent, *ends()]
    events += sent(0x900, at_ms=8_000, traced=False, topic="trace-of-orders-2")
    for number in range(3):
        events += sent(0xA00 + 9 * number, at_ms=8_500 + 500 * number, traced=number != 1, topic="trace-of-orders")
    events.append(event("otlp", "publish", None, scope="NOT_MESSAGING", start_ms=START_MS, end_ms=START_MS))
    return explained(events, lambda row: (row["msg_id"], row["kind"], row["event_ms"] - START_MS))


UNTRACED = ("BY_DESIGN", "producer_made_no_trace_context")
NAMED_LIKE_TRACE_TOPIC = ("BY_DESIGN", "rocketmq_skips_topics_named_like_the_trace_topic")
UNEXPLAINED = ("UNEXPLAINED", None)
LOST_CALL = ("BY_DESIGN", "rocketmq_records_no_call_that_ends_with_a_batch_sent_message")
DEGRADED = ("KEY_DEGRADED", "partner_without_id")
REASONS = {
    "send whose next id is another message's": (uid(0x200, at_ms=2_000), 2_000, UNTRACED),
    "send before a one-way send with its context": (uid(0x500, at_ms=5_000), 5_000, UNTRACED),
    "lost send whose context took the next id": (uid(0x300, at_ms=3_000), 3_000, UNEXPLAINED),
    "lost send that another overlaps": (uid(0x400, at_ms=4_000), 4_000, UNEXPLAINED),
    "lost send before a one-way send": (uid(0x600, at_ms=6_000), 6_000, UNEXPLAINED),
    "lost send to a topic of a namespace": (uid(0x800, at_ms=7_000), 7_000, UNEXPLAINED),
    "send to a topic named like the trace topic": (uid(0x900, at_ms=8_000), 8_000, NAMED_LIKE_TRACE_TOPIC),
    "lost send to such a topic with records": (uid(0xA09, at_ms=9_000), 9_000, UNEXPLAINED),
    "lost delivery to a group of a namespace": ("SPACED", 19_000, UNEXPLAINED),
    "call that ends with a batch-sent message": ("PLAIN", 21_000, LOST_CALL),
    "lost delivery behind a batch-sent message": ("OTHER", 22_000, UNEXPLAINED),
    "call with two last messages, the first not batch-sent": ("FIRST", 25_000, UNEXPLAINED),
    "call with two last messages, the second not batch-sent": ("SECOND", 25_000, UNEXPLAINED),
    "record near a span without an id": ("N1", 30_500, DEGRADED),
    "span without an id": (None, 30_501, DEGRADED),
    "record far from any span without an id": ("N3", 60_000, UNEXPLAINED),
    "two records near one span without an id": ("N5", 90_000, UNEXPLAINED),
    "span without an id near two records": (None, 90_000, UNEXPLAINED),
    "span of a delivery without an id near the record of a send": (None, 80_000, UNEXPLAINED),
    "batch without a span": ("WHOLE0", 63_000, ("NOT_SAMPLED", "whole_call")),
    "message left out of the span of its batch": ("PART0", 64_000, UNEXPLAINED),
    "delivery to a group without any record": ("QUIET7", 94_000, ("WRITER_SILENT", "group")),
    "lost delivery of a sampled send": (uid(0x1FFF, at_ms=62_000, process=SAMPLER), 62_100, UNEXPLAINED),
}


@pytest.mark.parametrize(("msg_id", "at_ms", "reason"), REASONS.values(), ids=REASONS)
def test_key_has_its_reason(answers, msg_id, at_ms, reason):
    assert {why for (own_id, _, began_ms), why in answers.items() if (own_id, began_ms) == (msg_id, at_ms)} == {reason}


def test_sampler_explains_its_share_but_no_outage(answers):
    """Half of the sends have no span, by chance; for eight seconds none at all has: those are lost."""
    sends = {msg_id: at_ms for msg_id, kind, at_ms in answers if kind == "publish" and SAMPLER in (msg_id or "")}
    reasons = {at_ms: answers[msg_id, "publish", at_ms] for msg_id, at_ms in sends.items()}
    assert {reasons[at_ms] for at_ms in OUTAGE} == {UNEXPLAINED}
    others = Counter(why for at_ms, why in reasons.items() if at_ms not in OUTAGE)
    assert set(others) == {("NOT_SAMPLED", "whole_message"), ("NOT_SAMPLED", "link_flags")}
    assert others["NOT_SAMPLED", "whole_message"] > 60


def test_explainers_are_tried_in_the_order_of_their_reasons():
    places = [list(Reason).index(each.reason) for each in EXPLAINERS]
    assert places == sorted(places)


ENDED = "0D0D0D0D0D0D"
MISSING = {
    "BY_DESIGN": [publish("otlp", "NAMED", at_ms=50_000, topic="trace-of-orders-2")],
    "WRITER_SILENT": [taken(f"QUIET{number}", group="quiet", at_ms=2_000 * number) for number in range(20)],
    "SHUTDOWN_WINDOW": [*sent(1, at_ms=0, process=ENDED), sent(2, at_ms=100, process=ENDED)[0]],
    "LATE_BEYOND_RETENTION": [publish("native", "EARLY", at_ms=-100_000)],
}


@pytest.mark.parametrize("left_as", ["UNEXPLAINED", "PENDING", None])
@pytest.mark.parametrize(("reason", "events"), MISSING.items(), ids=MISSING)
def test_what_is_missing_from_this_run_explains_no_key_that_an_earlier_run_left_open(reason, events, left_as):
    """A key that is read again has no ``left_as``: it is judged by what is read, except where the input begins."""
    *others, last = events
    is_read_again = left_as is None and reason != "LATE_BEYOND_RETENTION"
    stories = [({}, reason), ({"first_seen_run": 1, "left_as": left_as}, reason if is_read_again else "UNEXPLAINED")]
    for carried, expected in stories:
        made = explained([*others, {**last, **carried}, *ends()], itemgetter("msg_id", "kind"))
        assert [why for (msg_id, _), (why, _) in made.items() if msg_id == last["msg_id"]] == [expected]


TRACE_OFF = ("BY_DESIGN", "rocketmq_4_records_no_delivery_of_messages_with_trace_off")
LITE_PULL = ("BY_DESIGN", "java_agent_makes_no_span_for_lite_pull")
TWO_GROUPS = ("billing", "shipping")
EXCUSED = {
    "a group without any span": (delivery("K", group="lite", cost_ms=0), [], LITE_PULL),
    "a message without any span": (
        delivery(uid(1, process=SAMPLER), batch_size=1),
        [taken(uid(2, process=SAMPLER), group="mixed", batch_size=2, at_ms=0, sent_sampled=False)],
        ("NOT_SAMPLED", "whole_message"),
    ),
    "a call without any span": (
        [row for name in "KL" for row in delivery(name, attempt="CALL", batch_size=2)],
        [taken("UNSAMPLED", group="mixed", batch_size=2, at_ms=0, sent_sampled=False)],
        ("NOT_SAMPLED", "whole_call"),
    ),
    "a message that no group recorded": (
        [taken("K", group=group, at_ms=2_000) for group in TWO_GROUPS],
        [row for group in TWO_GROUPS for row in delivery("SEEN", group=group, attempt=f"S{group}", at_ms=1_000)],
        TRACE_OFF,
    ),
    "a send whose next id is another message's, seconds later": (
        sent(0x100, at_ms=0, traced=False),
        sent(0x101, at_ms=8_000),
        UNTRACED,
    ),
}


@pytest.mark.parametrize("left_as", [None, "PENDING", "UNEXPLAINED", "DROP_ATTRIBUTED"])
@pytest.mark.parametrize(("key", "others", "reason"), EXCUSED.values(), ids=EXCUSED)
def test_what_an_earlier_run_called_lost_is_excused_by_nothing_that_this_run_lacks(key, others, reason, left_as):
    """What was still pending was never judged: it is, by what is read now."""
    was_lost = left_as in {"UNEXPLAINED", "DROP_ATTRIBUTED"}
    carried = [{**row, "first_seen_run": 1, "left_as": left_as} for row in key]
    made = explained([*carried, *others, *ends()], itemgetter("msg_id", "group"), "rocketmq-4.9.8")
    ids = {row["msg_id"] for row in key}
    assert {why for (msg_id, _), why in made.items() if msg_id in ids} == {UNEXPLAINED if was_lost else reason}


MUTE_PROCESSES = {"mute": "0000000000AA", "rare": "0000000000AB"}
MUTE_SENDS = {name: uid(0, at_ms=230_000, process=process) for name, process in MUTE_PROCESSES.items()}
SILENT_SERVICE = ("WRITER_SILENT", "service and topic")


@pytest.fixture(scope="module")
def older_answers():
    off = [taken("OFF", group=group, at_ms=200_000 + n) for n, group in enumerate((*TWO_GROUPS, "ns1%billing"))]
    half_off = [taken("HALF", group=group, at_ms=210_000) for group in TWO_GROUPS]
    half_off += delivery("HALF", group="shipping", at_ms=210_000)
    only = [taken("ONLY", group=group, at_ms=188_000) for group in ("billing", "ns1%billing")]
    burst = [taken(f"BURST{n}", group=f"ns1%{group}", at_ms=205_000 + 10 * n) for n in range(5) for group in TWO_GROUPS]
    seen = [
        row
        for n, group in enumerate(TWO_GROUPS)
        for name, at_ms in (("SEEN", 190_000), ("LATER", 203_000), ("BEHIND", 206_000))
        for row in (*delivery(name, group=group, attempt=f"S{n}", at_ms=at_ms), taken(name, group=group, at_ms=at_ms))
    ]
    early = [agent(publish("otlp", "EARLY", service="shop", batch_size=1), group_name=None)]
    mute = [
        {**row, "service": service, "topic": "orders"}
        for service, sends in (("mute", 12), ("rare", 9))
        for n in range(sends)
        for row in sent(n * 2, at_ms=230_000 + 2_000 * n, traced=False, process=MUTE_PROCESSES[service])
    ]
    events = [*off, *half_off, *only, *burst, *seen, *early, *mute, *sent(9, at_ms=185_000), *ends()]
    return explained(events, itemgetter("msg_id", "group"), "rocketmq-4.9.8")


OLDER_REASONS = {
    "message that no group recorded": ("OFF", (*TWO_GROUPS, "ns1%billing"), TRACE_OFF),
    "message that one of two groups recorded": ("HALF", ("billing",), UNEXPLAINED),
    "message of one group, by two names": ("ONLY", ("billing", "ns1%billing"), UNEXPLAINED),
    **{
        f"burst {n} that no group recorded": (f"BURST{n}", ("ns1%billing", "ns1%shipping"), UNEXPLAINED)
        for n in range(5)
    },
    "span before the other input begins": ("EARLY", (None,), ("LATE_BEYOND_RETENTION", "before_first_native")),
    "service without any record, though others send to its topic": (MUTE_SENDS["mute"], (None,), SILENT_SERVICE),
    "fewer than ten sends of a service, and no record of them": (MUTE_SENDS["rare"], (None,), UNEXPLAINED),
}


@pytest.mark.parametrize(("msg_id", "groups", "reason"), OLDER_REASONS.values(), ids=OLDER_REASONS)
def test_key_beside_older_clients_has_its_reason(older_answers, msg_id, groups, reason):
    assert {older_answers[msg_id, group] for group in groups} == {reason}


@pytest.mark.parametrize(("writer", "reason"), [("mqtrace", UNEXPLAINED), ("other", TRACE_OFF)])
def test_design_of_other_writers_excuses_no_span_of_ours(writer, reason):
    off = [taken("OFF", group=group, at_ms=200_000, writer=writer) for group in TWO_GROUPS]
    calls = [(f"{group}{at_ms}", group, at_ms) for group in TWO_GROUPS for at_ms in (190_000, 210_000)]
    known = [row for name, group, at_ms in calls for row in delivery(name, group=group, attempt=name, at_ms=at_ms)]
    mixed = {"writer": "mqtrace+rocketmq-4.9.8", "profile": "mqtrace+java-agent"}
    made = explained([*off, *known, *ends()], itemgetter("msg_id", "group"), **mixed)
    assert {made["OFF", group] for group in TWO_GROUPS} == {reason}


# -- Producers that are proven not to trace: which of their other sends that excuses, and which it does not
CLIENT, GROUP = "10.0.0.7", "PG_mute"
NOT_TRACED = ("BY_DESIGN", "producer_not_traced")


def span(counter: int, at_ms: int, **fields: Any) -> dict[str, Any]:
    named = {"client_host": CLIENT, "group_name": GROUP, "offset_msg_id": None, "writer": "other", "service": "shop"}
    own = {"batch_size": 1, "record_index": 0, "id_source": "own"}
    return publish("otlp", uid(counter, at_ms=at_ms), at_ms=at_ms, **{**named, **own, **fields})


def mute(sends: int = 3, **fields: Any) -> list[dict[str, Any]]:
    """Return spans of sends with consecutive ids: each but the last proves that its producer made no context."""
    return [span(0x10 + number, 100 * number, **fields) for number in range(sends)]


def recorded(at_ms: int, *, host: str | None, group: str, process: str = "0E0E0E0E0E0E") -> list[dict[str, Any]]:
    msg_id = uid(7, at_ms=at_ms, process=process)
    native = publish("native", msg_id, at_ms=at_ms, writer="rocketmq", batch_size=1, group_name=group)
    return [native, publish("otlp", msg_id, at_ms=at_ms, client_host=host, group_name=group, writer="other")]


def explain_sends(*events: dict[str, Any]) -> dict[str, tuple[str, str | None]]:
    traced = recorded(300_000, host=CLIENT, group="PG_traced", process="62BB60E53B93")  # the process goes on
    others = [*traced, *recorded(400_000, host="10.0.0.9", group="PG_other"), *delivery("D", at_ms=0)]
    return explained([*events, *others, consumed("D", at_ms=0)], itemgetter("msg_id"), grace_ms=0)


def reason_of(answers: dict[str, tuple[str, str | None]], number: int) -> tuple[str, str | None]:
    return answers[uid(0x10 + number, at_ms=100 * number)]


OF_ITS_GROUP = [*delivery("E", group=GROUP, at_ms=1_000), consumed("E", group=GROUP, at_ms=1_000)]
LEFT = {"first_seen_run": 1, "left_as": "PENDING"}
LAST_SENDS = {
    "after two that are proven": (mute(), [UNTRACED, UNTRACED, NOT_TRACED]),
    "after one that is proven": (mute(2), [UNTRACED, UNEXPLAINED]),
    "spans without the host": (mute(client_host=None), [UNTRACED, UNTRACED, UNEXPLAINED]),
    "spans without the group": (mute(group_name=None), [UNTRACED, UNTRACED, UNEXPLAINED]),
    "left open by an earlier run": ([*mute(2), span(0x12, 200, **LEFT)], [UNTRACED, UNTRACED, UNEXPLAINED]),
    "read again": ([*mute(2), span(0x12, 200, first_seen_run=1)], [UNTRACED, UNTRACED, NOT_TRACED]),
    "a native delivery is no record of it": ([*mute(), *OF_ITS_GROUP], [UNTRACED, UNTRACED, NOT_TRACED]),
}


@pytest.mark.parametrize(("events", "reasons"), LAST_SENDS.values(), ids=LAST_SENDS)
def test_last_send_of_a_producer_is_not_traced_after_two_that_are_proven(events, reasons):
    answers = explain_sends(*events)
    assert [reason_of(answers, number) for number in range(len(reasons))] == reasons


@pytest.mark.parametrize(
    ("host", "group", "reason"),
    [
        (CLIENT, GROUP, UNEXPLAINED),
        (f"shop-1/{CLIENT}", f"ns1%{GROUP}", UNEXPLAINED),
        (None, GROUP, UNEXPLAINED),  # it may be of this very producer
        ("10.0.0.8", GROUP, NOT_TRACED),
        *((host, "PG_else", NOT_TRACED) for host in (CLIENT, None)),
    ],
)
def test_one_native_record_of_the_producer_leaves_its_sends_unexplained(host, group, reason):
    assert reason_of(explain_sends(*mute(), *recorded(200_000, host=host, group=group)), 2) == reason


def test_another_producer_of_the_same_process_is_not_excused():
    assert explain_sends(*mute(), span(0x90, 900, group_name="PG_traced"))[uid(0x90, at_ms=900)] == UNEXPLAINED
