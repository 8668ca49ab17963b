"""Native bodies become canonical events exactly as the Python decoder reads them."""

import base64
import json
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from otel_mqtrace._errors import UnreadableInputError, UsageError
from spark_jobs.normalise import native
from spark_jobs.normalise.native import native_batches
from spark_jobs.schemas import InputCounts
from tests.spark_jobs.normalise.made_bodies import (
    ID,
    KINDS,
    ODD,
    UNREAD,
    batch,
    bodies,
    expected,
    in_words,
    read_bodies,
)
from tests.support.reading import events_of, malformed_of, native_side

VECTORS = Path(__file__).parents[2] / "vectors"
RECORDED = sorted((VECTORS / "native" / "recorded").glob("*.jsonl"))
RECORD = f"Recall\x015\x01r\x01g\x01t\x01{ID}\x01true\x02"
GLUED = f"SubAfter\x01REQ\x01{ID}\x013\x01true\x01null\x010\x01"


def landing(path, bodies):
    """Write bodies as a landing, one per line."""
    lines = (
        {"source": "T", "partition": 0, "offset": at, "arrival_ms": 1, "body_base64": base64.b64encode(body).decode()}
        for at, body in enumerate(bodies)
    )
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


def seen(side):
    return in_words(events_of(side), malformed_of(side))


def assert_books_balance(side):
    assert side.records_read + side.exploded == side.events + side.malformed


def test_recorded_body_is_read_like_the_python_decoder(tmp_path):
    """Ten clients of seven generations, LOCAL and CLOUD, one of them in GBK: both readers agree on every field."""
    lines = [json.loads(line) for path in RECORDED for line in path.read_text(encoding="utf-8").splitlines()]
    bodies = [base64.b64decode(line["body_base64"]) for line in lines]
    side = native_side(tmp_path, str(landing(tmp_path / "all.jsonl", bodies)))
    assert len(bodies) > 400
    assert seen(side) == expected(bodies)
    assert_books_balance(side)


def test_batch_is_one_event_per_message_with_its_own_offset_id(tmp_path):
    ids = f"{ID},{ID[:-1]}1"
    fields = ["Pub", "1000", "r", "g", "t", ids, "null", "null", "h:1", "9", "5", "0", "7F01,7F02", "true"]
    side = native_side(tmp_path, str(landing(tmp_path / "b.jsonl", [("\x01".join(fields) + "\x02").encode()])))
    names = ("msg_id", "offset_msg_id", "batch_size", "record_index")
    rows_found = sorted(tuple(row[name] for name in names) for row in events_of(side))
    assert rows_found == [(ID, "7F01", 2, 0), (f"{ID[:-1]}1", "7F02", 2, 0)]
    assert (side.records_read, side.exploded) == (1, 1)


def test_bad_record_keeps_its_neighbours_and_its_mentioned_ids(tmp_path):
    body = RECORD + f"Pub\x01x\x01r\x01g\x01t\x01{ID}\x01a\x01k\x01h\x011\x011\x010\x02" + RECORD
    path = landing(tmp_path / "d.jsonl", [body.encode()])
    side = native_side(tmp_path, str(path))
    assert side.events == 2
    (row,) = malformed_of(side)
    place = {"side": "native", "path": str(path), "line": 1, "record_index": 1}
    assert row == {**place, "field": "timestamp_ms", "reason": "not a number", "text": "x", "mentions": [ID]}


def test_lines_that_hold_no_body_are_counted_and_located(tmp_path):
    path = landing(tmp_path / "e.jsonl", [b""])
    with path.open("a", encoding="utf-8", newline="") as file:
        file.write('not json\n{"a": 1}\n{"body_base64": "###"}\r\n\r\n \t\n{"body_base64": "UH')
    side = native_side(tmp_path, str(path))
    assert sorted((row["line"], row["reason"]) for row in malformed_of(side)) == [
        (2, "no JSON object with body_base64"),
        (3, "no JSON object with body_base64"),
        (4, "not base64"),
    ]
    assert (side.records_read, side.truncated_tails) == (3, 1)
    assert side.layouts == ("landing-jsonl",)
    assert_books_balance(side)


def test_parquet_and_json_lines_of_one_landing_are_read_together(tmp_path):
    body = RECORD.encode()
    day = tmp_path / "land ing+" / "native" / "date=2026-11-21"
    day.mkdir(parents=True)
    landing(day / "part-1.jsonl", [body])
    (day / ".part-2.jsonl.inprogress").write_text("junk", encoding="utf-8")
    row = {"source": "TT", "partition": 3, "offset": 7, "arrival_ms": 99, "keys": "k", "body": body}
    parquet.write_table(pa.Table.from_pylist([row]), day / "part-2.parquet")
    side = native_side(tmp_path / "w[1]{2}", str(tmp_path / "land ing+"))
    assert side.layouts == ("landing-jsonl", "landing-parquet")
    assert side.trace_topics == ("T", "TT")
    assert sorted((row["path"], row["line"], row["arrival_ms"]) for row in events_of(side)) == [
        (str(day / "part-1.jsonl"), 1, 1),
        (str(day / "part-2.parquet"), 1, 99),
    ]


@pytest.mark.parametrize(
    ("run", "kinds", "bad"),
    [
        ("app-4.9.8-dup", {"Pub": 107, "SubBefore": 222, "SubAfter": 222, "EndTransaction": 11}, 0),
        ("scenarios-5.3.3-old", {"Pub": 169, "SubBefore": 45, "SubAfter": 45, "EndTransaction": 10, "Recall": 2}, 2),
    ],
)
def test_recorded_run_holds_the_records_of_its_readme(tmp_path, run, kinds, bad):
    side = native_side(tmp_path, str(VECTORS / "dual" / run / "native.jsonl"))
    rows_by_way = {}
    for row in events_of(side):
        rows_by_way.setdefault(KINDS[row["kind"], row["half"]], set()).add((row["line"], row["record_index"]))
    assert {kind: len(places) for kind, places in rows_by_way.items()} == kinds
    assert side.malformed == bad
    assert side.records_read == sum(kinds.values()) + bad
    assert_books_balance(side)


def test_charset_and_message_type_map_reach_the_reader(tmp_path):
    fields = ["Pub", "1000", "r", "g", "订单", ID, "a", "k", "h:1", "9", "5", "1", "7F01", "true"]
    path = str(landing(tmp_path / "g.jsonl", [("\x01".join(fields) + "\x02").encode("gbk")]))
    (row,) = events_of(native_side(tmp_path, path, charset="gbk", msg_type_map="b"))
    assert (row["topic"], row["msg_type"]) == ("订单", "Order_Msg")


def test_source_that_is_no_native_landing_is_refused(tmp_path):
    with pytest.raises(UsageError, match="no such file"):
        native_side(tmp_path, str(tmp_path / "none"))
    with pytest.raises(UnreadableInputError, match="is otlp"):
        native_side(tmp_path, str(VECTORS / "dual" / "app-4.9.8-dup" / "otlp.jsonl"))
    with pytest.raises(UsageError, match="mqtrace forward"):
        native_side(tmp_path, "rocketmq://localhost:9876/T")


# -- The records of bodies, good and bad, are laid into columns as the decoder reads them; no Spark is needed
TEXTS = st.sampled_from(ODD) | st.text(max_size=6)
WILD = st.lists(st.lists(TEXTS, min_size=1, max_size=17).map("\x01".join), max_size=4).map("\x02".join)


@settings(max_examples=40)
@given(
    some=st.lists(
        bodies() | bodies() | WILD.map(lambda text: text.encode("utf-8", "replace")) | st.binary(max_size=24),
        max_size=6,
    )
)
def test_generated_bodies_are_read_like_the_python_decoder(some):
    read, count = read_bodies(*some)
    good, bad = ([row for row in read if (row["bad"] is None) is is_good] for is_good in (True, False))
    assert in_words(good, [row | row["bad"] for row in bad]) == expected(some)
    assert count + sum(row["extra"] for row in read) == len(read)


def test_row_without_a_body_is_kept_among_good_and_bad_records():
    read, count = read_bodies((RECORD + "junk\x02").encode(), UNREAD, RECORD.encode())
    rows_found = [(row["line"], row["record_index"], row["bad"] and row["bad"]["reason"]) for row in read]
    assert rows_found == [(1, 0, None), (1, 1, "unknown record type"), (9, 0, "no body"), (3, 0, None)]
    assert (count, {row["side"] for row in read}) == (4, {"native"})


def test_lone_surrogate_of_utf_7_is_a_question_mark():
    """UTF-7 can say one; no column of text can hold it, and no other record may be lost for it."""
    body = f"Recall\x015\x01r\x01g\x01t+2AA-\x01{ID}\x01true\x02".encode()
    read, _ = read_bodies(body, charset="utf-7")
    assert [row["topic"] for row in read] == ["t?"]


def test_empty_body_holds_no_record(monkeypatch):
    monkeypatch.setattr(native, "MOST_TEXT", 1 << 19)
    assert read_bodies(b"\x02" * (1 << 20), b"", {"path": "made", "line": 3, "body": None}) == ([], 0)


def test_batch_send_of_hundreds_with_long_keys_is_laid_out_in_small_batches():
    ids, keys = [f"{at:032X}" for at in range(500)], "k" * 100_000
    fields = ["Pub", "1000", "r", "g", "t", ",".join(ids), "a", keys, "h:1", "9", "5", "0", ",".join(ids[::-1]), "true"]
    made = list(native_batches([batch(("\x01".join(fields) + "\x02").encode() * 2)], InputCounts(), writer="mqtrace"))
    rows = [row for some in made for row in some.select(["msg_id", "offset_msg_id", "record_index"]).to_pylist()]
    expected_ids = [(one, offset, record) for record in (0, 1) for one, offset in zip(ids, ids[::-1], strict=True)]
    assert [tuple(row.values()) for row in rows] == expected_ids
    assert max(some.nbytes for some in made) < 20 << 20


def test_record_of_other_bytes_has_another_hash():
    """Copies in the same bytes differ from those that say the same: CLOUD leaves an empty field, or no end."""
    fields = f"SubAfter\x01REQ\x01{ID}\x013\x01true\x01null\x010"
    read, _ = read_bodies(f"{fields}\x02{fields}\x01\x02{fields}\x02".encode())
    one, other, again = (row["raw_hash"] for row in read)
    assert one == again != other


def test_long_bodies_keep_their_records_apart():
    body = "".join(f"Recall\x01{at}\x01r\x01g\x01t\x01{ID}\x01true\x02" for at in range(3_000)).encode()
    read, count = read_bodies(body, body, body)
    assert [(row["line"], row["record_index"]) for row in read] == [(at, n) for at in (1, 2, 3) for n in range(3_000)]
    assert (count, len({row["raw_hash"] for row in read})) == (9_000, 3_000)


def test_records_of_several_bodies_on_a_line_have_positions_of_their_own():
    """A record without ids is known by its position alone; the bodies may come in batches of their own."""
    bodies = [(3, RECORD * 2, False), (3, RECORD + "junk\x02", True)]
    bodies += [(line, RECORD, is_joined) for line in (None, 4, None) for is_joined in (False, True)]
    some = [{"path": "made", "line": line, "body": body.encode(), "is_joined": joined} for line, body, joined in bodies]
    found = []
    for batches in ([some], [some[:1], some[1:]], [[one] for one in some]):
        made = native_batches((batch(*each) for each in batches), InputCounts(), writer="mqtrace")
        read = [row for part in made for row in part.to_pylist()]
        found.append([(row["line"], row["record_index"]) for row in read])
    of_third = [(3, 0), (3, 1), (3, 2), (3, 3)]
    assert found == [[*of_third, *((line, index) for line in (None, 4, None) for index in (0, 1))]] * 3


# -- What is counted of native bodies is counted apart from the rows made of them


def test_call_of_a_long_body_has_its_own_size(tmp_path):
    calls = [*range(3_000), *range(1_000)]
    body = "".join(f"SubAfter\x01R{call}\x01{ID}\x013\x01true\x01null\x010\x012000\x01g\x02" for call in calls)
    side = native_side(tmp_path, str(landing(tmp_path / "big.jsonl", [body.encode()])))
    assert side.records_read == 4_000
    assert Counter(row["batch_size"] for row in events_of(side)) == {1: 2_000, 2: 2_000}


def test_glued_pair_is_expected_once_and_read_as_two():
    events, expected = read_bodies((RECORD + GLUED + RECORD).encode())
    assert (len(events), expected, [event["extra"] for event in events]) == (3, 2, [1, 0, 0])


def test_record_lost_by_the_codec_breaks_the_balance(monkeypatch):
    read = native.decode_values
    monkeypatch.setattr(native, "decode_values", lambda *text, **how: list(read(*text, **how))[1:])
    events, expected = read_bodies((RECORD + GLUED + RECORD).encode())
    assert expected + sum(event["extra"] for event in events) == len(events) + 1


def test_time_after_9999_does_not_move_the_end_of_the_data(tmp_path):
    good, far = (f"Recall\x01{at}\x01r\x01g\x01t\x01{ID}\x01true\x02" for at in (5, 2**63 - 1))
    side = native_side(tmp_path, str(landing(tmp_path / "f.jsonl", [(good + far).encode()])))
    assert (side.records_read, side.last_event_ms) == (2, 5)
