"""The records of bodies, good and bad, are laid into columns as the decoder reads them; no Spark is needed for that."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from otel_mqtrace.model import TraceType
from otel_mqtrace.wire.native.layout import FIELDS, FORMS, FieldKind
from spark_jobs.normalise.native import native_batches
from tests.spark_jobs.normalise.made_bodies import ID, UNREAD, batch, expected, in_words, read_bodies

WORDS = (
    "Pub",
    "SubBefore",
    "SubAfter",
    "EndTransaction",
    "Recall",
    "null",
    "",
    "true",
    "False",
    "dKey",
    "12",
    "-3",
    "+7",
)
JUNK = (
    "订单",
    "😀",
    "99999999999999999999",
    "2147483648",
    "٣",
    "1_0",
    " 1",
    "COMMIT_MESSAGE",
    "UNKNOW",
    "a b a",
    "\n",
    "x\r",
)


def assert_read_as_expected(bodies):
    """Read without Spark, as its workers do it; every record must be there, and the counts must balance."""
    read, count = read_bodies(*bodies)
    good, bad = ([row for row in read if (row["bad"] is None) is is_good] for is_good in (True, False))
    found = in_words(good, [row | row["bad"] for row in bad])
    assert found == expected(bodies)
    assert count + sum(row["extra"] for row in read) == len(read)


texts = st.sampled_from(WORDS + JUNK) | st.text(max_size=6)
wild = (
    st.lists(st.lists(texts, min_size=1, max_size=17).map("\x01".join), max_size=4)
    .map("\x02".join)
    .map(lambda text: text.encode("utf-8", "replace"))
)
GOOD = {
    FieldKind.TEXT: ("null", "", ID, f"{ID},{ID[:-1]}1", "k1 k2", "订单", "dKey", "SubAfter"),
    FieldKind.LONG: ("1795262479661", "-5", "+7", "٣", "9223372036854775807"),
    FieldKind.INT: ("0", "-3", "2147483647", "+1"),
    FieldKind.BOOL: ("true", "TRUE", "false", "yes"),
    FieldKind.MESSAGE_TYPE: ("0", "1", "2", "3", "4"),
    FieldKind.CONTEXT_CODE: ("0", "1", "4"),
    FieldKind.TRANSACTION_STATE: ("COMMIT_MESSAGE", "ROLLBACK_MESSAGE", "UNKNOW"),
}


@st.composite
def nearly_right(draw):
    """A record of a real form, with up to two fields spoilt and any ending."""
    trace_type = draw(st.sampled_from(TraceType))
    form = draw(st.sampled_from(FORMS[trace_type]))
    fields = [trace_type.value, *(draw(st.sampled_from(GOOD[FIELDS[name]])) for name in form.fields)]
    for _ in range(draw(st.integers(0, 2))):
        fields[draw(st.integers(0, len(fields) - 1))] = draw(texts)
    return ("\x01".join(fields) + draw(st.sampled_from(["\x02", "\x02", "\x01\x02", "\x01", ""]))).encode(
        "utf-8", "replace"
    )


records = st.lists(nearly_right(), min_size=1, max_size=6).map(b"".join)


@settings(max_examples=300, deadline=None)
@given(bodies=st.lists(records | records | wild | st.binary(max_size=24), max_size=6))
def test_made_up_bodies_read_as_the_python_decoder_reads_them(bodies):
    """Wild texts, damaged records, bytes that are no text, laid into columns: each says what the decoder says."""
    assert_read_as_expected(bodies)


def test_every_field_of_every_form_is_spoilt_in_every_way_alike():
    """Each field of the layout table, one at a time, with each junk text: the same verdict in the same words."""
    junk = (*JUNK, "", "null", "5", "-1")
    bodies = []
    for trace_type, forms in FORMS.items():
        for form in forms:
            good = [trace_type.value, *(GOOD[FIELDS[name]][0] for name in form.fields)]
            bodies += [
                "\x01".join([*good[:at], text, *good[at + 1 :]]).encode() for at in range(len(good)) for text in junk
            ]
    assert len(bodies) > 1500
    assert_read_as_expected(bodies)


def test_a_row_without_a_body_stays_what_it_is_among_records_good_and_bad():
    """It is one piece that was expected, and keeps the words of who could not read it."""
    good = f"Recall\x015\x01r\x01g\x01t\x01{ID}\x01true\x02"
    read, count = read_bodies((good + "junk\x02").encode(), UNREAD, good.encode())
    found = [(row["line"], row["record_index"], row["bad"] and row["bad"]["reason"]) for row in read]
    assert found == [(1, 0, None), (1, 1, "unknown record type"), (9, 0, "no body"), (3, 0, None)]
    assert (count, {row["side"] for row in read}) == (4, {"native"})


def test_half_a_character_of_a_strange_charset_is_a_question_mark():
    """UTF-7 can say one; no column of text can hold it, and no other record may be lost for it."""
    body = f"Recall\x015\x01r\x01g\x01t+2AA-\x01{ID}\x01true\x02".encode()
    read, _ = read_bodies(body, charset="utf-7")
    assert [row["topic"] for row in read] == ["t?"]


def test_bodies_of_separators_or_of_nothing_hold_no_record():
    """However long they are, and where there is none at all."""
    assert read_bodies(b"\x02" * (9 << 20), b"", {"path": "made", "line": 3, "body": None}) == ([], 0)


def test_a_batch_send_of_thousands_is_laid_out_some_at_a_time():
    """Each message has its own ids; what is said once for all of them is not held a thousand times at once."""
    ids, keys = [f"{at:032X}" for at in range(3_000)], "k" * 100_000
    fields = ["Pub", "1000", "r", "g", "t", ",".join(ids), "a", keys, "h:1", "9", "5", "0", ",".join(ids[::-1]), "true"]
    made = list(native_batches([batch(("\x01".join(fields) + "\x02").encode() * 2)], writer="mqtrace"))
    rows = [row for some in made for row in some.select(["msg_id", "offset_msg_id", "record_index"]).to_pylist()]
    expected_ids = [(one, offset, record) for record in (0, 1) for one, offset in zip(ids, ids[::-1], strict=True)]
    assert [tuple(row.values()) for row in rows[:-1]] == expected_ids
    assert max(some.nbytes for some in made) < 20 << 20


def test_what_stood_otherwise_on_the_wire_has_another_hash():
    """Copies in the same bytes are facts from those that say the same: CLOUD leaves an empty field, or no end."""
    fields = f"SubAfter\x01REQ\x01{ID}\x013\x01true\x01null\x010"
    read, _ = read_bodies(f"{fields}\x02{fields}\x01\x02{fields}\x02".encode())
    one, other, again = (row["raw_hash"] for row in read)
    assert one == again != other


def test_long_bodies_are_laid_into_columns_apart():
    """Thousands of records are several batches; nothing depends on where one ends."""
    body = "".join(f"Recall\x01{at}\x01r\x01g\x01t\x01{ID}\x01true\x02" for at in range(3_000)).encode()
    read, count = read_bodies(body, body, body)
    assert [(row["line"], row["record_index"]) for row in read] == [(at, n) for at in (1, 2, 3) for n in range(3_000)]
    assert (count, len({row["raw_hash"] for row in read})) == (9_000, 3_000)
