"""What is counted of native bodies is counted apart from the rows made of them."""

from __future__ import annotations

import base64
import json
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from otel_mqtrace.wire.native.decode import decode_body
from spark_jobs.normalise import native_records
from tests.spark_jobs.normalise.made_bodies import ID, read_bodies
from tests.support.reading import events_of, native_side

RECORD = f"Recall\x015\x01r\x01g\x01t\x01{ID}\x01true\x02"
GLUED = f"SubAfter\x01REQ\x01{ID}\x013\x01true\x01null\x010\x01"


def landing(path, bodies):
    """Write bodies as a landing, one per line."""
    lines = (json.dumps({"source": "T", "body_base64": base64.b64encode(body).decode()}) for body in bodies)
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def test_each_call_of_a_long_body_has_its_own_size(tmp_path):
    """Four thousand deliveries in one body, in calls of one and of two whose records do not stand side by side."""
    calls = [*range(3_000), *range(1_000)]
    body = "".join(f"SubAfter\x01R{call}\x01{ID}\x013\x01true\x01null\x010\x012000\x01g\x02" for call in calls)
    side = native_side(tmp_path, str(landing(tmp_path / "big.jsonl", [body.encode()])))
    assert side.records_read == 4_000
    assert Counter(row["batch_size"] for row in events_of(side)) == {1: 2_000, 2: 2_000}


def test_a_glued_pair_is_due_once_and_told_to_be_two_by_itself():
    """What is expected is counted in the text: three events are two pieces and one that has no end of its own."""
    events, expected = read_bodies((RECORD + GLUED + RECORD).encode())
    assert (len(events), expected, [event["extra"] for event in events]) == (3, 2, [1, 0, 0])


def test_a_record_that_the_codec_loses_is_missing_from_the_books(monkeypatch):
    """It is expected all the same, whoever reads the records."""
    read = native_records.decode_values
    monkeypatch.setattr(native_records, "decode_values", lambda *text, **how: list(read(*text, **how))[1:])
    events, expected = read_bodies((RECORD + GLUED + RECORD).encode())
    assert expected + sum(event["extra"] for event in events) == len(events) + 1


PIECES = st.sampled_from(
    [RECORD, GLUED, GLUED[:-1], "\x02", "Pub", "SubAfter\x01", "\x01Recall", "x", "SubAfter" + "\x01" * 7]
)


@given(pieces=st.lists(PIECES, max_size=12))
def test_what_is_due_and_what_is_glued_is_what_the_codec_reads(pieces):
    """Two ways to count, whatever stands beside what."""
    body = "".join(pieces).encode()
    events, expected = read_bodies(body)
    read = decode_body(body)
    assert expected + sum(event["extra"] for event in events) == len(events) == len(read.contexts) + len(read.errors)


def test_a_time_at_the_end_of_time_tells_nothing_about_how_far_the_data_reaches(tmp_path):
    """One damaged record does not move the horizon of the run by millions of years."""
    good, far = (f"Recall\x01{at}\x01r\x01g\x01t\x01{ID}\x01true\x02" for at in (5, 2**63 - 1))
    side = native_side(tmp_path, str(landing(tmp_path / "f.jsonl", [(good + far).encode()])))
    assert (side.records_read, side.last_event_ms) == (2, 5)
