"""Bodies read by columns equal the codec's records in every column."""

import base64
from collections import Counter
from hashlib import blake2b

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from otel_mqtrace.model import ContextCode
from otel_mqtrace.wire.native.decode import BadRecord, decode_values, text_of
from otel_mqtrace.wire.native.layout import FIELDS, FORMS, KEPT_FIELDS
from spark_jobs.normalise import native
from spark_jobs.normalise.native import record_columns
from spark_jobs.schemas import BODY, InputCounts, mentioned_in
from tests.spark_jobs.normalise.made_bodies import ODD, USUAL, bodies
from tests.support.native_vectors import VECTORS, json_lines

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
    batch, count = pa.RecordBatch.from_pylist(placed, schema=BODY), InputCounts()
    batches = [batch] if cut is None else [batch.slice(at, cut) for at in range(0, len(batch), cut)]
    parts = record_columns(batches, count, msg_type_map=msg_type_map, charset=charset)
    return [row for part in parts for row in pa.table(part).to_pylist()], count.expected


def expected(rows, *, msg_type_map="a", charset="utf-8"):
    """Return the same as the codec reads it, without any column."""
    rows_read, count = [], 0
    for line, row in enumerate(rows):
        body = {"path": f"p{line % 3}", "line": line, "arrival_ms": line * 10}
        if isinstance(row, dict):
            empty = {**dict.fromkeys(KEPT_FIELDS), "type": None, "hash": hash_of("")}
            rows_read.append({**body, **empty, "bad": row, "record_index": 0, "call_size": 1, "surplus": 0})
            count += 1
            continue
        text = text_of(row or b"", charset).encode("utf-8", "replace").decode()
        pieces = sum(1 for piece in text.split("\x02") if piece)
        records = list(decode_values(text, msg_type_map=msg_type_map))
        calls = Counter(call_of(fields) for (fields, _), _ in records)
        count += pieces
        for index, ((fields, quirk), values) in enumerate(records):
            own_text = "\x01".join(fields) + ("\x01" if quirk else "")
            rows_read.append(
                {
                    **body,
                    **value_columns(fields, values),
                    "record_index": index,
                    "call_size": calls[call_of(fields)] if call_of(fields) else 1,
                    "surplus": 0 if index else len(records) - pieces,
                    "hash": hash_of(own_text),
                }
            )
    return rows_read, count


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
    (rows_read, count), (wanted, wanted_count) = read(rows, **options, cut=cut), expected(rows, **options)
    assert count == wanted_count
    assert [dict(sorted(row.items())) for row in rows_read] == [dict(sorted(row.items())) for row in wanted]


ROWS = st.lists(
    bodies() | bodies() | st.binary(max_size=16) | st.sampled_from([NO_BODY, None, b"", b"\x02", b"x\x02"]), max_size=8
)


@settings(max_examples=80)
@given(rows=ROWS, msg_type_map=st.sampled_from("ab"), charset=st.sampled_from(CHARSETS), cut=st.sampled_from([None, 3]))
def test_mixed_bodies_equal_the_codec(rows, msg_type_map, charset, cut):
    assert_equal_to_codec(rows, msg_type_map=msg_type_map, charset=charset, cut=cut)


@settings(max_examples=80)
@given(rows=st.lists(bodies(), min_size=1, max_size=8), msg_type_map=st.sampled_from("ab"))
def test_bodies_over_several_blocks_equal_the_codec(rows, msg_type_map):
    with pytest.MonkeyPatch.context() as patch:
        for name, size in (("_BLOCK_BYTES", 300), ("_MOST_HELD", 200), ("MOST_ROWS", 5), ("MOST_TEXT", 400)):
            patch.setattr(native, name, size)
        assert_equal_to_codec(rows, msg_type_map=msg_type_map)


@pytest.mark.parametrize("path", sorted(VECTORS.rglob("*.jsonl")), ids=lambda path: path.stem)
@pytest.mark.parametrize("msg_type_map", ["a", "b"])
@pytest.mark.parametrize("charset", ["utf-8", "gbk"])
def test_vector_equals_the_codec(path, msg_type_map, charset):
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


def test_record_lost_by_the_columns_breaks_the_balance(monkeypatch):
    """Records are counted in the bytes, whatever the reader makes of them."""
    read_text = native.read_text

    def read_less(data, bounds, **how):
        decoded = read_text(data, bounds, **how)
        columns = {name: column.slice(1) for name, column in decoded.columns.items()}
        return type(decoded)(columns, decoded.body[1:], decoded.is_odd)

    monkeypatch.setattr(native, "read_text", read_less)
    rows_read, count = read(ordinary_bodies(3))
    assert (len(rows_read), count) == (179, 180)
