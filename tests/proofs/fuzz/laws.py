"""Laws that hold for any bytes: the fuzzer and hypothesis test the codec against them."""

import io
import json
from collections.abc import Iterable

from bridge.codec.records_json import body_json, dump, read_record
from otel_mqtrace._errors import EncodeError
from otel_mqtrace.wire.native import DecodedBody, WriterGuesses, decode_body, decode_stream, encode_context, explode
from otel_mqtrace.wire.native.decode import MAX_OFFENDING_TEXT

CHARSETS = ("utf-8", "gbk", "gb18030", "big5", "shift_jis", "euc-jp", "latin-1", "utf-16-le", "utf-7", "iso-2022-jp")
MAPS = ("a", "b")
PARTS_BYTES = (64, 1, 7, 1_000)


def hold_for(data: bytes) -> DecodedBody:
    """Read ``data`` as one body whose first byte chooses charset, map and size of a part; return what it says."""
    choice, body = data[0] if data else 0, data[1:]
    charset, msg_type_map = CHARSETS[choice % len(CHARSETS)], MAPS[choice // len(CHARSETS) % len(MAPS)]
    decoded = decode_body(body, charset=charset, msg_type_map=msg_type_map)
    every_piece_is_accounted_for(decoded)
    parts_equal_the_whole(body, decoded, charset, msg_type_map, part_bytes=PARTS_BYTES[choice // 20 % len(PARTS_BYTES)])
    what_is_written_again_is_read_as_the_same(decoded)
    the_json_of_a_record_is_the_record(decoded)
    guesses = WriterGuesses(msg_type_map=msg_type_map)
    guesses.take(decoded)
    assert sum(guess.records for guess in guesses.guesses()) == len(decoded.contexts)
    return decoded


def every_piece_is_accounted_for(decoded: DecodedBody) -> None:
    """Good and bad records together are numbered without a gap, and evidence is short."""
    good = decoded.record_indexes
    assert len(decoded.contexts) == len(good) == len(decoded.dialects) == len(decoded.shapes)
    assert sorted([*good, *(error.record_index for error in decoded.errors)]) == list(
        range(len(good) + len(decoded.errors))
    )
    assert all(len(error.text) <= MAX_OFFENDING_TEXT for error in decoded.errors)
    assert all(len(trace_ctx.beans) == 1 for trace_ctx in decoded.contexts)


def joined(stream: Iterable[DecodedBody]) -> DecodedBody:
    """Return the parts of a stream as one body."""
    parts = list(stream)
    return DecodedBody(
        tuple(each for part in parts for each in part.contexts),
        tuple(each for part in parts for each in part.errors),
        tuple(each for part in parts for each in part.record_indexes),
        tuple(each for part in parts for each in part.dialects),
        tuple(each for part in parts for each in part.shapes),
        sum(part.replaced for part in parts),
    )


def parts_equal_the_whole(body: bytes, whole: DecodedBody, charset: str, msg_type_map: str, *, part_bytes: int) -> None:
    """Wherever the reads end, a stream is the body."""
    read = io.BytesIO(body).read
    parts = decode_stream(read, charset=charset, msg_type_map=msg_type_map, part_bytes=part_bytes)
    assert joined(parts) == whole


def what_is_written_again_is_read_as_the_same(decoded: DecodedBody) -> None:
    """Any record that was read can be written in a dialect that has its type; what that keeps, it keeps for good."""
    for trace_ctx in decoded.contexts:
        for dialect in ("4.8.0", "5.0.0", "5.5.0"):
            try:
                written = encode_context(trace_ctx, dialect)
            except EncodeError:  # this dialect cannot say it
                continue
            again = decode_body(written.body, msg_type_map="b" if dialect == "5.0.0" else "a")
            assert (len(again.contexts), again.errors, written.replaced) == (1, (), 0)
            assert encode_context(again.contexts[0], dialect).body == written.body
        for one in explode(trace_ctx):
            assert one.beans[0].topic == trace_ctx.beans[0].topic


def the_json_of_a_record_is_the_record(decoded: DecodedBody) -> None:
    """``mqtrace decode`` loses nothing that ``mqtrace encode`` needs."""
    items = [json.loads(dump(item)) for item in body_json(0, decoded)]
    records = [read_record(item) for item in items if "error" not in item]
    assert len(items) == len(decoded.contexts) + len(decoded.errors)
    assert [one._replace(access_channel=None) for one in records] == [
        one._replace(access_channel=None) for one in decoded.contexts
    ]
