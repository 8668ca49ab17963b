"""Native bodies become canonical events exactly as the codec reads them."""

import base64
from collections import Counter
from hashlib import blake2b

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from otel_mqtrace._errors import UsageError
from otel_mqtrace.model import ContextCode
from otel_mqtrace.wire.native.decode import BadRecord, decode_values, text_of
from otel_mqtrace.wire.native.layout import ABSENT_TEXTS, FIELDS, FORMS, KEPT_FIELDS
from spark_jobs.normalise import native
from spark_jobs.normalise.native import native_batches
from spark_jobs.schemas import BODY, READ_EVENT, InputCounts, mentioned_in
from tests.spark_jobs.normalise.made_bodies import ID, ODD, USUAL, batch, bodies, read_bodies
from tests.support.landings import write_landing
from tests.support.native_vectors import VECTORS, json_lines
from tests.support.reading import events_of, malformed_of, native_side

RECORD = f"Recall\x015\x01r\x01g\x01t\x01{ID}\x01true\x02"
GLUED = f"SubAfter\x01REQ\x01{ID}\x013\x01true\x01null\x010\x01"
NO_BODY = {"field": "body", "reason": "no body", "text": "", "mentions": []}
CHARSETS = ("utf-8", "UTF8", "gbk", "gb18030", "latin-1", "ascii", "utf-8-sig", "utf-16", "utf-7")
HALVES = {"SubBefore": ("consume", "before"), "SubAfter": ("consume", "after")}
WHOLE = {"Pub": "publish", "EndTransaction": "transaction_end", "Recall": "recall"}
KINDS = {**HALVES, **{trace_type: (kind, "whole") for trace_type, kind in WHOLE.items()}}
OF_TRANSACTION = ("transaction_state", "from_transaction_check")
AS_READ = ("retry_times", "body_length", "msg_type", "cost_ms", "success", *OF_TRANSACTION)
TEXTS = ("topic", "group_name", "region_id", "tags", "store_host", "client_host")


def read(rows, *, cut=None, **options):
    """Return the events of rows (a body each, or ``NO_BODY``) as mappings, and how many records were counted."""
    placed = [
        {"path": f"p{line % 3}", "line": line, "arrival_ms": line * 10}
        | ({"bad": row} if isinstance(row, dict) else {"body": row})
        for line, row in enumerate(rows)
    ]
    whole, counts = pa.RecordBatch.from_pylist(placed, schema=BODY), InputCounts()
    batches = [whole] if cut is None else [whole.slice(at, cut) for at in range(0, len(whole), cut)]
    parts = native_batches(batches, counts, writer="mqtrace", **options)
    return [event for part in parts for event in part.to_pylist()], counts.expected


def expected(rows, *, msg_type_map="a", charset="utf-8"):
    """Return the same as the codec reads it, without any column."""
    events, count = [], 0
    for line, row in enumerate(rows):
        body = {"path": f"p{line % 3}", "line": line, "arrival_ms": line * 10, "extra": 0}
        if isinstance(row, dict):
            events.append({**body, "bad": row, "record_index": 0, "raw_hash": hash_of("")})
            count += 1
            continue
        text = text_of(row or b"", charset).encode("utf-8", "replace").decode()
        pieces = sum(1 for piece in text.split("\x02") if piece)
        records = list(decode_values(text, msg_type_map=msg_type_map))
        calls = Counter(call_of(fields) for (fields, _), _ in records)
        count += pieces
        for index, ((fields, quirk), values) in enumerate(records):
            place = {
                "record_index": index,
                "batch_size": calls[call_of(fields)] if call_of(fields) else 1,
                "extra": 0 if index else len(records) - pieces,
                "raw_hash": hash_of("\x01".join(fields) + ("\x01" if quirk else "")),
            }
            events += events_of_record(fields, values, {**body, **place})
    nothing = {**dict.fromkeys(READ_EVENT.names), "side": "native", "writer": "mqtrace"}
    return [{**nothing, **event} for event in events], count


def events_of_record(fields, values, place):
    """Yield one event for each message of a record, or the reason why it is none."""
    if isinstance(values, BadRecord):
        mentions = mentioned_in("\x01".join(fields))
        bad = {"field": values.field, "reason": values.reason, "text": values.text, "mentions": mentions}
        yield {**place, "bad": bad, "batch_size": None}
        return
    words = (value.name if isinstance(value, ContextCode) else getattr(value, "value", value) for value in values)
    given = dict(zip(KEPT_FIELDS, words, strict=True))
    at_ms, cost_ms = given["timestamp_ms"], given["cost_ms"]
    ends = {"Pub": (at_ms or 0) + (cost_ms or 0), "SubAfter": at_ms}.get(fields[0])
    shared = {
        **{name: given[name] for name in (*AS_READ, "context_code")},
        **{name: present(given[name]) for name in TEXTS},
        "kind": KINDS[fields[0]][0],
        "half": KINDS[fields[0]][1],
        "attempt_id": folded(given["request_id"]),
        "transaction_id": folded(given["transaction_id"]),
        "keys": sorted({key for key in (given["keys"] or "").split(" ") if present(key)}) or None,
        "start_ms": None if fields[0] == "SubAfter" else at_ms,
        # no time at all rather than a job that dies
        "end_ms": ends if ends is not None and -(2**63) <= ends < 2**63 else None,
    }
    ids, offsets = ((given[name] or "").split(",") for name in ("msg_id", "offset_msg_id"))
    of_batch = {"batch_size": len(ids)} if fields[0] == "Pub" else {}
    are_own = len(ids) in {1, len(offsets)}  # another number of them says nothing of any message
    for at, (msg_id, offset) in enumerate(zip(ids, offsets if are_own else [None] * len(ids), strict=False)):
        own = {"msg_id": folded(msg_id), "offset_msg_id": folded(offset), "raw_hash": place["raw_hash"] + at}
        yield {**place, **shared, **of_batch, **own, **({"extra": 1} if at else {})}


def present(text):
    return None if text is None or text in ABSENT_TEXTS else text


def folded(text):
    known = present(text.strip(" ")) if text is not None else None
    return known.upper() if known and set(known) <= set("0123456789abcdefABCDEF") else known


def call_of(fields):
    at = {"SubBefore": 4, "SubAfter": 1}.get(fields[0])
    return None if at is None or len(fields) == 1 else (fields[0], fields[at] if at < len(fields) else "")


def hash_of(text):
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little", signed=True)


def assert_equal_to_codec(rows, *, cut=None, **options):
    (events, count), (wanted, wanted_count) = read(rows, **options, cut=cut), expected(rows, **options)
    assert events == wanted
    assert count == wanted_count
    assert count + sum(event["extra"] for event in events) == len(events)


WILD = st.lists(st.sampled_from(ODD) | st.text(max_size=6), min_size=1, max_size=17).map("\x01".join)
ROWS = st.lists(
    bodies()
    | bodies()
    | st.lists(WILD, max_size=4).map(lambda texts: "\x02".join(texts).encode("utf-8", "replace"))
    | st.binary(max_size=24)
    | st.sampled_from([NO_BODY, None, b"", b"\x02", b"x\x02"]),
    max_size=8,
)


@settings(max_examples=80)
@given(rows=ROWS, msg_type_map=st.sampled_from("ab"), charset=st.sampled_from(CHARSETS), cut=st.sampled_from([None, 3]))
def test_mixed_bodies_equal_the_codec(rows, msg_type_map, charset, cut):
    assert_equal_to_codec(rows, msg_type_map=msg_type_map, charset=charset, cut=cut)


@settings(max_examples=50)
@given(rows=st.lists(bodies(), min_size=1, max_size=8), msg_type_map=st.sampled_from("ab"))
def test_bodies_over_several_blocks_equal_the_codec(rows, msg_type_map):
    with pytest.MonkeyPatch.context() as patch:
        for name, size in (("_BLOCK_BYTES", 300), ("_MOST_HELD", 200), ("MOST_ROWS", 5), ("MOST_TEXT", 400)):
            patch.setattr(native, name, size)
        assert_equal_to_codec(rows, msg_type_map=msg_type_map)


@pytest.mark.parametrize("path", sorted(VECTORS.rglob("*.jsonl")), ids=lambda path: path.stem)
@pytest.mark.parametrize(("msg_type_map", "charset"), [("a", "utf-8"), ("b", "gbk")])
def test_vector_equals_the_codec(path, msg_type_map, charset):
    rows = [body for line in json_lines(path) for body in bodies_in(line)]
    assert rows
    for cut in (None, 1):
        assert_equal_to_codec(rows, msg_type_map=msg_type_map, charset=charset, cut=cut)


def bodies_in(line):
    for name, value in line.items():
        if name == "body_base64":
            yield base64.b64decode(value)
        elif isinstance(value, str) and "\x02" in value:
            yield value.encode()
        elif isinstance(value, dict):
            yield from bodies_in(value)


def test_spoilt_fields_equal_the_codec():
    rows = []
    for trace_type, forms in FORMS.items():
        for form in forms:
            good = [trace_type.value, *(USUAL[FIELDS[name]][0] for name in form.fields)]
            spoilt = ([*good[:at], text, *good[at + 1 :]] for at in range(len(good)) for text in ODD)
            longer = [[*good, *more] for more in (["x"], [""], ["", ""], ["Pub"], ["SubAfter", "1"])]
            shorter = [good[:count] for count in range(1, len(good))]
            rows += ["\x01".join(fields).encode() + b"\x02" for fields in (*spoilt, *longer, *shorter)]
    assert_equal_to_codec(rows)
    assert_equal_to_codec([b"".join(rows[at : at + 7]) for at in range(0, len(rows), 7)])


def test_bad_record_names_the_messages_of_all_its_fields():
    (event,), _ = read_bodies(f"Pub\x01x\x01r\x01g\x01t\x01{ID}\x01a\x01k\x01h\x011\x011\x010\x02".encode())
    assert event["bad"] == {"field": "timestamp_ms", "reason": "not a number", "text": "x", "mentions": [ID]}


def test_lone_surrogate_of_utf_7_is_a_question_mark():
    """UTF-7 can say one; no column of text can hold it, and no other record may be lost for it."""
    body = f"Recall\x015\x01r\x01g\x01t+2AA-\x01{ID}\x01true\x02".encode()
    events, _ = read_bodies(body, charset="utf-7")
    assert [event["topic"] for event in events] == ["t?"]


def test_records_of_several_bodies_on_a_line_have_positions_of_their_own():
    """A record without ids is known by its position alone; the bodies may come in batches of their own."""
    bodies = [(3, RECORD * 2, False), (3, RECORD + "junk\x02", True)]
    bodies += [(line, RECORD, is_joined) for line in (None, 4, None) for is_joined in (False, True)]
    some = [{"path": "made", "line": line, "body": body.encode(), "is_joined": joined} for line, body, joined in bodies]
    found = []
    for batches in ([some], [some[:1], some[1:]], [[one] for one in some]):
        made = native_batches((batch(*each) for each in batches), InputCounts(), writer="mqtrace")
        events = [event for part in made for event in part.to_pylist()]
        found.append([(event["line"], event["record_index"]) for event in events])
    of_third = [(3, 0), (3, 1), (3, 2), (3, 3)]
    assert found == [[*of_third, *((line, index) for line in (None, 4, None) for index in (0, 1))]] * 3


# -- Records are counted in the bytes, whatever a reader makes of them
def test_record_lost_by_the_codec_breaks_the_balance(monkeypatch):
    decode = native.decode_values
    monkeypatch.setattr(native, "decode_values", lambda *text, **how: list(decode(*text, **how))[1:])
    events, count = read_bodies((RECORD + GLUED + RECORD).encode())
    assert count + sum(event["extra"] for event in events) == len(events) + 1


def test_record_lost_by_the_columns_breaks_the_balance(monkeypatch):
    read_text = native.read_text

    def read_less(data, bounds, **how):
        decoded = read_text(data, bounds, **how)
        columns = {name: column.slice(1) for name, column in decoded.columns.items()}
        return type(decoded)(columns, decoded.body[1:], decoded.is_odd)

    monkeypatch.setattr(native, "read_text", read_less)
    events, count = read_bodies(*[(RECORD * 20).encode()] * 3)
    assert (len(events), count) == (59, 60)


def test_lines_that_hold_no_body_are_counted_and_located(tmp_path):
    path = write_landing(tmp_path / "e.jsonl", b"")
    with path.open("a", encoding="utf-8", newline="") as file:
        file.write('not json\n{"a": 1}\n{"body_base64": "###"}\r\n\r\n \t\n{"body_base64": "UH')
    side = native_side(tmp_path, path)
    assert [row["line"] for row in malformed_of(side)] == [2, 3, 4]
    assert (side.records_read, len(events_of(side)), side.truncated_tails) == (3, 0, 1)
    assert side.layouts == ("landing-jsonl",)


def test_parquet_and_json_lines_of_one_landing_are_read_together(tmp_path):
    body = RECORD.encode()
    day = tmp_path / "land ing+" / "native" / "date=2026-11-21"
    day.mkdir(parents=True)
    write_landing(day / "part-1.jsonl", body, source="T", arrival_ms=1)
    (day / ".part-2.jsonl.inprogress").write_text("junk", encoding="utf-8")
    row = {"source": "TT", "partition": 3, "offset": 7, "arrival_ms": 99, "keys": "k", "body": body}
    parquet.write_table(pa.Table.from_pylist([row]), day / "part-2.parquet")
    side = native_side(tmp_path / "w[1]{2}", tmp_path / "land ing+")
    assert side.layouts == ("landing-jsonl", "landing-parquet")
    assert side.trace_topics == ("T", "TT")
    assert sorted((row["path"], row["line"], row["arrival_ms"]) for row in events_of(side)) == [
        (str(day / "part-1.jsonl"), 1, 1),
        (str(day / "part-2.parquet"), 1, 99),
    ]


def test_charset_and_message_type_map_reach_the_reader(tmp_path):
    fields = ["Pub", "1000", "r", "g", "订单", ID, "a", "k", "h:1", "9", "5", "1", "7F01", "true"]
    path = write_landing(tmp_path / "g.jsonl", ("\x01".join(fields) + "\x02").encode("gbk"))
    (row,) = events_of(native_side(tmp_path, path, charset="gbk", msg_type_map="b"))
    assert (row["topic"], row["msg_type"]) == ("订单", "Order_Msg")


def test_broker_of_rocketmq_is_no_source(tmp_path):
    with pytest.raises(UsageError, match="mqtrace forward --once"):
        native_side(tmp_path, "rocketmq://localhost:9876/T")


def test_time_after_9999_does_not_move_the_end_of_the_data(tmp_path):
    good, far = (f"Recall\x01{at}\x01r\x01g\x01t\x01{ID}\x01true\x02" for at in (5, 2**63 - 1))
    side = native_side(tmp_path, write_landing(tmp_path / "f.jsonl", (good + far).encode()))
    assert (side.records_read, side.last_event_ms) == (2, 5)
