"""What a person reads: records as a table, the known writers, and who can have written a file."""

import pytest

from bridge.codec.tables import PAGE_RECORDS
from otel_mqtrace.wire.native import DIALECTS, IMITATORS, decode_body
from tests.bridge.terminal import BAD, PUB, SUB_BEFORE, lines_of, objects
from tests.support.native_vectors import RECORDED, recorded


def test_table_is_for_people(mqtrace):
    code, out, _ = mqtrace("decode", "--format", "table", stdin=PUB + BAD + SUB_BEFORE)
    shown = out.decode()
    assert code == 1
    assert "订单 😀" in shown
    assert "2023-11-14 22:13:20.000" in shown
    assert "bad: body 0 record 1: record: 2 fields, needs 8: 'SubBefore\\x01x'" in shown


def test_table_is_whole_at_120_columns(mqtrace):
    mqtrace.width(120)
    name = "rocketmq-4.9.8-cloud"
    code, out, _ = mqtrace("decode", "--format", "table", RECORDED / f"{name}.jsonl")
    shown = lines_of(out)
    contexts = [each for body in recorded(name) for each in decode_body(body.body).contexts]
    ids = [one for each in contexts for one in each.beans[0].msg_id.split(",")]
    assert code == 1
    assert max(map(len, shown)) <= 120
    assert [one for one in ids if not any(one in line for line in shown)] == []
    assert sum(line.count(ids[0]) for line in shown) == ids.count(ids[0])
    at = next(number for number, line in enumerate(shown) if line.startswith("1.0 "))
    assert shown[at].split()[:4] == ["1.0", "Pub", "2026-11-21", "11:26:17.698"]
    assert shown[at + 1].startswith("Java 4.4.0 to 4.7.1 +4")


def test_narrow_table_keeps_every_column(mqtrace):
    mqtrace.width(60)
    _, out, _ = mqtrace("decode", "--format", "table", stdin=PUB)
    shown = lines_of(out)
    assert any(line.endswith(" T") for line in map(str.rstrip, shown))
    assert max(map(len, shown)) <= 60


def test_long_table_has_pages(mqtrace):
    code, out, _ = mqtrace("decode", "--format", "table", stdin=PUB * PAGE_RECORDS + BAD + SUB_BEFORE)
    shown = lines_of(out)
    assert code == 1
    assert sum(line.startswith("body.record") for line in shown) == 2
    assert sum(line.startswith("0.") for line in shown) == PAGE_RECORDS + 1
    assert shown[-1].startswith("bad: body 0 record 200")


def test_empty_table_prints_nothing(mqtrace):
    assert mqtrace("decode", "--format", "table") == (0, b"", "")
    _, out, _ = mqtrace("decode", "--format", "table", stdin=BAD)
    assert lines_of(out) == ["bad: body 0 record 0: record: 2 fields, needs 8: 'SubBefore\\x01x'"]


def test_table_prints_any_number_as_time(mqtrace):
    far = SUB_BEFORE.replace(b"1700000000000", b"9223372036854775807")
    code, out, _ = mqtrace("decode", "--format", "table", stdin=far)
    assert code == 0
    assert b"9223372036854775807" in out


def test_every_known_writer_is_listed(mqtrace):
    code, shown, _ = mqtrace("dialects")
    _, listed, _ = mqtrace("dialects", "--json")
    rows = {row["dialect"]: row for row in objects(listed)}
    assert code == 0
    assert set(rows) == {*DIALECTS, *(imitator.name for imitator in IMITATORS)}
    assert all(name in shown.decode() for name in rows)
    assert (rows["4.8.0"]["pub"], rows["5.1.4"]["sub_after_cloud"], rows["5.5.0"]["recall"]) == (15, "7 glued", 7)


def test_writers_of_a_file_are_listed_with_the_evidence(mqtrace):
    code, out, err = mqtrace("dialects", "--json", RECORDED / "rocketmq-5.0.0.jsonl")
    by_group = {item["group_name"]: item for item in objects(out)}
    assert (code, err) == (0, "")
    assert all("5.0.0" in item["writers"] and item["evidence"] for item in by_group.values())
    transaction = next(item for name, item in by_group.items() if name and name.startswith("PG_tx_commit"))
    assert (transaction["writers"], transaction["message_type_map"]) == (["5.0.0"], "b")
    assert "1 EndTransaction with ordinal 3, a commit in map B only" in transaction["evidence"]


def test_writers_of_standard_input_are_a_table(mqtrace):
    """Whole at 120 columns; a group whose records fit no client matches no version, and the evidence shows why."""
    mqtrace.width(120)
    mixed = b"SubBefore\x011\x01R\x01mixed\x01Q\x01I\x010\x01k\x01h\x02SubAfter\x01Q\x01I\x011\x01true\x01k\x02"
    code, out, _ = mqtrace("dialects", "-", stdin=PUB + mixed)
    shown = lines_of(out)
    assert code == 0
    assert max(map(len, shown)) <= 120
    assert "1 Pub of 14 fields" in " ".join(shown)
    (row,) = [line for line in shown if line.startswith("mixed")]
    assert row.split()[1] == "2"
    assert "5.5.0" not in row
    assert "1 SubAfter of 6 fields" in row


def test_group_in_the_table_of_writers_cannot_control_the_terminal(mqtrace):
    code, out, _ = mqtrace("dialects", "-", stdin=PUB.replace(b"\x01G\x01", b"\x01G\x1b]0;x\x07\x01"))
    assert code == 0
    assert "\x1b]" not in out.decode()
    assert "⟨U+001B⟩" in "".join(out.decode().split())


def test_bodies_without_a_record_are_one_line_without_a_writer(mqtrace):
    for more in ([], ["--json"]):
        done = mqtrace("dialects", "-", *more, stdin=b"\x00garbage")
        assert done == (0, b"", "mqtrace: no record can be read in standard input\n")


@pytest.mark.parametrize("columns", [80, 120])
def test_list_of_writers_is_readable(mqtrace, columns):
    mqtrace.width(columns)
    _, out, _ = mqtrace("dialects")
    shown = lines_of(out)
    assert max(map(len, shown)) <= columns
    assert sum(line.startswith(tuple(DIALECTS)) for line in shown) == len(DIALECTS)
