"""``mqtrace inspect`` summarises an input, and streams it as JSON."""

import base64
import json
import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bridge.otlp.detect import Side
from otel_mqtrace._errors import UnreadableInputError, UsageError
from spark_jobs import inspect
from spark_jobs.sources.files import source_files
from tests.support.landings import body_line, write_landing

RECALL = f"Recall\x01{2**63 - 1}\x01r\x01g\x01t\x01i\x01true\x02".encode()
VECTORS = Path(__file__).parents[1] / "vectors"


def strict(text):
    return json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))


def test_json_of_a_cut_off_file_has_the_public_keys(capsys):
    assert inspect.run([str(VECTORS / "otlp/killed/kill.pb.framed")], as_json=True) == 0
    report = strict(capsys.readouterr().out)
    names = ("side", "layout", "items", "malformed", "truncated_tail")
    assert [report[name] for name in names] == ["otlp", "proto-framed", 67, 0, True]
    assert "orders" in report["topics"]
    assert "groups" in report
    assert report["first_ms"] < report["last_ms"]


def test_bad_records_are_counted_and_located_and_a_stream_says_what_is_not_in_it(capsys):
    path = str(VECTORS / "dual/scenarios-5.3.3-old/native.jsonl")
    assert inspect.run([path], as_json=True) == 1
    report = strict(capsys.readouterr().out)
    assert (report["side"], report["items"], report["malformed"]) == ("native", 271, 2)
    places = [(piece["path"], piece["line"], piece["record_index"]) for piece in report["bad"]]
    assert places == [(path, 23, 0), (path, 23, 1)]
    bad, others = f"2 bad pieces; first: {path}:23 record 0", f"{path} holds native records and no spans: use --records"
    for stream, told in ({"records": True}, bad), ({"spans": True}, others):
        assert inspect.run([path], **stream) == 1
        assert f"mqtrace: {told}" in capsys.readouterr().err


def test_spans_stream_as_strict_json_lines_with_their_values(capsys):
    assert inspect.run([str(VECTORS / "otlp/odd/traces.jsonl")], spans=True) == 0
    lines = [strict(line) for line in capsys.readouterr().out.rstrip("\n").split("\n")]
    assert len(lines) == 12
    assert [line["source_index"] for line in lines] == list(range(12))
    not_finite = {"nan": "NaN", "inf": "Infinity", "ninf": "-Infinity"}
    assert lines[0]["attributes"] == {**not_finite, "negzero": 0.0, "tiny": 5e-324, "whole": 3.0, "big": 1e22}
    assert str(lines[0]["attributes"]["negzero"]) == "-0.0"
    assert lines[0]["start_ns"] == "1767323045000000001"


def test_records_stream_as_the_decoder_writes_them(capsys):
    assert inspect.run([str(VECTORS / "dual/app-4.9.8-dup")], records=True) == 0
    lines = [strict(line) for line in capsys.readouterr().out.rstrip("\n").split("\n")]
    assert len(lines) == 107 + 222 + 222 + 11
    assert {line["trace_type"] for line in lines} == {"Pub", "SubBefore", "SubAfter", "EndTransaction"}


def test_bodies_of_several_sources_have_numbers_of_their_own(tmp_path, capsys):
    for name in ("a", "b"):
        write_landing(tmp_path / f"{name}.jsonl", RECALL, RECALL)
    assert inspect.run([str(tmp_path)], records=True) == 0
    lines = [strict(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["body_index"] for line in lines] == [0, 1, 2, 3]


def test_records_of_another_charset_are_read_in_it(tmp_path, capsys):
    write_landing(tmp_path / "a.jsonl", RECALL.replace(b"\x01t\x01", "\x01订单\x01".encode("gbk")))
    assert inspect.run([str(tmp_path)], as_json=True, charset="gbk") == 0
    assert strict(capsys.readouterr().out)["topics"] == ["订单"]


def test_torn_last_line_is_a_tail_and_a_broken_line_is_bad(tmp_path, capsys):
    body = base64.b64encode(RECALL).decode()
    text = f'{{"body_base64": ""}}\n\nbroken\n{{"body_base64": "{body}"}}{{"body_base'
    (tmp_path / "part-1.jsonl").write_text(text, encoding="utf-8")
    assert inspect.run([str(tmp_path)], as_json=True) == 1
    report = strict(capsys.readouterr().out)
    assert (report["malformed"], report["truncated_tail"], report["bad"][0]["line"]) == (1, True, 3)
    assert report["items"] == 1
    assert inspect.run([str(tmp_path)], records=True) == 1
    broken, record = map(strict, capsys.readouterr().out.splitlines())
    bad = {"field": None, "reason": "not JSON", "text": "broken"}
    assert (broken, record["body_index"]) == ({"body_index": 1, "record_index": None, "error": bad}, 2)


@pytest.mark.parametrize(
    ("content", "code", "stream", "shown"),
    [
        (b'{"resourceSpans": []}\n{"resourceSpans": [}\n', 1, "out", "⟩[31m.jsonl:2: damaged, or not OTLP traces: "),
        (body_line(RECALL), 0, "out", f"{2**63 - 1} ms, which is not a date"),
        (b"", 0, "err", "nothing in {}/a⟨U+001B⟩[31m.jsonl"),
    ],
    ids=["a damaged line of spans", "a time that is not a date", "nothing"],
)
def test_oddity_of_a_file_is_shown_without_control_characters_of_its_name(
    tmp_path, capsys, content, code, stream, shown
):
    (tmp_path / "a\x1b[31m.jsonl").write_bytes(content)
    assert inspect.run([str(tmp_path / "a\x1b[31m.jsonl")]) == code
    assert shown.format(tmp_path) in getattr(capsys.readouterr(), stream)


def test_wrong_inputs_are_refused(tmp_path):
    (tmp_path / "x").write_text("hello", encoding="utf-8")
    with pytest.raises(UsageError, match="no such file"):
        inspect.run([str(tmp_path / "none")])
    with pytest.raises(UnreadableInputError, match="cannot detect the format"):
        inspect.run([str(tmp_path / "x")])
    with pytest.raises(UsageError, match="exclude each other"):
        inspect.run([str(tmp_path)], spans=True, records=True)


def test_ignored_files_of_a_directory_are_named(tmp_path, capsys):
    (tmp_path / "notes.jsonl").write_text('{"x": 1}\n', encoding="utf-8")
    (tmp_path / "part-1.jsonl").write_text('{"body_base64": ""}\n', encoding="utf-8")
    (tmp_path / "part-2.parquet").write_bytes(b"PAR1 and cut short")
    assert inspect.run([str(tmp_path)], as_json=True) == 1
    report = strict(capsys.readouterr().out)
    assert [Path(name).name for name in report["files"]] == ["part-1.jsonl"]
    (bad,) = report["bad"]
    assert Path(bad["path"]).name == "part-2.parquet"
    assert re.fullmatch(r"not a readable Parquet file \(.+\): move it away", bad["reason"])
    (entry,) = report["passed_over"]
    assert "notes.jsonl" in entry


def test_part_that_is_damaged_inside_is_a_bad_piece_beside_the_others(tmp_path, capsys):
    write_landing(tmp_path / "part-1.jsonl", RECALL)
    table = pa.table({"body": [bytes([number % 251]) * 99 for number in range(2_000)]})
    pq.write_table(table, tmp_path / "part-2.parquet", compression="zstd")
    content = (tmp_path / "part-2.parquet").read_bytes()
    (tmp_path / "part-2.parquet").write_bytes(content[:20] + bytes(200) + content[220:])
    assert inspect.run([str(tmp_path)]) == 1
    shown = re.search(r"^bad +(.*)", capsys.readouterr().out, re.MULTILINE)[1]
    assert re.fullmatch(r".*part-2\.parquet: not a readable Parquet file \(.+\): move it away", shown)


@pytest.mark.skipif(not Path("/proc/self/mem").exists(), reason="no file here that root cannot read")
@pytest.mark.parametrize("side", [Side.NATIVE, Side.OTLP, None])
def test_file_of_a_directory_that_cannot_be_read_is_an_error(tmp_path, side):
    """Passed over, its records would be losses in the verdicts."""
    line = '{"resourceSpans": []}' if side is Side.OTLP else '{"body_base64": ""}'
    (tmp_path / "a.jsonl").write_text(line, encoding="utf-8")
    (tmp_path / "b.jsonl").symlink_to("/proc/self/mem")
    with pytest.raises(UnreadableInputError, match=rf"a link of {tmp_path} leads elsewhere: cannot read .*mem: "):
        source_files([str(tmp_path)], side)


def test_control_characters_are_escaped_on_the_terminal(tmp_path, capsys):
    topic = "\x1b[31mred\x1b]0;title\x07\u202e" + "long" * 100
    body = f"Recall\x011700000000000\x01r\x01g\x01{topic}\x01i\x01true\x02".encode()
    with write_landing(tmp_path / "a\x1b.jsonl", body).open("a") as file:
        file.write("bad\n")
    assert inspect.run([str(tmp_path)]) == 1
    shown = capsys.readouterr().out
    assert not set("\x1b\x07\u202e") & set(shown)
    assert "⟨U+001B⟩[31mred" in shown
    assert max(map(len, shown.splitlines())) < 400


def test_writers_are_those_of_a_reconciliation(capsys):
    folder = VECTORS / "dual" / "app-4.9.8-dup"
    inspect.run((str(folder / "native.jsonl"), str(folder / "otlp.jsonl")), as_json=True)
    writers = json.loads(capsys.readouterr().out)["writers"]
    assert (writers["profile"], writers["native_writer"]) == ("java-agent", "rocketmq-4.9.8")
    inspect.run((str(folder / "otlp.jsonl"),))
    assert f"written by    {writers['evidence'][0]}\n" in capsys.readouterr().out
    inspect.run((str(folder / "native.jsonl"),), as_json=True)
    alone = json.loads(capsys.readouterr().out)["writers"]
    assert alone == {"profile": None, "native_writer": "rocketmq-4.9.8", "evidence": writers["evidence"][1:]}


@pytest.mark.parametrize(
    "content",
    [None, b"", b'{"resourceSpans":[', b" [ ]\n", b"{}"],
    ids=["no file", "empty file", "cut-off line", "bare array of none", "request of none"],
)
def test_empty_input_is_named_and_not_bad(content, tmp_path, capsys):
    if content is not None:
        (tmp_path / "spans.jsonl").write_bytes(content)
    assert inspect.run([str(tmp_path)]) == 0
    assert capsys.readouterr().err.startswith(f"mqtrace: nothing in {tmp_path}")


def test_both_sides_of_a_directory_are_summed_up_for_people(capsys):
    assert inspect.run([str(VECTORS / "dual/app-4.9.8-dup")]) == 0
    text = capsys.readouterr().out
    assert "native+otlp" in text
    assert "orders_d498dup" in text
    assert "records fit" in text
    labels = [line[:13].strip() for line in text.splitlines() if not line.startswith("written by")]
    assert sorted(labels) == sorted(set(labels))
