"""What a run leaves to the next one: events of open keys, places of closed ones."""

import numpy as np
import pyarrow as pa
import pytest

from spark_jobs.history import lifecycle
from spark_jobs.schemas import EVENT, VERDICT
from tests.support.events import START_MS, consumed, publish


def verdicts(*rows):
    return pa.Table.from_pylist([{**dict.fromkeys(VERDICT.names), **row} for row in rows], schema=VERDICT)


SETTLED = {"status": "NATIVE_ONLY", "reason": "BY_DESIGN"}
RESIDUE = {"status": "NATIVE_ONLY", "reason": "UNEXPLAINED"}
KEYS = [
    *(SETTLED, {"status": "PENDING"}, RESIDUE, {"status": "MATCHED_EXACT"}),
    *({"status": "NATIVE_ONLY", "reason": "IN_FLIGHT"}, {"status": "MISMATCHED", "reason": "HALF_RECORD"}),
]


def events(*msg_ids):
    return pa.Table.from_pylist([publish("native", msg_id) for msg_id in msg_ids], schema=EVENT)


@pytest.mark.parametrize("offset", [0, 10])
@pytest.mark.parametrize(
    ("part", "kept"),
    [
        ([True] * 6, [("B", 1), ("C", 2), ("E", 4), ("F", 5), ("G", 1)]),
        ([False, True, False, True, True, True], [("B", 0), ("E", 2), ("F", 3), ("G", 0)]),
    ],
    ids=["all verdicts", "some verdicts"],
)
def test_events_of_possibly_open_keys_are_kept_with_their_verdict_row(part, kept, offset):
    """A slice counts from the start of its file."""
    verdict_of = np.array([0, 1, 2, 3, 4, 5, 1, -1])
    found = lifecycle.keep_open_events(events(*"ABCDEFGH"), verdict_of, verdicts(*KEYS), np.array(part), offset=offset)
    assert found.schema == lifecycle.CANDIDATE
    assert [(row["msg_id"], row["verdict_row"] - offset) for row in found.to_pylist()] == kept


@pytest.mark.parametrize(
    ("verdict", "left_as"),
    [
        ({**RESIDUE, "lifecycle": "new", "first_seen_run": 2}, "UNEXPLAINED"),
        ({"status": "PENDING", "lifecycle": "still_open", "first_seen_run": 2}, "PENDING"),
        ({**RESIDUE, "lifecycle": "expired", "first_seen_run": 2}, None),
        ({"status": "MATCHED_EXACT", "lifecycle": "resolved", "first_seen_run": 2}, None),
        ({**RESIDUE, "reason": "NOT_SAMPLED", "lifecycle": "explained", "first_seen_run": 2}, None),
        ({**RESIDUE, "reason": "DROP_ATTRIBUTED", "lifecycle": "explained", "first_seen_run": 2}, "DROP_ATTRIBUTED"),
        ({**RESIDUE, "reason": "DROP_ATTRIBUTED", "first_seen_run": 2}, "DROP_ATTRIBUTED"),
        ({**RESIDUE, "reason": "DROP_ATTRIBUTED"}, None),
        ({**RESIDUE, "reason": "DROP_ATTRIBUTED", "lifecycle": "expired", "first_seen_run": 2}, None),
        ({"status": "NATIVE_ONLY", "reason": "KEY_DEGRADED"}, None),
    ],
)
def test_event_is_left_open_by_the_verdict_of_its_key(verdict, left_as):
    candidates = lifecycle.keep_open_events(
        events("A"), np.array([1]), verdicts(RESIDUE, RESIDUE), np.array([True, True])
    )
    selected = lifecycle.select_left_open(candidates, verdicts(SETTLED, verdict))
    assert selected.schema == EVENT
    left = [(row["first_seen_run"], row["left_as"]) for row in selected.to_pylist()]
    assert left == ([(2, left_as)] if left_as else [])


@pytest.mark.parametrize(
    ("before", "left_as"),
    [
        ("UNEXPLAINED", "UNEXPLAINED"),
        ("DROP_ATTRIBUTED", "DROP_ATTRIBUTED"),
        ("IN_FLIGHT", "PENDING"),
        (None, "PENDING"),
    ],
)
def test_event_that_was_lost_stays_so_while_it_cannot_be_judged(before, left_as):
    carried = events("A").set_column(
        EVENT.names.index("left_as"), EVENT.field("left_as"), pa.array([before], pa.string())
    )
    waiting = verdicts({"status": "PENDING", "lifecycle": "still_open", "first_seen_run": 2})
    candidates = lifecycle.keep_open_events(carried, np.array([0]), waiting, np.array([True]))
    assert lifecycle.select_left_open(candidates, waiting)["left_as"].to_pylist() == [left_as]


def side_of(event):
    return {name: event[name] for name in event if name not in {"side", "kind", "half", "msg_id", "scope", "links"}}


NATIVE, SPAN = publish("native", "A", path="n.jsonl", line=4), consumed("A", path="s.jsonl", line=9, at_ms=500)


def test_positions_of_both_sides_are_kept_when_a_key_is_closed():
    done = {"status": "MATCHED_EXACT", "lifecycle": "resolved", "first_seen_run": 3}
    open_key = {**RESIDUE, "lifecycle": "new", "first_seen_run": 3, "native": {**side_of(NATIVE), "path": "other"}}
    given = verdicts({**done, "native": side_of(NATIVE), "otlp": side_of(SPAN)}, {"status": "MATCHED_EXACT"}, open_key)
    closed = lifecycle.find_closed(given, since_ms=START_MS).to_pylist()
    shared = {"record_index": 0, "first_seen_run": 3, "last_ms": START_MS + 510}
    assert closed == [
        {"side": "native", "path": "n.jsonl", "raw_hash": NATIVE["raw_hash"], "line": 4, **shared},
        {"side": "otlp", "path": "s.jsonl", "raw_hash": SPAN["raw_hash"], "line": 9, **shared},
    ]
    assert lifecycle.find_closed(given, since_ms=START_MS + 511).equals(lifecycle.CLOSED.empty_table())


def test_closed_positions_are_merged_one_by_one():
    def closed(line, run, last_ms, **place):
        position = {"side": "native", "path": "a", "record_index": None, "raw_hash": 7, **place}
        return {**position, "line": line, "first_seen_run": run, "last_ms": last_ms}

    old, kept = closed(1, 1, 2, path="old"), [closed(9, 4, 3, **other) for other in ({"side": "otlp"}, {"raw_hash": 8})]
    parts = [[closed(None, 2, 5), closed(4, 3, 9), old], [closed(3, 1, None), *kept]]
    tables = [pa.Table.from_pylist(rows, schema=lifecycle.CLOSED) for rows in parts]
    assert lifecycle.merge_closed(tables, since_ms=3).to_pylist() == [closed(3, 1, 9), *kept]
