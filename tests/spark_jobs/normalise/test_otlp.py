"""Spans of any layout and any convention become canonical events on Spark."""

import json
from collections import Counter
from pathlib import Path

import pytest

from otel_mqtrace._errors import UsageError
from spark_jobs.schemas import EVENT
from tests.support.reading import events_of, malformed_of, otlp_side

VECTORS = Path(__file__).parents[2] / "vectors"
OTLP = VECTORS / "otlp"


def line_of(start="5000000999", tags="T"):
    """Return a send as a line of a Collector's file."""
    words = {"messaging.system": "kafka", "messaging.operation.type": "send", "mqtrace.tags": tags}
    attributes = [{"key": key, "value": {"stringValue": value}} for key, value in words.items()]
    one = {"traceId": "ab" * 16, "spanId": "cd" * 8, "startTimeUnixNano": start, "attributes": attributes}
    return json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [one]}]}]}, ensure_ascii=False)


def test_layouts_give_the_same_events(tmp_path):
    plain = (f"layouts/traces.{layout}" for layout in ("jsonl", "json.zst.framed", "pb.framed", "pb.zst.framed"))
    names = (*plain, "native-zstd/native.jsonl.zst", "native-zstd/native.pb.framed.zst")
    side = otlp_side(tmp_path, *[str(OTLP / name) for name in names])
    assert side.records_read == 6 * 209
    assert side.records_read + side.exploded == side.events
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
    assert sorted((Path(row["path"]).name, row["line"]) for row in malformed_of(side)) == [
        ("torn.jsonl", 13),
        ("torn.pb.framed", 14),
    ]


@pytest.mark.parametrize(
    ("run", "publish", "consume", "others", "traffic"),
    [
        ("app-4.9.8-dup", 120, 222, {(None, "BATCH_PARENT"): 2}, 15),
        ("scenarios-5.3.3-old", 212, 55, {(None, "POLL"): 6}, 65),
    ],
)
def test_recorded_run_holds_the_events_of_its_readme(tmp_path, run, publish, consume, others, traffic):
    folder = VECTORS / "dual" / run
    native_topics = {json.loads(line)["topic"] for line in (folder / "native.jsonl").open(encoding="utf-8")}
    side = otlp_side(tmp_path, str(folder / "otlp.jsonl"), trace_topics=tuple(native_topics))
    counts = Counter((row["kind"], row["scope"]) for row in events_of(side))
    sends = {("publish", None): publish, ("publish", "TRACE_TRAFFIC"): traffic}
    assert counts == {**sends, ("consume", None): consume, **others}
    assert side.records_read == {"app-4.9.8-dup": 288, "scenarios-5.3.3-old": 330}[run]


def test_foreign_line_is_bad_unless_it_is_of_another_signal(tmp_path):
    """Collectors write U+2028 raw."""
    others = ('{"resourceMetrics": []}', '{"resourceLogs": []}', "{}", '{"hello": 1}')
    path = tmp_path / "made.jsonl"
    path.write_text("\n".join((line_of(tags="a\u2028b\x85c"), *others, line_of("soon"), "")), encoding="utf-8")
    side = otlp_side(tmp_path, str(path))
    assert side.records_read + side.exploded == side.events + side.malformed
    assert [row["tags"] for row in events_of(side)] == ["a\u2028b\x85c"]
    assert sorted((row["line"], row["field"], row["reason"]) for row in malformed_of(side)) == [
        (5, None, "not OTLP traces"),
        (6, "start_ns", "not a number"),
    ]


def test_empty_files_are_an_empty_side(tmp_path):
    (tmp_path / "empty.jsonl").write_text("\n", encoding="utf-8")
    side = otlp_side(tmp_path, str(tmp_path / "empty.jsonl"))
    assert (side.records_read, side.events, side.last_event_ms) == (0, 0, None)
    with pytest.raises(UsageError, match="choose one of"):
        otlp_side(tmp_path, str(tmp_path / "empty.jsonl"), otlp_format="xml")


# -- A span that is none takes no other along, whichever of the two readers of JSON meets it
ID = "C000020262BB60E53B936993952C0000"
IPV6_ID = "FE80000000000000021122FFFE334455" + "1F4018B4AAC2" * 2


def attribute(key, value):
    return {"key": key, "value": {"stringValue": value}}


GOOD = {
    "traceId": "ab" * 16,
    "spanId": "cd" * 8,
    "startTimeUnixNano": "5000000999",
    "endTimeUnixNano": "7000000000",
    "attributes": [attribute("messaging.system", "kafka"), attribute("messaging.message.id", ID)],
}


def message(spans):
    return {"resourceSpans": [{"scopeSpans": [{"spans": spans}]}]}


def test_malformed_span_is_bad_alone_for_both_readers(tmp_path):
    mentions = [attribute("messaging.message.id", IPV6_ID.lower())]
    odd = (
        {"status": "OK"},
        {"attributes": {"a": 1}},
        {"attributes": mentions, "startTimeUnixNano": [1]},
        {"links": [{"attributes": mentions}], "attributes": [], "endTimeUnixNano": "soon"},
        {"links": 7},
        "span",
        7,
        None,
    )
    document = message([GOOD, *({**GOOD, **one} if isinstance(one, dict) else one for one in odd), GOOD])
    (tmp_path / "a.jsonl").write_text(json.dumps(document) + "\n", encoding="utf-8")
    (tmp_path / "b.json").write_text(json.dumps(document, indent=1), encoding="utf-8")
    scopes = message([GOOD])["resourceSpans"][0]["scopeSpans"]
    levels = {"resourceSpans": ["x", {"resource": "x", "scopeSpans": ["y", *scopes]}]}
    (tmp_path / "c.jsonl").write_text(json.dumps(levels) + "\n", encoding="utf-8")
    (tmp_path / "d.json").write_text(json.dumps(levels, indent=1), encoding="utf-8")
    side = otlp_side(tmp_path / "work", str(tmp_path))
    texts = {name: [] for name in "abcd"}
    for row in malformed_of(side):
        texts[Path(row["path"]).stem].append((row["field"], row["reason"], row["mentions"]))
    good = Counter(Path(row["path"]).stem for row in events_of(side))
    assert good == {"a": 2, "b": 2, "c": 1, "d": 1}
    for name, other, count in (("a", "b", 8), ("c", "d", 2)):
        assert len(texts[name]) == count
        assert sorted(texts[name], key=repr) == sorted(texts[other], key=repr)
    assert [one for one in texts["a"] if one[0]] == [
        ("start_ns", "not a number", [IPV6_ID]),
        ("end_ns", "not a number", [IPV6_ID]),
    ]
    assert all(ID in mentions for _, reason, mentions in texts["a"][:1])
    assert side.records_read + side.exploded == side.events + side.malformed
