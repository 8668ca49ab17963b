"""Native bodies become canonical events exactly as the Python decoder reads them."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from otel_mqtrace._errors import UnreadableInputError, UsageError
from tests.spark_jobs.normalise.made_bodies import ID, KINDS, expected, in_words
from tests.support.reading import events_of, malformed_of, native_side

VECTORS = Path(__file__).parents[2] / "vectors"
RECORDED = sorted((VECTORS / "native" / "recorded").glob("*.jsonl"))


def landing(path: Path, bodies: list[bytes]) -> Path:
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


def test_every_recorded_body_reads_as_the_python_decoder_reads_it(tmp_path):
    """Ten clients of seven generations, LOCAL and CLOUD, one of them in GBK: both readers agree on every field."""
    lines = [json.loads(line) for path in RECORDED for line in path.read_text(encoding="utf-8").splitlines()]
    bodies = [base64.b64decode(line["body_base64"]) for line in lines]
    side = native_side(tmp_path, str(landing(tmp_path / "all.jsonl", bodies)))
    assert len(bodies) > 400
    assert seen(side) == expected(bodies)
    assert_books_balance(side)


def test_a_batch_is_one_event_per_message_with_its_own_offset_id(tmp_path):
    """The ids and the offset ids of a batch send are joined with commas; neither single one is lost."""
    fields = [
        "Pub",
        "1000",
        "r",
        "g",
        "t",
        f"{ID},{ID[:-1]}1",
        "null",
        "null",
        "h:1",
        "9",
        "5",
        "0",
        "7F01,7F02",
        "true",
    ]
    side = native_side(tmp_path, str(landing(tmp_path / "b.jsonl", [("\x01".join(fields) + "\x02").encode()])))
    found = sorted(
        (row["msg_id"], row["offset_msg_id"], row["batch_size"], row["record_index"]) for row in events_of(side)
    )
    assert found == [(ID, "7F01", 2, 0), (f"{ID[:-1]}1", "7F02", 2, 0)]
    assert (side.records_read, side.exploded) == (1, 1)


def test_the_halves_of_a_listener_call_know_how_many_messages_it_had(tmp_path):
    """The cost of a SubAfter is divided by the messages of its call, so the number has to be known."""
    broken = "junk\x02"  # a stray piece in the middle of the call
    half = "".join(
        (broken if at == 1 else "") + f"SubAfter\x01REQ\x01{ID[:-1]}{at}\x013\x01true\x01null\x010\x012000\x01g\x02"
        for at in range(3)
    )
    other = f"SubAfter\x01OTHER\x01{ID}\x013\x01true\x01null\x010\x012000\x01g\x02"
    side = native_side(tmp_path, str(landing(tmp_path / "c.jsonl", [(half + other).encode()])))
    assert sorted((row["attempt_id"], row["batch_size"]) for row in events_of(side)) == [
        ("OTHER", 1),
        ("REQ", 3),
        ("REQ", 3),
        ("REQ", 3),
    ]


def test_a_bad_record_keeps_its_neighbours_and_says_whom_it_mentions(tmp_path):
    """The evidence names file, line, record, field and the message ids that can still be read."""
    good = f"Recall\x015\x01r\x01g\x01t\x01{ID}\x01true\x02"
    path = landing(
        tmp_path / "d.jsonl",
        [(good + f"Pub\x01x\x01r\x01g\x01t\x01{ID}\x01a\x01k\x01h\x011\x011\x010\x02" + good).encode()],
    )
    side = native_side(tmp_path, str(path))
    assert side.events == 2
    (row,) = malformed_of(side)
    assert row == {
        "side": "native",
        "path": str(path),
        "line": 1,
        "record_index": 1,
        "field": "timestamp_ms",
        "reason": "not a number",
        "text": "x",
        "mentions": [ID],
    }


def test_lines_that_hold_no_body_are_counted_and_located(tmp_path):
    """Broken JSON, a missing body and a body that is not base64 are three bad records; a cut-off last line is a tail."""
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
    """A landing may hold both kinds of parts; hidden and half-written files are not data."""
    body = f"Recall\x015\x01r\x01g\x01t\x01{ID}\x01true\x02".encode()
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
def test_the_recorded_runs_hold_the_records_their_readme_counts(tmp_path, run, kinds, bad):
    """Records by type (a batch counts once) and the pieces broken by separators in a key."""
    side = native_side(tmp_path, str(VECTORS / "dual" / run / "native.jsonl"))
    found = {}
    for row in events_of(side):
        found.setdefault(KINDS[row["kind"], row["half"]], set()).add((row["line"], row["record_index"]))
    assert {kind: len(places) for kind, places in found.items()} == kinds
    assert side.malformed == bad
    assert side.records_read == sum(kinds.values()) + bad
    assert_books_balance(side)


def test_a_charset_and_a_map_of_message_types_are_the_writers_own(tmp_path):
    """A GBK body and map B read as their writers meant them; unknown names are refused in one line."""
    fields = ["Pub", "1000", "r", "g", "订单", ID, "a", "k", "h:1", "9", "5", "1", "7F01", "true"]
    path = str(landing(tmp_path / "g.jsonl", [("\x01".join(fields) + "\x02").encode("gbk")]))
    (row,) = events_of(native_side(tmp_path, path, charset="gbk", msg_type_map="b"))
    assert (row["topic"], row["msg_type"]) == ("订单", "Order_Msg")
    for wrong in (
        {"charset": "klingon"},
        {"charset": "base64"},
        {"msg_type_map": "z"},
    ):
        with pytest.raises(UsageError):
            native_side(tmp_path, path, **wrong)


def test_what_is_no_native_landing_is_refused_by_name(tmp_path):
    """A missing path, a file of the other side and a broker's address are one sentence each."""
    with pytest.raises(UsageError, match="no such file"):
        native_side(tmp_path, str(tmp_path / "none"))
    with pytest.raises(UnreadableInputError, match="is otlp"):
        native_side(tmp_path, str(VECTORS / "dual" / "app-4.9.8-dup" / "otlp.jsonl"))
    with pytest.raises(UsageError, match="mqtrace forward"):
        native_side(tmp_path, "rocketmq://localhost:9876/T")
