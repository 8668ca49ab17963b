"""The remoting protocol's commands and the stored message."""

import json
import struct
import sys
import zlib
from contextlib import suppress
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_mqtrace._errors import MissingExtraError
from otel_mqtrace.rocketmq import messages
from otel_mqtrace.rocketmq.commands import Command, FrameReader, ProtocolError, encode_command
from tests.support.rocketmq_remoting import stored

# What RemotingCommand of RocketMQ 5.5.0 encodes for an answer with a field, a remark and a body.
FRAME = bytes.fromhex(
    "00000099000000927b22636f6465223a31372c226578744669656c6473223a7b226f6666736574223a2232227d2c22666c6167223a312c226c"
    "616e6775616765223a224a415641222c226f7061717565223a372c2272656d61726b223a226e6f207375636820746f706963222c2273657269"
    "616c697a655479706543757272656e74525043223a224a534f4e222c2276657273696f6e223a307d616263"
)


def test_answer_of_java_is_read():
    [answer] = FrameReader().feed(FRAME)
    assert answer == Command(17, {"offset": "2"}, b"abc", opaque=7, is_response=True, remark="no such topic")


def test_request_is_written_as_java_reads_it():
    """Length, serialize type JSON, header, body; 4.9.4's version number so that name servers write standard JSON."""
    frame = encode_command(Command(11, {"topic": "T"}, b"body", opaque=5))
    length, header_length = struct.unpack_from(">ii", frame)
    assert length == len(frame) - 4
    assert frame[8 + header_length :] == b"body"
    of_every_request = {"language": "PYTHON", "version": 401, "flag": 0}
    own = {"code": 11, "opaque": 5, "extFields": {"topic": "T"}}
    assert json.loads(frame[8 : 8 + header_length]) == {**of_every_request, **own}


_commands = st.builds(
    Command,
    code=st.integers(-(2**31), 2**31 - 1),
    fields=st.dictionaries(st.text(), st.text()),
    body=st.binary(),
    opaque=st.integers(0, 2**31 - 1),
    is_response=st.booleans(),
    remark=st.none() | st.text(),
)


@given(st.lists(_commands, max_size=4), st.lists(st.integers(1, 40)))
def test_commands_are_read_from_any_parts_of_the_stream(commands, cuts):
    stream = b"".join(map(encode_command, commands))
    reader, frames = FrameReader(), []
    for cut in cuts:
        frames += reader.feed(stream[:cut])
        stream = stream[cut:]
    frames += reader.feed(stream)
    assert frames == commands


@given(st.binary(max_size=200), st.integers(0, 255))
def test_any_header_is_a_command_or_a_protocol_error(header, kind):
    with suppress(ProtocolError):
        FrameReader().feed(_frame(header, kind))


def _frame(header, kind=0):
    return struct.pack(">II", 4 + len(header), kind << 24 | len(header)) + header


@pytest.mark.parametrize(
    ("frame", "complaint"),
    [
        (_frame(b"[1]"), "not a JSON object"),
        *((_frame(header), "not JSON") for header in (b"{", b"\xff", b"[" * 100_000)),
        *((_frame(header), "code") for header in (b'{"code":"x"}', b'{"code":true}')),
        (_frame(b'{"extFields":[]}'), "extFields"),
        (_frame(b"{}", 1), "serialize type 1"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "not a RocketMQ remoting port"),
        (struct.pack(">II", 3, 0), "not a RocketMQ remoting port"),
    ],
    ids=lambda each: repr(each)[:30],
)
def test_malformed_frame_is_named(frame, complaint):
    with pytest.raises(ProtocolError, match=complaint):
        FrameReader().feed(frame)


def test_fields_other_than_text_are_read_as_json():
    [command] = FrameReader().feed(_frame(b'{"code":0,"extFields":{"a":1,"b":true}}'))
    assert command.fields == {"a": "1", "b": "true"}


# MessageDecoder.encode of RocketMQ 5.5.0: hosts of IPv4; then of IPv6, and the body by zstd.
IPV4 = bytes.fromhex(
    "0000009cdaa320a7000000000000000300000001000000000000002a0000000000001267000000000000018bcfe568010a0000070000c3cb00"
    "00018bcfe568020a00000800002a9f0000000200000000000000000000000650756201780213524d515f5359535f54524143455f544f504943"
    "00284b4559530169642d31206f726465722d31026d7174726163652e6469616c65637401352e352e3002"
)
IPV6 = bytes.fromhex(
    "000000c0daa320a7000000000000000300000001000000000000002a0000000000001267000002310000018bcfe5680120010db80000000000"
    "000000000000070000c3cb0000018bcfe5680220010db800000000000000000000000800002a9f000000020000000000000000000000122"
    "8b52ffd005830000050756201780201000013524d515f5359535f54524143455f544f50494300284b4559530169642d31206f726465722d3102"
    "6d7174726163652e6469616c65637401352e352e3002"
)
# What RocketMQ 5.5.0's compressors make of PLAIN, by their number in the sysFlag.
PLAIN = b"trace trace trace trace trace trace"
PACKED = {
    0: "785e2b294a4c4e5528c1470200eac50cfb",
    1: "04224d18607073100000006f74726163652006000550747261636500000000",
    2: "28b52ffd0058640000307472616365200100b94b11010000",
    3: "785e2b294a4c4e5528c1470200eac50cfb",
}
EXPECTED = messages.StoredMessage(
    topic="RMQ_SYS_TRACE_TOPIC",
    queue_id=3,
    queue_offset=42,
    sys_flag=0,
    store_ms=1_700_000_000_002,
    properties={"KEYS": "id-1 order-1", "mqtrace.dialect": "5.5.0"},
    stored_body=b"Pub\x01x\x02",
)


def test_stored_message_is_read_as_java_wrote_it():
    """Then one with hosts of IPv6 and a compressed body."""
    first, second, other = messages.decode_messages(IPV4 * 2 + IPV6)
    assert first == second == EXPECTED
    assert (other.store_ms, messages.decompress_body(other)) == (EXPECTED.store_ms, b"Pub\x01x\x02")


def test_long_topic_name_is_read():
    name = b"T" * 300
    old = struct.pack(">B", 1) + b"T"
    raw = stored(b"x", properties={"KEYS": "k"})
    raw = raw.replace(old + struct.pack(">H", 7), struct.pack(">H", 300) + name + struct.pack(">H", 7))
    raw = struct.pack(">iI", len(raw), 0xDAA320AB) + raw[8:]
    [message] = messages.decode_messages(raw)
    assert (message.topic, message.properties) == (name.decode(), {"KEYS": "k"})


@pytest.mark.parametrize("kind", PACKED)
def test_body_is_decompressed_as_java_compressed_it(kind):
    """Number 0 is zlib of before 5.0."""
    message = replace(EXPECTED, sys_flag=1 | kind << 8, stored_body=bytes.fromhex(PACKED[kind]))
    assert messages.decompress_body(message) == PLAIN


@pytest.mark.parametrize(
    ("body", "is_compressed"), [(b"x" * 4_096, True), (b"x" * 4_095, False), (Random(0).randbytes(4_096), False)]
)
def test_body_is_compressed_only_where_that_pays(body, is_compressed):
    packed, sys_flag = messages.compress_body(body)
    assert (len(packed) < len(body), sys_flag != 0) == (is_compressed, is_compressed)
    assert messages.decompress_body(replace(EXPECTED, stored_body=packed, sys_flag=sys_flag)) == body


@pytest.mark.parametrize("kind", [0, 1, 2, 3, 4, 7])
@given(st.binary(max_size=60))
def test_any_compressed_body_is_plain_or_a_body_error(kind, body):
    message = replace(EXPECTED, sys_flag=1 | kind << 8, stored_body=body)
    with suppress(messages.BodyError):
        messages.decompress_body(message)


def test_truncated_body_is_an_error():
    with pytest.raises(messages.BodyError, match=r"RMQ_SYS_TRACE_TOPIC \[3\] offset 42 .*cut off"):
        messages.decompress_body(replace(EXPECTED, sys_flag=1, stored_body=zlib.compress(PLAIN * 100)[:-8]))


@pytest.mark.parametrize("kind", [1, 2, 3])
def test_body_larger_than_the_limit_is_refused(kind, monkeypatch):
    monkeypatch.setattr(messages, "_MAX_BODY_BYTES", len(PLAIN) - 1)
    with pytest.raises(messages.BodyError, match="larger"):
        messages.decompress_body(replace(EXPECTED, sys_flag=1 | kind << 8, stored_body=bytes.fromhex(PACKED[kind])))


def test_missing_pyarrow_is_reported_with_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingExtraError, match=r"compressed by lz4 .*otel-mqtrace\[reconcile\]"):
        messages.decompress_body(replace(EXPECTED, sys_flag=1 | 1 << 8, stored_body=b""))


@given(st.integers(0, len(IPV6) - 1), st.binary(min_size=1, max_size=8))
def test_damaged_message_is_messages_or_a_protocol_error(at, damage):
    with suppress(ProtocolError):
        messages.decode_messages(IPV6[:at] + damage + IPV6[at + len(damage) :])


@pytest.mark.parametrize("length", range(1, len(IPV4)))
def test_truncated_message_is_reported(length):
    with pytest.raises(ProtocolError, match="at byte 0"):
        messages.decode_messages(IPV4[:length])


def test_malformed_properties_are_skipped_and_separators_inside_are_replaced():
    assert messages.encode_properties({"a\x01": "b\x02c"}) == "a_\x01b_c\x02"
    assert messages.decode_properties("a\x01b\x02c\x02\x01d\x02e\x01\x02f\x01g\x01h") == {"a": "b", "f": "g\x01h"}
