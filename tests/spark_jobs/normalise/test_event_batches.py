"""A batch of spans becomes a batch of events, whatever stands in it and however it is cut."""

from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bridge.otlp.roles import ALIASES
from spark_jobs.jobs.naming import claims_in, resolve_positions
from spark_jobs.normalise.spans import event_batches
from spark_jobs.normalise.values import hash_spans
from spark_jobs.schemas import EVENT
from tests.spark_jobs.normalise.made_spans import BAD_ROW, batch, events, span
from tests.support import otlp_json
from tests.support.reading import events_of, malformed_of, otlp_side, rows_in

ID, OTHER = "C000020262BB60E53B936993952C0000", "C000020262BB60E53B936993952C0001"
ID_NAME = ALIASES["msg_id"].names[0]
NAMES = sorted({name for alias in ALIASES.values() for name in (*alias.names, *alias.arrays)})
VALUES = (
    *(None, "", " ", "null", "dKey", "true", "kafka", "send", "process", "create", "Pub", "Sub", "before", "SEND_OK"),
    *("5", " 5 ", "-1", "9" * 30, ID.lower(), "a,b", ",", "t.1.2", "t", '["a b"]', "['a']", "[1,", "FAILED", "é\u2028"),
)
PAIRS = st.dictionaries(st.sampled_from(NAMES), st.sampled_from(VALUES), max_size=8)
SPANS = st.builds(
    span,
    PAIRS,
    links=st.lists(st.tuples(PAIRS, st.sampled_from([None, 0, 1, 256, 257])), max_size=3),
    kind=st.sampled_from(["PRODUCER", "CONSUMER", "INTERNAL"]),
    scope=st.sampled_from([None, "otel_mqtrace", "io.opentelemetry.kafka", "lib"]),
    status=st.sampled_from(["UNSET", "ERROR"]),
    flags=st.sampled_from([0, 1, 257]),
    start_ns=st.sampled_from([0, 5_000_000_999]),
)
ROWS = st.lists(st.one_of(SPANS, st.just(BAD_ROW)), min_size=1, max_size=8)


@settings(max_examples=60)
@given(rows=ROWS, cut=st.integers(0, 8))
def test_rows_keep_their_order_and_batches_may_be_cut_anywhere(rows, cut):
    rows = [{**row, "line": at} for at, row in enumerate(rows)]
    found, whole = events(*rows), batch(*rows)
    assert len(found) == len(rows) + sum(event["extra"] or 0 for event in found)
    assert [event["line"] for event in found if not event["extra"]] == list(range(len(rows)))
    seen = [(event["line"], event["record_index"]) for event in found]
    assert seen == sorted(seen, key=lambda place: (place[0], place[1] or 0))
    assert len(set(seen)) == len(seen)
    slices = [whole.slice(0, cut), whole.slice(cut, 1), whole.slice(cut + 1)]
    assert [event for one in event_batches(slices) for event in one.to_pylist()] == found


def test_bad_span_is_one_row():
    """Half a span would be compared as if it were a whole."""
    bad = {"field": "start_ns", "reason": "not a number", "text": "soon", "mentions": [ID]}
    (row,) = events(span({"messaging.system": "kafka", "messaging.message.id": "a,b"}, links=[{}, {}], bad=bad))
    kept = {name for name, value in row.items() if value is not None}
    assert kept == {"side", "path", "line", "record_index", "raw_hash", "bad", "extra"}


SEND = {"messaging.system": "kafka", "messaging.operation.type": "send"}
OWN = {"group_name": "pg", "offset_msg_id": "orders-0@5", "store_host": "h:1"}
OWN |= {"region_id": "r", "msg_type": "Delay_Msg"}


@pytest.mark.parametrize(
    ("given_id", "links", "ids"),
    [
        (None, [], [None]),
        ("null", [], [None]),
        ("x", [], ["x"]),
        ("a b,cd,", [], ["a b", "CD", None]),
        (ID.lower(), [{}], [ID]),
        (None, [{"messaging.message.id": "x"}, {"messaging.message.id": "y"}], ["x", "y"]),
        ("x", [{"messaging.message.id": "y"}, {"mqtrace.offset_msg_id": "p"}], ["y", "x"]),
        ("x,y", [{"messaging.message.id": "y"}], ["x", "y"]),
        (None, [{"messaging.header.UNIQ_KEY": '["x"]'}, {}], ["x", None]),
    ],
)
def test_span_has_an_event_for_each_message_it_names(given_id, links, ids):
    rows = events(span({**SEND, "messaging.message.id": given_id}, links=links))
    assert [event["msg_id"] for event in rows] == ids
    assert {event["batch_size"] for event in rows} == {len(ids)}


def test_link_of_our_span_that_names_nothing_is_no_message():
    """It leads to the application's current span, or the application has added it."""
    ours = span({**SEND, ID_NAME: "x", "mqtrace.trace_type": "Sub"}, links=[{}, {OFFSET: "7"}, {}])
    found = events(ours, span(SEND, links=[{ID_NAME: "y"}, {}]), ours)
    assert [event["msg_id"] for event in found] == ["x", "y", None, "x"]
    assert [link["span_id"] for event in found for link in event["links"]] == [f"{at:016x}" for at in (2, 1, 2, 2)]


def test_message_has_its_own_link_and_the_first_the_others():
    own = events(span(SEND, links=[{"messaging.message.id": "x"}, {"messaging.message.id": "y"}]))
    assert [[link["span_id"] for link in event["links"]] for event in own] == [["0" * 15 + "1"], ["0" * 15 + "2"]]
    shared = events(span({**SEND, "messaging.message.id": "x,y"}, links=[{}, {}]))
    assert [event["links"] and len(event["links"]) for event in shared] == [2, None]


def test_weaker_name_is_read_without_the_stronger():
    names = ALIASES["group_name"].names
    (row,) = events(span({**SEND, names[0]: None, names[2]: "weak", names[1]: "strong"}))
    assert row["group_name"] == "strong"
    links = [{ID_NAME: "x", names[3]: "of the link"}, {ID_NAME: "y"}]
    rows = events(span({**SEND, names[0]: "of the span"}, links=links))
    assert [event["group_name"] for event in rows] == ["of the link", "of the span"]


@pytest.mark.parametrize(
    ("thread", "group"),
    [
        ("g_1", "g"),
        ("a_b_1_22", "a_b_1"),
        ("g_1\r\n", "g"),
        ("g_1\n\n", None),
        ("g\u2028_1", None),
        ("g_x", None),
        *((f"{'g' * size}_1", known) for size, known in ((99, "g" * 99), (100, None))),  # cut off, perhaps
    ],
)
def test_listener_thread_names_the_group(thread, group):
    """As Java reads the name, line ends included; a sender's thread says nothing."""
    thread_name = {"thread.name": f"ConsumeMessageThread_{thread}"}
    delivery = span({"messaging.system": "rocketmq", "messaging.operation": "process", **thread_name})
    assert [event["group_name"] for event in events(delivery, span({**SEND, **thread_name}))] == [group, None]


@pytest.mark.parametrize(
    ("own", "link", "kind", "expected"),
    [
        (1, 1, "process", True),
        (1, 257, "process", True),
        (1, 256, "process", False),
        (1, 0, "process", None),
        (1, None, "process", None),
        (0, 257, "process", None),
        (1, 257, "send", None),
    ],
)
def test_delivery_has_the_sampled_flag_of_its_send(own, link, kind, expected):
    """A writer that never sets the bit says nothing by leaving it out."""
    (row,) = events(span({**SEND, "messaging.operation.type": kind}, links=[({}, link)], flags=own))
    assert row["sent_sampled"] is expected


@pytest.mark.parametrize(
    ("attributes", "columns"),
    [
        ({"mqtrace.cost_time": " 7 "}, {"cost_ms": 7, "start_ms": 5000, "end_ms": 7000}),
        ({"mqtrace.cost_time": "soon"}, {"cost_ms": 2000}),
        ({"mqtrace.half": "before", "mqtrace.cost_time": "7"}, {"cost_ms": None, "end_ms": None, "half": "before"}),
        ({"messaging.batch.message_count": "3"}, {"batch_size": 3}),
        ({"messaging.operation.type": "create"}, {"batch_size": None}),
        ({"mqtrace.keys": '["b a","a"]'}, {"keys": ["a", "b"]}),
        ({"mqtrace.keys": '[""]', "messaging.header.KEYS": '["k"]'}, {"keys": None}),
        ({"mqtrace.keys": "no array", "messaging.header.KEYS": '["k"]'}, {"keys": ["k"]}),
        ({"mqtrace.tags": "null", "mqtrace.region_id": "dKey"}, {"tags": None, "region_id": None}),
        ({"messaging.message.body.size": "2147483648"}, {"body_length": None}),
        ({"messaging.header.UNIQ_KEY": '["x"]'}, {"msg_id": "x", "id_source": "header"}),
        ({"messaging.message.id": "x"}, {"msg_id": "x", "id_source": "own"}),
        ({}, {"msg_id": None, "id_source": None}),
        ({"messaging.destination.name": "orders"}, {"topic": "orders"}),
        ({"messaging.message.body.size": "7"}, {"body_length": 7}),
        (
            {f"mqtrace.{name}": text for name, text in {**OWN, "trace_type": "Pub", "success": "false"}.items()},
            {**OWN, "success": False, "context_code": None, "writer": "mqtrace", "service": "svc"},
        ),
        ({"mqtrace.trace_type": "Pub"}, {"kind": "publish", "half": "whole", "scope": None}),
    ],
)
def test_column_has_the_value_of_its_attribute(attributes, columns):
    (row,) = events(span({**SEND, **attributes}))
    assert {name: row[name] for name in columns} == columns


def test_trace_topic_is_known_by_name_prefix_or_option():
    topics = ("orders", "RMQ_SYS_TRACE_TOPIC", "rmq_sys_TRACE_DATA_cn", "mine")
    rows = [span({**SEND, "messaging.destination.name": topic}) for topic in topics]
    assert [event["scope"] for event in events(*rows, trace_topics=["mine"])] == [None, *["TRACE_TRAFFIC"] * 3]


PARTITION, OFFSET = "messaging.destination.partition.id", "messaging.kafka.offset"
LIES = {PARTITION: "3", OFFSET: "77"}


def ids(attributes, links=()):
    kafka = {"messaging.system": "kafka", "messaging.operation.type": "process", "messaging.destination.name": "a.b"}
    return [(event["msg_id"], event["offset_msg_id"]) for event in events(span({**kafka, **attributes}, links=links))]


@pytest.mark.parametrize(
    ("attributes", "msg_id", "place"),
    [
        (LIES, "a.b-3@77", "a.b-3@77"),
        ({**LIES, ID_NAME: "cafe"}, "CAFE", "a.b-3@77"),
        ({**LIES, "mqtrace.offset_msg_id": "beef"}, "BEEF", "BEEF"),
        ({**LIES, ID_NAME: " cafe "}, "CAFE", "a.b-3@77"),
        ({**LIES, ID_NAME: "null"}, None, "a.b-3@77"),
        ({**LIES, OFFSET: "-1"}, None, None),
        ({**LIES, PARTITION: "2147483648"}, None, None),
        ({PARTITION: "3"}, None, None),
        ({PARTITION: "3", "messaging.kafka.message.offset": "77"}, "a.b-3@77", "a.b-3@77"),
        ({ID_NAME: "a.b.3.77"}, "a.b-3@77", "a.b-3@77"),
        ({ID_NAME: "a.b.3.77", **LIES, OFFSET: "78"}, "a.b-3@78", "a.b-3@78"),
        ({ID_NAME: "a.b.3.x"}, "a.b.3.x", None),
        ({ID_NAME: "a.b.3.٣"}, "a.b.3.٣", None),
        ({ID_NAME: "c.3.77"}, "c.3.77", None),
        ({ID_NAME: "a.b.3.77", "messaging.system": "rocketmq"}, "a.b.3.77", None),
        ({}, None, None),
    ],
)
def test_kafka_message_without_an_id_is_identified_by_its_position(attributes, msg_id, place):
    assert ids(attributes) == [(msg_id, place)]


def test_message_of_a_batch_has_its_own_position():
    assert ids({PARTITION: "4"}, [{OFFSET: "7"}, {OFFSET: "8"}]) == [("a.b-4@7", "a.b-4@7"), ("a.b-4@8", "a.b-4@8")]


def test_position_that_one_send_names_is_resolved_to_its_message():
    sends = [
        ("publish", "A", "t-0@7"),
        ("publish", "B", "t-0@9"),
        ("publish", "C", "t-0@9"),  # a topic created anew
        ("recall", "D", "t-0@1"),
        ("publish", "E", "C0A8000100002A9F0000000000000042"),
        ("publish", None, "t-0@2"),
        ("publish", "t-0@3", "t-0@3"),  # by its place itself
    ]
    made = [{"side": "native", "kind": kind, "msg_id": msg_id, "offset_msg_id": place} for kind, msg_id, place in sends]
    made.append({"side": "otlp", "kind": "publish", "msg_id": "F", "offset_msg_id": "t-0@4"})
    events = pa.Table.from_pylist(made, schema=EVENT)
    claims = claims_in({name: events[name].combine_chunks() for name in events.column_names})
    places = ["t-0@7", "t-0@9", "t-0@1", "C0A8000100002A9F0000000000000042", "t-0@2", "t-0@3", "t-0@4", "A", None]
    resolved = resolve_positions(pa.table({"at": places}), claims).to_pylist()
    assert resolved == ["A", "t-0@9", "t-0@1", "E", "t-0@2", "t-0@3", "t-0@4", "A", None]


def hashes(made):
    return hash_spans(dict(zip(made.schema.names, made.columns, strict=True))).to_pylist()


TEXTS = ("trace_id", "parent_span_id", "name", "service", "scope")
NUMBERS = ("start_ns", "end_ns", "flags", "dropped_attributes", "dropped_links")
UNEQUAL = [
    *((span(**{name: None}), span(**{name: ""})) for name in TEXTS),
    *((span(**{name: None}), span(**{name: 0})) for name in NUMBERS),
    *((span(**{name: 1}), span(**{name: 2})) for name in NUMBERS),
    (span(name="xy", service="z"), span(name="x", service="yz")),
    (span({"a": None}), span({"a": ""})),
    (span({"a": "b"}), span({"ab": ""})),
    (span({"a": "1"}, links=[{}]), span(links=[{"a": "1"}])),
    (span(links=[{"a": "1"}, {}]), span(links=[{}, {"a": "1"}])),
    (span(links=[{}]), span()),
]


@pytest.mark.parametrize(("one", "other"), UNEQUAL)
def test_only_equal_spans_have_equal_hashes(one, other):
    """Null is not the empty text, and nothing slips from one text, name or link into the next."""
    first, second, again = hashes(batch(one, other, one))
    assert first == again != second


def test_position_and_neighbours_do_not_change_the_hash():
    one, other = span({"a": "1"}, links=[{"b": "2"}]), span({"longer": "text"}, links=[{}, {"c": None}])
    alone, moved = hashes(batch(one)), hashes(batch({**one, "path": "elsewhere", "line": 9}))
    beside = hashes(batch(other, one, other))
    assert alone == moved == beside[1:2] == hashes(batch(other, one, other).slice(1, 1))
    assert beside == [number for at in range(3) for number in hashes(batch(other, one, other).slice(at, 1))]


OTLP = Path(__file__).parents[2] / "vectors" / "otlp"


def line_of(start="5000000999", tags="T"):
    attributes = {"messaging.system": "kafka", "messaging.operation.type": "send", "mqtrace.tags": tags}
    sent = otlp_json.span(1, otlp_json.PRODUCER, 5, 1, attributes, startTimeUnixNano=start)
    return otlp_json.line(otlp_json.resource("shop", sent))


def test_layouts_give_the_same_events(tmp_path):
    plain = (f"layouts/traces.{layout}" for layout in ("jsonl", "json.zst.framed", "pb.framed", "pb.zst.framed"))
    names = (*plain, "native-zstd/native.jsonl.zst", "native-zstd/native.pb.framed.zst")
    side = otlp_side(tmp_path, *[str(OTLP / name) for name in names])
    assert side.records_read == 6 * 209
    assert side.records_read + side.exploded == len(events_of(side))
    assert len(side.layouts) == 6
    columns = [name for name in EVENT.names if name not in {"path", "line", "raw_hash"}]
    repeated = Counter(repr([row[name] for name in columns]) for row in events_of(side))
    assert set(repeated.values()) == {6}


def test_damage_is_counted_and_located(tmp_path):
    killed = (f"killed/kill.{layout}" for layout in ("jsonl", "pb.framed", "pb.zst.framed", "json.zst.framed"))
    names = (*killed, "append-after-kill/torn.jsonl", "append-after-kill/torn.pb.framed")
    side = otlp_side(tmp_path, *[str(OTLP / name) for name in names])
    assert side.truncated_tails == 4
    assert side.records_read == 67 + 67 + 63 + 57 + 78 + 81 + 2
    damaged = [(Path(row["path"]).name, row["line"]) for row in malformed_of(side)]
    assert sorted(damaged) == [("torn.jsonl", 13), ("torn.pb.framed", 14)]


def test_foreign_line_is_bad_unless_it_is_of_another_signal(tmp_path):
    """Collectors write U+2028 raw."""
    others = ('{"resourceMetrics": []}', '{"resourceLogs": []}', "{}", '{"hello": 1}')
    path = tmp_path / "made.jsonl"
    path.write_text(line_of(tags="a\u2028b\x85c") + "\n".join((*others, line_of("soon"))), encoding="utf-8")
    side = otlp_side(tmp_path, str(path))
    assert side.records_read + side.exploded == len(rows_in(side.files))
    assert [row["tags"] for row in events_of(side)] == ["a\u2028b\x85c"]
    assert sorted((row["line"], row["field"], row["reason"]) for row in malformed_of(side)) == [
        (5, None, "not OTLP traces"),
        (6, "start_ns", "not a number"),
    ]
