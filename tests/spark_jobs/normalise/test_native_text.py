"""Bodies read column by column say what the codec says of them record by record, in every column."""

from __future__ import annotations

import base64
import re
from collections import Counter
from hashlib import blake2b

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from otel_mqtrace._errors import UsageError
from otel_mqtrace.model import ContextCode, TraceType
from otel_mqtrace.wire.native.charsets import text_of
from otel_mqtrace.wire.native.decode import BadRecord, decode_values
from otel_mqtrace.wire.native.layout import CLOUD_SUB_AFTER, FIELDS, FORMS, KEPT_FIELDS, FieldKind
from spark_jobs.evidence import mentioned_in
from spark_jobs.normalise import native_records
from spark_jobs.normalise.native import native_batches
from spark_jobs.normalise.native_records import RecordCount, record_columns
from spark_jobs.schemas import READ_BODY
from tests.support.native_vectors import RECORDED, VECTORS, json_lines

ID = "C000020262BB60E53B936993952C0000"
NO_BODY = {"field": "body", "reason": "no body", "text": "", "mentions": []}
CHARSETS = ("utf-8", "UTF8", "gbk", "gb18030", "latin-1", "ascii", "utf-8-sig", "utf-16", "utf-7")


def read(rows, *, msg_type_map="a", charset="utf-8", cut=None):
    """Return the records of rows (a body each, or ``NO_BODY``) as mappings, and how many were count."""
    placed = [
        {"path": f"p{line % 3}", "line": line, "arrival_ms": line * 10}
        | ({"bad": row} if isinstance(row, dict) else {"body": row})
        for line, row in enumerate(rows)
    ]
    batch, count = pa.RecordBatch.from_pylist(placed, schema=READ_BODY), RecordCount()
    batches = [batch] if cut is None else [batch.slice(at, cut) for at in range(0, len(batch), cut)]
    parts = record_columns(batches, count, msg_type_map=msg_type_map, charset=charset)
    return [row for part in parts for row in pa.table(part).to_pylist()], count.records


def expected(rows, *, msg_type_map="a", charset="utf-8"):
    """Return the same as the codec reads it, without any column."""
    found, count = [], 0
    for line, row in enumerate(rows):
        body = {"path": f"p{line % 3}", "line": line, "arrival_ms": line * 10}
        if isinstance(row, dict):
            empty = {**dict.fromkeys(KEPT_FIELDS), "type": None, "hash": hash_of("")}
            found.append({**body, **empty, "bad": row, "record_index": 0, "call_size": 1, "surplus": 0})
            count += 1
            continue
        text = text_of(row or b"", charset).encode("utf-8", "replace").decode()
        pieces = sum(1 for piece in text.split("\x02") if piece)
        records = list(decode_values(text, msg_type_map=msg_type_map))
        calls = Counter(call_of(fields) for (fields, _), _ in records)
        count += pieces
        for index, ((fields, quirk), values) in enumerate(records):
            own_text = "\x01".join(fields) + ("\x01" if quirk else "")
            found.append(
                {
                    **body,
                    **value_columns(fields, values),
                    "record_index": index,
                    "call_size": calls[call_of(fields)] if call_of(fields) else 1,
                    "surplus": 0 if index else len(records) - pieces,
                    "hash": hash_of(own_text),
                }
            )
    return found, count


def value_columns(fields, values):
    if isinstance(values, BadRecord):
        mentions = mentioned_in("\x01".join(fields))
        bad = {"field": values.field, "reason": values.reason, "text": values.text, "mentions": mentions}
        return {**dict.fromkeys(KEPT_FIELDS), "type": None, "bad": bad}
    words = (value.name if isinstance(value, ContextCode) else getattr(value, "value", value) for value in values)
    return {**dict(zip(KEPT_FIELDS, words, strict=True)), "type": fields[0], "bad": None}


def call_of(fields):
    at = {"SubBefore": 4, "SubAfter": 1}.get(fields[0])
    return None if at is None or len(fields) == 1 else (fields[0], fields[at] if at < len(fields) else "")


def hash_of(text):
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little", signed=True)


def assert_equal_to_codec(rows, **options):
    cut = options.pop("cut", None)
    (found, count), (wanted, wanted_count) = read(rows, **options, cut=cut), expected(rows, **options)
    assert count == wanted_count
    assert [dict(sorted(row.items())) for row in found] == [dict(sorted(row.items())) for row in wanted]


USUAL = {
    FieldKind.TEXT: ("null", "", ID, ID.lower(), f"{ID},{ID[:-1]}1", "k1 k2", "订单", "dKey", "REQ1", "REQ2"),
    FieldKind.LONG: ("1795262479661", "-5", "0017", "999999999999999999"),
    FieldKind.INT: ("0", "-3", "12", "999999999"),
    FieldKind.BOOL: ("true", "false"),
    FieldKind.MESSAGE_TYPE: ("0", "1", "2", "3", "4"),
    FieldKind.CONTEXT_CODE: ("0", "1", "2", "3", "4"),
    FieldKind.TRANSACTION_STATE: ("COMMIT_MESSAGE", "ROLLBACK_MESSAGE", "UNKNOW"),
}
ODD = (
    *("", "TRUE", "+7", "01", "5", "٣", "0x1F", "1e3", " 1", "1 ", "1_0", "-", "--1", "\n", "x\r", "😀", "a b a"),
    *("2147483647", "2147483648", "9223372036854775807", "99999999999999999999"),
    *("Pub", "SubBefore", "SubAfter", "Recall", "COMMIT_MESSAGE"),
)
ENDS = st.sampled_from(["\x01\x02", "\x01", "", "\x02\x02", "\x01\x01\x02"])


@st.composite
def records(draw, *, most_spoilt):
    """A record of a form in the layout table, with some fields and perhaps its end replaced."""
    trace_type = draw(st.sampled_from(TraceType))
    form = draw(st.sampled_from(FORMS[trace_type]))
    fields = [trace_type.value, *(draw(st.sampled_from(USUAL[FIELDS[name]])) for name in form.fields)]
    for _ in range(draw(st.integers(0, most_spoilt))):
        fields[draw(st.integers(0, len(fields) - 1))] = draw(st.sampled_from(ODD) | st.text(max_size=4))
    is_over_cloud = form == CLOUD_SUB_AFTER and draw(st.booleans())
    end = draw(ENDS) if most_spoilt and draw(st.integers(0, 3)) == 0 else "\x01\x02" if is_over_cloud else "\x02"
    return "\x01".join(fields) + end


@st.composite
def bodies(draw):
    """A body: of ordinary records, of spoilt ones, cut off, or of bytes that are no text."""
    most_spoilt = draw(st.sampled_from([0, 0, 0, 1, 2]))
    text = "".join(draw(st.lists(records(most_spoilt=most_spoilt), min_size=1, max_size=6)))
    body = text.encode(draw(st.sampled_from(["utf-8", "utf-8", "gb18030"])), "replace")
    return body[: draw(st.integers(0, len(body)))] if most_spoilt and draw(st.booleans()) else body


ROWS = st.lists(
    bodies() | bodies() | st.binary(max_size=16) | st.sampled_from([NO_BODY, None, b"", b"\x02", b"x\x02"]), max_size=8
)


@settings(max_examples=200, deadline=None)
@given(rows=ROWS, msg_type_map=st.sampled_from("ab"), charset=st.sampled_from(CHARSETS), cut=st.sampled_from([None, 3]))
def test_any_mix_of_bodies_equals_codec(rows, msg_type_map, charset, cut):
    assert_equal_to_codec(rows, msg_type_map=msg_type_map, charset=charset, cut=cut)


@settings(max_examples=200, deadline=None)
@given(rows=st.lists(bodies(), min_size=1, max_size=8), msg_type_map=st.sampled_from("ab"))
def test_small_blocks_and_parts_equal_codec(rows, msg_type_map):
    """Where a block ends, a body is too long to be held, or a part is full, nothing changes."""
    with pytest.MonkeyPatch.context() as patch:
        for name, size in (("_BLOCK_BYTES", 300), ("_MOST_HELD", 200), ("MOST_ROWS", 5), ("MOST_TEXT", 400)):
            patch.setattr(native_records, name, size)
        assert_equal_to_codec(rows, msg_type_map=msg_type_map)


@pytest.mark.parametrize("path", sorted(VECTORS.rglob("*.jsonl")), ids=lambda path: path.stem)
@pytest.mark.parametrize("msg_type_map", ["a", "b"])
@pytest.mark.parametrize("charset", ["utf-8", "gbk"])
def test_every_vector_equals_codec(path, msg_type_map, charset):
    """Recorded and made bodies of every client, together and one by one."""
    rows = [body for line in json_lines(path) for body in bodies_in(line)]
    assert rows
    assert_equal_to_codec(rows, msg_type_map=msg_type_map, charset=charset)
    assert_equal_to_codec(rows, msg_type_map=msg_type_map, charset=charset, cut=1)


def bodies_in(line):
    """Return the bodies in an object of a vector file: in base64, or as text."""
    for name, value in line.items():
        if name == "body_base64":
            yield base64.b64decode(value)
        elif isinstance(value, str) and "\x02" in value:
            yield value.encode()
        elif isinstance(value, dict):
            yield from bodies_in(value)


def test_every_field_of_every_form_spoilt_in_every_way_equals_codec():
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


def ordinary_bodies(count):
    """Return bodies of 20 sends and 20 deliveries each, as a client writes them."""
    return ["".join(map(ordinary_message, range(at, at + 20))).encode() for at in range(0, 20 * count, 20)]


def ordinary_message(at):
    msg_id, request_id = f"{at:032X}", f"A{at // 3:015X}"
    return (
        f"Pub\x011795219200{at:03}\x01R\x01shop\x01orders\x01{msg_id}\x01t\x01order-{at}\x0110.0.0.1:9092\x01200\x013"
        f"\x010\x01orders-0@{at}\x01true\x02"
        f"SubBefore\x011795219200{at:03}\x01R\x01billing\x01{request_id}\x01{msg_id}\x010\x01order-{at}\x02"
        f"SubAfter\x01{request_id}\x01{msg_id}\x017\x01true\x01order-{at}\x010\x011795219200{at:03}\x01billing\x02"
    )


def test_ordinary_bodies_are_read_without_the_codec(monkeypatch):
    """All that current clients write, over LOCAL and over CLOUD, is read column by column."""
    cloud = f"SubAfter\x01REQ\x01{ID}\x013\x01true\x01null\x010\x01\x02".encode()
    rows = [*ordinary_bodies(30), cloud, ordinary_bodies(1)[0] + cloud]
    wanted = expected(rows)
    monkeypatch.setattr(native_records, "decode_values", None)
    assert read(rows) == wanted


def test_one_odd_body_leaves_the_others_to_the_columns(monkeypatch):
    """The codec is given the odd body and no other; the order of rows stays."""
    decoded = []
    decode = native_records.decode_values
    monkeypatch.setattr(
        native_records, "decode_values", lambda text, **how: decoded.append(text) or decode(text, **how)
    )
    rows = ordinary_bodies(9)
    rows[4] += b"junk\x02"
    rows.insert(2, NO_BODY)
    assert_equal_to_codec(rows)
    assert decoded == [rows[5].decode()]


def test_record_lost_by_the_columns_is_missing_from_due(monkeypatch):
    """What is count is counted in the bytes, whatever the reader makes of them."""
    read_text = native_records.read_text

    def read_less(data, bounds, **how):
        found = read_text(data, bounds, **how)
        columns = {name: column.slice(1) for name, column in found.columns.items()}
        return type(found)(columns, found.body[1:], found.is_odd)

    monkeypatch.setattr(native_records, "read_text", read_less)
    found, count = read(ordinary_bodies(3))
    assert (len(found), count) == (179, 180)


@pytest.mark.parametrize("name", ["app-4.9.8-dup", "scenarios-5.3.3-old"])
def test_dual_recordings_make_the_same_events_whole_and_body_by_body(name):
    """A batch of bodies and one body at a time are cut otherwise, and give the same events."""
    path = RECORDED.parents[1] / "dual" / name / "native.jsonl"
    placed = [
        {"path": "p", "line": line, "body": base64.b64decode(found["body_base64"])}
        for line, found in enumerate(json_lines(path), start=1)
    ]
    whole, single = (
        [row for made in native_batches(batches, writer="mqtrace") for row in made.to_pylist()]
        for batches in (
            [pa.RecordBatch.from_pylist(placed, schema=READ_BODY)],
            [pa.RecordBatch.from_pylist([row], schema=READ_BODY) for row in placed],
        )
    )
    assert whole == single
    assert len(whole) > 250


def test_unknown_charset_and_map_are_refused_before_any_body():
    with pytest.raises(UsageError, match=re.escape("klingon")):
        read([], charset="klingon")
    with pytest.raises(UsageError, match="message type map"):
        read([], msg_type_map="z")
