"""A body of any size, read in parts: the same records, the memory of one part."""

from __future__ import annotations

import io
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_mqtrace._errors import UsageError
from otel_mqtrace.wire.native import decode_body, decode_stream
from tests.proofs.fuzz.laws import joined
from tests.support.native_vectors import RECORDED_FILES, recorded


@given(
    st.lists(st.sampled_from([b"Pub\x01", b"\x01", b"\x02", b"SubAfter\x01R\x01I\x011\x01true\x01k\x010\x01", b"x"])),
    st.integers(1, 30),
)
def test_parts_say_what_the_whole_says(pieces, part_bytes):
    body = b"".join(pieces)
    parts = decode_stream(io.BytesIO(body).read, part_bytes=part_bytes)
    assert joined(parts) == decode_body(body)


@pytest.mark.parametrize("name", RECORDED_FILES)
@pytest.mark.parametrize("part_bytes", [7, 4096])
def test_recorded_bodies_are_read_in_parts_as_whole(name, part_bytes):
    body = b"".join(each.body for each in recorded(name))
    assert joined(decode_stream(io.BytesIO(body).read, part_bytes=part_bytes)) == decode_body(body)


def test_a_charset_without_the_separators_is_read_whole():
    """In UTF-16 the byte 2 may be half a character."""
    body = "Pub\x01Ȃ\x02".encode("utf-16-le")
    assert joined(decode_stream(io.BytesIO(body).read, part_bytes=3, charset="utf-16-le")) == decode_body(
        body, charset="utf-16-le"
    )


@pytest.mark.parametrize("charset", ["iso-2022-jp", "utf-7", "hz"])
def test_a_charset_that_shifts_is_read_whole(charset):
    body = ("Foo\x01客\x02" * 9).encode(charset, errors="replace")
    assert joined(decode_stream(io.BytesIO(body).read, part_bytes=5, charset=charset)) == decode_body(
        body, charset=charset
    )


@pytest.mark.parametrize("charset", ["gb18030", "gbk", "big5", "euc-jp", "shift_jis", "utf-8"])
@pytest.mark.parametrize("half", [b"\xb1", b"\xb14", b"\x8f\xa1", b"\xf0\x9f\x92"])
def test_half_a_character_does_not_take_the_terminator_along(charset, half):
    """Found by fuzzing: in GB18030 a terminator at the end of the input vanished behind half a character."""
    good = b"SubAfter\x01R\x01I\x011\x01true\x01k\x010\x02"
    body = good + b"B" + half + b"\x02"
    whole = decode_body(body + good, charset=charset)
    assert (len(whole.contexts), len(whole.errors)) == (2, 1)
    assert decode_body(body, charset=charset).errors == whole.errors
    for part_bytes in (1, len(good), len(body)):
        assert joined(decode_stream(io.BytesIO(body + good).read, charset=charset, part_bytes=part_bytes)) == whole


def test_a_wrong_charset_fails_before_anything_is_read():
    def read(_count):
        raise AssertionError("was read")

    with pytest.raises(UsageError, match="klingon"):
        next(decode_stream(read, charset="klingon"))


def test_what_never_ends_is_one_bad_record_and_is_not_kept():
    good = b"SubAfter\x01R\x01I\x011\x01true\x01k\x010\x02"
    body = good + b"y" * 5_000 + b"\x02" + good
    whole = joined(decode_stream(io.BytesIO(body).read, part_bytes=100, max_record_bytes=1_000))
    assert whole.record_indexes == (0, 2)
    assert [(error.record_index, error.reason) for error in whole.errors] == [(1, "longer than any record")]


def test_memory_does_not_grow_with_the_body():
    """Eight megabytes in the memory of a few parts of 32 KiB."""
    record = b"SubAfter\x01" + b"R" * 2_000 + b"\x01I\x011\x01true\x01k\x010\x02"
    repeats = 8 * 1024 * 1024 // len(record)
    left = [repeats]

    def read(count):
        number = min(left[0], max(1, count // len(record)))
        left[0] -= number
        return record * number

    tracemalloc.start()
    try:
        assert sum(len(part.contexts) for part in decode_stream(read, part_bytes=32 * 1024)) == repeats
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 1024 * 1024
