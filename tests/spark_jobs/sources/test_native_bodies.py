"""Bodies of native landings: lines that no writer of ours makes, parquet of any shape, files of any size."""

import base64
import json

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from bridge.otlp.detect import Side
from bridge.storage.paths import DamagedInputError
from otel_mqtrace._errors import UnreadableInputError
from spark_jobs.schemas import BODY
from spark_jobs.sources import native, splits
from spark_jobs.sources.files import source_files
from spark_jobs.sources.native import body_batches, decode_base64, plan_bodies

LINE = {"source": "T", "arrival_ms": 7, "body_base64": "YQ=="}
NOT_JSON = "no JSON object with body_base64"


def planned(*paths, parallelism=1):
    return plan_bodies(source_files(map(str, paths), Side.NATIVE), parallelism=parallelism)


def bodies_in(*paths, parallelism=2):
    bodies = planned(*paths, parallelism=parallelism)
    return [row for task in bodies.tasks for batch in body_batches(task) for row in batch.to_pylist()]


def read_line(tmp_path, text):
    path = tmp_path / "x.jsonl"
    path.write_bytes(json.dumps(LINE).encode() + b"\n" + (text if isinstance(text, bytes) else text.encode()) + b"\n")
    return bodies_in(path)[1]


@given(st.binary(max_size=200), st.sampled_from([base64.b64encode, base64.encodebytes]), st.booleans())
def test_base64_is_read_with_or_without_its_padding_and_line_ends(data, encode, padded):
    text = encode(data).decode()
    assert decode_base64(text if padded else text.replace("=", "")) == data


@pytest.mark.parametrize("text", ["Y", "YQ=", "Y===", "YWJj=", "YWJj====", "Y=Q=", "-_8=", "é"])
def test_text_that_is_not_base64_throughout_has_no_bytes(text):
    assert decode_base64(text) is None


@pytest.mark.parametrize(
    ("fields", "source", "arrival_ms"),
    [
        ({}, "T", 7),
        ({"source": None, "topic": "U"}, "U", 7),
        ({"source": "", "topic": "U"}, "", 7),
        ({"source": {"b": 1, "a": "x"}}, '{"b":1,"a":"x"}', 7),
        ({"source": "a\ud800"}, "a?", 7),
        ({"arrival_ms": " 12 "}, "T", 12),
        ({"arrival_ms": "12.0", "store_ms": 5}, "T", 5),
        ({"arrival_ms": None, "store_ms": "5"}, "T", 5),
        ({"arrival_ms": 1e3}, "T", None),
        ({"arrival_ms": 2**63, "store_ms": -(2**63)}, "T", -(2**63)),
        ({"arrival_ms": "٣"}, "T", None),
    ],
)
def test_fields_of_landings_and_of_dumps_are_read_alike(tmp_path, fields, source, arrival_ms):
    bodies = read_line(tmp_path, json.dumps({**LINE, **fields}))
    assert (bodies["source"], bodies["arrival_ms"], bodies["body"], bodies["bad"]) == (source, arrival_ms, b"a", None)


@pytest.mark.parametrize(
    ("text", "body"),
    [
        *((text, b"a") for text in ('  {"body_base64":"YQ"}  \r', '{"keys":NaN,"body_base64":"YQ"}')),
        (b'{"keys":"\xff","body_base64":"YQ"}', b"a"),
        ('{"body_base64":"YQ","body_base64":"Yg"}', b"b"),
        ('{"body_base64":1234}', base64.b64decode("1234")),
    ],
)
def test_line_that_begins_with_an_object_has_a_body(tmp_path, text, body):
    bodies = read_line(tmp_path, text)
    assert (bodies["line"], bodies["body"], bodies["bad"]) == (2, body, None)


@pytest.mark.parametrize(
    ("rest", "body", "text"), [(' {"body_base64":"Yg"} ', b"b", None), (" and more", None, "and more")]
)
def test_what_stands_behind_an_object_of_a_line_is_read_too(tmp_path, rest, body, text):
    path = tmp_path / "x.jsonl"
    path.write_text(f'{{"body_base64":"YQ"}}{rest}\n')
    first, second = bodies_in(path)
    assert (first["line"], first["body"], first["bad"]) == (1, b"a", None)
    assert (second["line"], second["body"], second["bad"] and second["bad"]["text"]) == (1, body, text)


@pytest.mark.parametrize(
    ("text", "reason", "sample"),
    [
        ('[{"body_base64":"YQ"}]', NOT_JSON, '[{"body_base64":"YQ"}]'),
        ('{"body_base64":null}', NOT_JSON, '{"body_base64":null}'),
        ('{"Body_Base64":"YQ"}', NOT_JSON, '{"Body_Base64":"YQ"}'),
        ('{"body_base64":"YQ"', NOT_JSON, '{"body_base64":"YQ"'),
        ('{"a":"\t","body_base64":"YQ"}', NOT_JSON, '{"a":"\t","body_base64":"YQ"}'),
        ("\ufeff{}", NOT_JSON, "\ufeff{}"),
        ("null", NOT_JSON, "null"),
        (b"\xff\xfe broken \xc3", NOT_JSON, "\ufffd\ufffd broken \ufffd"),
        ('{"body_base64":5}', "not base64", "5"),
        ('{"body_base64":"YW-Jj"}', "not base64", "YW-Jj"),
        ("x" * 300, NOT_JSON, "x" * 200),
    ],
)
def test_line_without_a_body_is_bad_with_a_reason(tmp_path, text, reason, sample):
    bodies = read_line(tmp_path, text)
    assert bodies["body"] is None
    assert bodies["bad"] == {"field": "body_base64", "reason": reason, "text": sample, "mentions": []}


@pytest.mark.parametrize("msg_id", ["c000020262bb60e53b936993952c0000", "01c000020262bb60e53b936993952c0000"])
def test_bad_line_names_the_messages_that_can_be_read_in_it(tmp_path, msg_id):
    bodies = read_line(tmp_path, "x" * 300 + f" {msg_id} {msg_id.upper()}")
    assert bodies["bad"]["mentions"] == [msg_id.upper()]


@pytest.mark.parametrize(
    ("tail", "is_torn"),
    [(b"", False), (b" \t", False), (b'{"body_base64":"YQ"}', False), (b'{"body_base64":"Y', True), (b"[1]", True)],
)
def test_last_line_that_is_no_object_is_cut_off_and_not_read(tmp_path, tail, is_torn):
    path = tmp_path / "x.jsonl"
    path.write_bytes(json.dumps(LINE).encode() + b"\n" + tail)
    assert planned(path).truncated_tails == is_torn
    assert len(bodies_in(path)) == (1 if is_torn or not tail.strip() else 2)


@pytest.mark.parametrize("start", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("torn", [b"", '{"keys": "键'.encode()[:-1]])
@pytest.mark.parametrize("most", [splits.UNCUT_BYTES, 0])
def test_objects_of_a_last_line_are_read_whatever_is_torn_behind_them(tmp_path, monkeypatch, start, torn, most):
    monkeypatch.setattr(splits, "UNCUT_BYTES", most)
    path = tmp_path / "x.jsonl"
    path.write_bytes(start + json.dumps(LINE).encode() * 3 + torn)
    read = [(row["body"], row["is_joined"]) for row in bodies_in(path)]
    assert read == [(b"a", False), (b"a", True), (b"a", True)]
    assert planned(path).truncated_tails == bool(torn)


@pytest.mark.parametrize("end", ["", "\n"])
def test_rest_of_a_torn_line_that_comes_after_the_plan_is_not_read(tmp_path, end):
    path, whole = tmp_path / "x.jsonl", json.dumps(LINE)
    path.write_text(whole + whole[:9], encoding="utf-8")
    bodies = planned(path)
    path.write_text(whole * 2 + end, encoding="utf-8")
    assert bodies.truncated_tails == 1
    assert [batch.num_rows for task in bodies.tasks for batch in body_batches(task)] == [1]


def test_rows_of_parquet_have_their_place_in_the_file(tmp_path, monkeypatch):
    monkeypatch.setattr(native, "BATCH_ROWS", 2)
    rows = [{"body": None if at == 4 else b"%d" % at, "arrival_ms": at, "keys": "k"} for at in range(9)]
    path = tmp_path / "x.parquet"
    parquet.write_table(pa.Table.from_pylist(rows), path, row_group_size=5)
    read = bodies_in(path)
    assert [(row["line"], row["body"], row["arrival_ms"]) for row in read if row["line"] != 5] == [
        (at + 1, b"%d" % at, at) for at in range(9) if at != 4
    ]
    assert read[4]["bad"] == {"field": "body", "reason": "no body", "text": "", "mentions": []}
    assert {row["source"] for row in read} == {None}
    assert {row["path"] for row in read} == {str(path)}


def test_rows_of_small_files_keep_their_order_and_their_places(tmp_path):
    rows = [[{"body": b"a"}], [{"body": b"b", "source": "T"}, {"body": None, "source": None}], [{"body": "c"}]]
    for number, some in enumerate(rows):
        parquet.write_table(pa.Table.from_pylist(some), tmp_path / f"{number}.parquet")
    read = [(row["path"][-9:], row["line"], row["body"], row["source"]) for row in bodies_in(tmp_path, parallelism=1)]
    of_second = [("1.parquet", 1, b"b", "T"), ("1.parquet", 2, None, None)]
    assert read == [("0.parquet", 1, b"a", None), *of_second, ("2.parquet", 1, b"c", None)]


@pytest.mark.parametrize(
    "columns",
    [
        {"body": pa.array(["a"], pa.string())},
        {"body": pa.array([b"a"], pa.large_binary()), "source": pa.array(["T"], pa.large_string())},
        {"body": pa.array([b"a"]), "source": pa.array([b"T"]), "arrival_ms": pa.array([7], pa.int32())},
        {"body": pa.array([b"a"]), "source": pa.array(["T"]).dictionary_encode(), "offset": pa.array(["any"])},
        {"body": pa.array([b"a"]), "source": pa.nulls(1), "arrival_ms": pa.nulls(1)},
    ],
)
def test_columns_of_other_types_are_read_where_they_mean_the_same(tmp_path, columns):
    path = tmp_path / "x.parquet"
    parquet.write_table(pa.table(columns), path)
    (task,) = planned(path).tasks
    (batch,) = body_batches(task)
    (row,) = batch.to_pylist()
    assert batch.schema.equals(BODY)
    assert (row["body"], row["source"] or "T", row["arrival_ms"] or 7) == (b"a", "T", 7)


def test_column_that_means_something_else_is_one_sentence(tmp_path):
    path = tmp_path / "x.parquet"
    parquet.write_table(pa.table({"body": [b"a"], "arrival_ms": ["soon"]}), path)
    fix = "expected a whole number: write it as int64, milliseconds since 1970$"
    with pytest.raises(UnreadableInputError, match=rf"x\.parquet: column 'arrival_ms' holds string, {fix}"):
        planned(path)


@pytest.mark.parametrize(
    "damage",
    [lambda _: b"no parquet any more", lambda whole: whole[:20] + bytes(200) + whole[220:]],
    ids=["file", "page"],
)
def test_parquet_that_is_damaged_after_the_plan_is_one_sentence_that_names_the_file(tmp_path, damage):
    path = tmp_path / "part-0.parquet"
    parquet.write_table(pa.table({"body": [bytes([n % 251]) * 99 for n in range(2_000)]}), path, compression="zstd")
    [task] = planned(path).tasks
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(DamagedInputError, match=rf"^{path}: not a readable Parquet file \(.+\): move it away$"):
        list(body_batches(task))
