"""A span that is none takes no other along, whichever of the two readers of JSON meets it."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

from tests.support.reading import events_of, malformed_of, otlp_side

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


def test_an_odd_span_is_bad_alone_whichever_reader_meets_it(tmp_path):
    """On a line or in a document: the odd ones are bad and say whom they mention, the good ones beside them are read."""
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
    levels = {
        "resourceSpans": [
            "x",
            {"resource": "x", "scopeSpans": ["y", *message([GOOD])["resourceSpans"][0]["scopeSpans"]]},
        ]
    }
    (tmp_path / "c.jsonl").write_text(json.dumps(levels) + "\n", encoding="utf-8")
    (tmp_path / "d.json").write_text(json.dumps(levels, indent=1), encoding="utf-8")
    side = otlp_side(tmp_path / "work", str(tmp_path))
    found = {name: [] for name in "abcd"}
    for row in malformed_of(side):
        found[Path(row["path"]).stem].append((row["field"], row["reason"], row["mentions"]))
    good = Counter(Path(row["path"]).stem for row in events_of(side))
    assert good == {"a": 2, "b": 2, "c": 1, "d": 1}
    for name, other, count in (("a", "b", 8), ("c", "d", 2)):
        assert len(found[name]) == count
        assert sorted(found[name], key=repr) == sorted(found[other], key=repr)
    assert [one for one in found["a"] if one[0]] == [
        ("start_ns", "not a number", [IPV6_ID]),
        ("end_ns", "not a number", [IPV6_ID]),
    ]
    assert all(ID in mentions for _, reason, mentions in found["a"][:1])
    assert side.records_read + side.exploded == side.events + side.malformed


def test_a_message_behind_what_is_left_of_another_is_read_wherever_the_other_was_cut(tmp_path):
    """On one line, whether or not the torn one got as far as its own name; a quoted name begins no message."""
    torn, whole = json.dumps(message([{**GOOD, "name": '{"resourceSpans":'}])), json.dumps(message([GOOD]))
    cuts = [*range(1, 24), torn.index("startTime"), len(torn) - 1]
    lines = [f"{torn[:cut]}{whole}" for cut in cuts]
    (tmp_path / "a.jsonl").write_text("".join(f"{line}\n" for line in [*lines, torn, whole]), encoding="utf-8")
    side = otlp_side(tmp_path / "work", str(tmp_path / "a.jsonl"))
    assert Counter(row["line"] for row in events_of(side)) == dict.fromkeys(range(1, len(lines) + 3), 1)
    assert sorted(row["line"] for row in malformed_of(side)) == list(range(1, len(lines) + 1))
