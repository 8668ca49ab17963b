"""Hostile bodies and streams of any size."""

import gc
import io
import tracemalloc

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from otel_mqtrace.wire.native import decode as decoding
from otel_mqtrace.wire.native import decode_body, decode_stream
from otel_mqtrace.wire.native.decode import MAX_OFFENDING_TEXT
from tests.proofs.fuzz import laws
from tests.proofs.fuzz.laws import joined
from tests.support.native_vectors import VECTORS, json_lines
from tests.support.strategies import bodies

SEEDS = [
    item["body"].encode()
    for name in ("golden", "read_only", "decode_only")
    for item in json_lines(VECTORS / f"{name}.jsonl")
]
GLUED = b"SubAfter\x01R\x01I\x011\x01true\x01k\x010\x01"
ODD = (
    *b"\x00|\xff|\xfe|\xc0\x80|\xed\xa0\xbd|\xf0\x9f\x92\xa9|\xef\xbb\xbf|\r\n|\xe2\x80\xae|-|NaN".split(b"|"),
    *(digit.encode() for digit in "\u0663\U0001d7da\xb2"),
    *(byte * 5_000 for byte in (b"9", b"0")),
    *(byte * 40 for byte in (b"\x01", b"\x02")),
    GLUED,
)


@pytest.fixture(scope="module", autouse=True)
def _nothing_older():
    gc.collect()
    gc.freeze()


@st.composite
def damaged(draw):
    body = draw(st.sampled_from(SEEDS))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(body)))
        until = draw(st.integers(at, min(len(body), at + 8)))
        new = draw(st.sampled_from(ODD) | st.binary(max_size=4) | st.just(body[at:until] * 2))
        body = body[:at] + new + body[until:]
    return body


@given(st.integers(0, 255), bodies | damaged())
@example(6, b"B\xb14\x02" + GLUED)
def test_laws_hold_for_any_bytes(choice, body):
    decoded = laws.hold_for(bytes([choice]) + body)
    if choice % len(laws.CHARSETS) == 0:
        pieces = [piece for piece in body.decode(errors="replace").split("\x02") if piece]
        assert len(decoded.contexts) + len(decoded.errors) >= len(pieces)


def test_piece_longer_than_any_record_is_one_bad_record(monkeypatch):
    monkeypatch.setattr(decoding, "MAX_RECORD_LENGTH", 1_000)
    good = GLUED[:-1] + b"\x02"
    for piece in (b"\x01" * 1_001, b"y" * 5_000):
        body = good + piece + b"\x02" + good
        whole = decode_body(body)
        assert whole.record_indexes == (0, 2)
        assert [(error.record_index, error.reason) for error in whole.errors] == [(1, "longer than any record")]
        assert whole.errors[0].text == piece[:MAX_OFFENDING_TEXT].decode()
        assert joined(decode_stream(io.BytesIO(body).read, part_bytes=64, max_record_bytes=1_000)) == whole


LONG = {
    "good records": lambda size: (b"SubAfter\x01" + b"R" * 200 + GLUED[10:-1] + b"\x02") * (size // 230),
    "glued records": lambda size: GLUED * (size // len(GLUED)),
    "glue without records": lambda size: b"SubAfter\x01" * (size // 9),
    "almost glued": lambda size: (GLUED[:-1] + b"\x01Nothing\x01") * (size // 32),
    "field separators": lambda size: b"\x01" * size,
    "terminators": lambda size: b"\x02" * size,
    "bad records": lambda size: b"x\x02" * (size // 2),
    "one field": lambda size: b"Pub\x01" + b"1" * size,
    "empty fields at the end": lambda size: b"SubAfter\x01R" + b"\x01" * size,
    "half characters": lambda size: b"\xf0\x9f\x92" * (size // 3),
}


def _peak_bytes(act):
    peaks = []
    for _ in range(3):
        gc.collect()
        tracemalloc.start()
        try:
            act()
            peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
    return min(peaks)


@pytest.mark.parametrize("kind", LONG)
def test_memory_of_a_stream_is_that_of_a_part(kind):
    part_bytes = 1_000

    def drain(body):
        for _ in decode_stream(io.BytesIO(body).read, part_bytes=part_bytes, max_record_bytes=4 * part_bytes):
            pass

    few, many = LONG[kind](5 * part_bytes), LONG[kind](20 * part_bytes)
    drain(few)
    assert _peak_bytes(lambda: drain(many)) <= _peak_bytes(lambda: drain(few)) + 30_000


@pytest.mark.parametrize("charset", ["utf-16-le", "iso-2022-jp", "utf-7", "hz"])
def test_charset_with_separators_inside_characters_is_the_same_read_in_parts(charset):
    body = ("Foo\x01客Ȃ\x02" * 9).encode(charset, errors="replace")
    assert joined(decode_stream(io.BytesIO(body).read, part_bytes=5, charset=charset)) == decode_body(
        body, charset=charset
    )


@pytest.mark.parametrize("charset", ["gb18030", "gbk", "big5", "euc-jp", "shift_jis", "utf-8"])
@pytest.mark.parametrize("half", [b"\xb1", b"\xb14", b"\x8f\xa1", b"\xf0\x9f\x92"])
def test_half_a_character_leaves_the_terminator(charset, half):
    """Found by fuzzing: in GB18030 a terminator at the end of the input vanished behind half a character."""
    good = b"SubAfter\x01R\x01I\x011\x01true\x01k\x010\x02"
    body = good + b"B" + half + b"\x02"
    whole = decode_body(body + good, charset=charset)
    assert (len(whole.contexts), len(whole.errors)) == (2, 1)
    assert decode_body(body, charset=charset).errors == whole.errors
    for part_bytes in (1, len(good), len(body)):
        assert joined(decode_stream(io.BytesIO(body + good).read, charset=charset, part_bytes=part_bytes)) == whole
