"""Which writer and dialect a body comes from, and how contexts are built."""

import pytest

from otel_mqtrace._errors import UsageError
from otel_mqtrace.model import MessageType, TraceBean, TraceContext, TraceType
from otel_mqtrace.wire import native
from otel_mqtrace.wire.native.dialects import Shape, dialect_named, quirks_of, writers_of
from otel_mqtrace.wire.native.layout import MESSAGE_TYPE_MAPS, CloudSubAfter
from tests.support.native_vectors import RECORDED_FILES, recorded
from tests.support.trace_stories import body_of, end_transaction


def guess(*bodies):
    guesses = native.WriterGuesses()
    for body in bodies:
        guesses.take(native.decode_body(body))
    (only,) = guesses.guesses()
    return only


@pytest.mark.parametrize("name", RECORDED_FILES)
def test_true_writer_is_among_the_guesses(name):
    guesses, versions = native.WriterGuesses(), set()
    for each in recorded(name):
        versions.add(each.version)
        guesses.take(native.decode_body(each.body))
    (version,) = versions
    truth = dialect_named(version)
    for each in guesses.guesses():
        assert truth.name in each.writers, (each, truth)
        assert each.message_type_map in {None, truth.message_type_map}
        assert each.evidence


ENDS_BY_B, ENDS_BY_A = (body_of(end_transaction(), dialect=dialect) for dialect in ("5.0.0", "5.1.4"))
DELAY_BY_B = b"Pub\x011\x01R\x01PG_order\x01t\x01I\x01\x01k\x01h\x0126\x017\x014\x01O\x01true\x02"


@pytest.mark.parametrize(
    ("bodies", "map_name", "ends"),
    [
        ([ENDS_BY_B], "b", 1),
        ([ENDS_BY_A] * 2, "a", 2),
        ([ENDS_BY_B, ENDS_BY_A], None, 2),
        ([DELAY_BY_B], "b", 0),
        ([DELAY_BY_B, ENDS_BY_A], "a", 1),  # a commit is the better evidence
    ],
    ids=["a commit by b", "two commits by a", "both", "a delay by b", "a delay by b, a commit by a"],
)
def test_map_is_determined_by_ordinals_of_commits_and_delays(bodies, map_name, ends):
    assert MESSAGE_TYPE_MAPS["a"][4] is MessageType.ORDER
    guessed = guess(*bodies)
    assert guessed.message_type_map == map_name
    counted = [each.partition(" ") for each in guessed.evidence]
    assert sum(int(count) for count, _, what in counted if what.startswith("EndTransaction with ordinal")) == ends
    assert ("5.0.0" in guessed.writers) == (map_name != "a")


SUB_BEFORE = "SubBefore\x011\x01R\x01g\x01Q\x01I\x010\x01"
GO_ID = "0A09002604D2000000000f3a1c2b0001"
PUB = f"Pub\x011\x01R\x01g\x01t\x01{GO_ID}\x01\x01\x01h\x0126\x0112\x010\x01O\x01true"
SUB_AFTER = "SubAfter\x01Q\x01I\x011\x01true\x01"


WRITERS = {
    "no keys by C++": (f"{SUB_BEFORE}dKey\x02", ("cpp-2",)),
    "no keys by Rust": (f"{SUB_BEFORE}\x02", ("rust",)),  # Java writes null
    "short SubAfter": (f"{SUB_BEFORE}dKey\x02{SUB_AFTER}dKey\x02", ("cpp-2",)),
    "send by old Go": (f"{PUB}\x02", ("go-2.1.0",)),
    "send by Go": (f"{PUB}\x01host\x02", ("go-2.1.1",)),
    "shapes of several clients": (f"{SUB_BEFORE}k\x01host\x02{SUB_AFTER}k\x02", ()),
    # an empty eighth field, as Java's newest
    "Rust over CLOUD": (f"{SUB_BEFORE}\x02{SUB_AFTER}\x010\x01\x02", ("rust",)),
}


@pytest.mark.parametrize(("body", "writers"), WRITERS.values(), ids=WRITERS)
def test_placeholders_and_shapes_identify_the_writer(body, writers):
    guessed = guess(body.encode())
    assert (guessed.group_name, guessed.records, guessed.writers) == ("g", body.count("\x02"), writers)


def test_shapes_are_the_evidence():
    body, _ = WRITERS["shapes of several clients"]
    assert guess(body.encode()).evidence == ("1 SubAfter of 6 fields", "1 SubBefore of 9 fields")


@pytest.mark.parametrize(("msg_id", "keys", "began_ms"), [(GO_ID, "", 970), (GO_ID, "null", 1_000), ("I", "", 1_000)])
def test_send_of_a_go_client_began_before_its_stamp(msg_id, keys, began_ms):
    """Go stamps after the call; a Java producer may send a message of Go's on, and writes ``null`` for no keys."""
    bean = TraceBean(msg_id=msg_id, keys=keys)
    send = TraceContext(trace_type=TraceType.PUB, timestamp_ms=1_000, cost_ms=30, beans=(bean,))
    assert native.started_ms(send) == began_ms


@pytest.mark.parametrize(
    ("ids", "offsets", "exploded"),
    [
        ("A,B", "1,2", [("A", "1"), ("B", "2")]),
        *(("A,B", offsets, [("A", None), ("B", None)]) for offsets in ("1", None)),
        *((message_id, offset, [(message_id, offset)]) for message_id, offset in (("A", "1"), (None, None))),
    ],
)
def test_batch_is_split_by_its_ids(ids, offsets, exploded):
    bean = TraceBean(topic="t", msg_id=ids, offset_msg_id=offsets)
    made = native.explode(TraceContext(trace_type=TraceType.PUB, cost_ms=7, beans=(bean,)))
    assert [(each.beans[0].msg_id, each.beans[0].offset_msg_id) for each in made] == exploded
    assert {(each.beans[0].topic, each.cost_ms) for each in made} == {("t", 7)}


def test_record_under_map_b_has_a_dialect_of_map_b():
    assert native.decode_body(ENDS_BY_B, msg_type_map="b").dialects == ("5.0.0",)
    assert native.decode_body(ENDS_BY_B).dialects == ("5.5.0",)
    recall = b"Recall\x011\x01R\x01g\x01t\x01I\x01true\x02"
    assert native.decode_body(recall, msg_type_map="b").dialects == ("5.5.0",)


GLUING = ("Java client 4.9.5 to 4.9.8", "Java client 5.1.4 to 5.3.0")


@pytest.mark.parametrize(
    ("shape", "dialect", "writers"),
    [
        (Shape(TraceType.SUB_AFTER, 7), "4.9.1", ("Java client 4.4.0 to 4.7.1", "Java client 4.9.1", "Go up to 2.1.0")),
        (Shape(TraceType.PUB, 15), "4.8.0", ("Java client 4.8.0", "Go 2.1.1 and later", "rocketmq-rust 2026")),
        (Shape(TraceType.RECALL, 7), "5.5.0", ("Java client 5.3.2 to 5.5.0", "rocketmq-rust 2026")),
        (Shape(TraceType.PUB, 14), "5.0.0", ("Java client 5.0.0 to 5.1.0",)),
        (Shape(TraceType.SUB_AFTER, 7, CloudSubAfter.GLUED), "5.1.4/CLOUD", GLUING),
        (Shape(TraceType.PUB, 3), None, ()),
    ],
)
def test_writers_are_named_as_ranges(shape, dialect, writers):
    assert writers_of(shape, dialect) == writers


WRITTEN_AS = {
    "4.4.0": "4.4.0",
    "4.6.1": "4.4.0",
    "4.9.8": "4.9.5",
    "5.1.0": "5.0.0",
    "5.3.0": "5.1.4",
    "5.3.3": "5.3.2",
}


def test_release_inside_a_range_is_written_as_its_dialect_and_any_other_is_refused():
    assert {release: dialect_named(release).name for release in WRITTEN_AS} == WRITTEN_AS
    for release, nearest in {"3.2.6": "4.4.0", "4.9.9": "4.9.8", "6.0.0": "5.5.0"}.items():
        with pytest.raises(UsageError, match=f"no release {release} .* nearest is {nearest}$"):
            dialect_named(release)


def test_quirks_of_a_dialect_name_its_map():
    assert all(("map B" in quirks_of(each)) is (each.message_type_map == "b") for each in native.DIALECTS.values())
