"""Remoting frames, by golden bytes and by any bytes."""

from __future__ import annotations

import json
import struct
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_mqtrace.rocketmq.frames import Command, FrameReader, ProtocolError, encode_command, response_to

# What RemotingCommand of RocketMQ 5.5.0 encodes for an answer with a field, a remark and a body.
FRAME = bytes.fromhex(
    "00000099000000927b22636f6465223a31372c226578744669656c6473223a7b226f6666736574223a2232227d2c22666c6167223a312c226c"
    "616e6775616765223a224a415641222c226f7061717565223a372c2272656d61726b223a226e6f207375636820746f706963222c2273657269"
    "616c697a655479706543757272656e74525043223a224a534f4e222c2276657273696f6e223a307d616263"
)


def test_an_answer_of_java_is_read():
    [answer] = FrameReader().feed(FRAME)
    assert answer == Command(17, {"offset": "2"}, b"abc", opaque=7, is_response=True, remark="no such topic")


def test_a_request_is_written_as_java_reads_it():
    """Length, serialize type JSON, header, body; 4.9.4's version number so that name servers write standard JSON."""
    frame = encode_command(Command(11, {"topic": "T"}, b"body", opaque=5))
    length, header_length = struct.unpack_from(">ii", frame)
    assert length == len(frame) - 4
    assert frame[8 + header_length :] == b"body"
    assert json.loads(frame[8 : 8 + header_length]) == {
        "code": 11,
        "language": "PYTHON",
        "version": 401,
        "opaque": 5,
        "flag": 0,
        "extFields": {"topic": "T"},
    }


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
def test_commands_survive_any_cut_of_the_stream(commands, cuts):
    stream = b"".join(map(encode_command, commands))
    reader, found = FrameReader(), []
    for cut in cuts:
        found += reader.feed(stream[:cut])
        stream = stream[cut:]
    found += reader.feed(stream)
    assert found == commands
    assert reader.waiting_bytes == 0


@given(st.lists(st.binary(max_size=64)))
def test_any_bytes_are_a_command_or_an_error_of_ours(parts):
    """Never another exception."""
    reader = FrameReader(max_frame_bytes=1_000)
    with suppress(ProtocolError):
        for part in parts:
            reader.feed(part)


@given(st.binary(max_size=200), st.integers(0, 255))
def test_any_header_is_a_command_or_an_error_of_ours(header, kind):
    frame = struct.pack(">II", 4 + len(header), kind << 24 | len(header)) + header
    with suppress(ProtocolError):
        FrameReader().feed(frame)


@pytest.mark.parametrize(
    ("header", "complaint"),
    [
        (b"[1]", "no JSON object"),
        (b"{", "no JSON"),
        (b"\xff", "no JSON"),
        (b"[" * 100_000, "no JSON"),
        (b'{"code":"x"}', "code"),
        (b'{"code":true}', "code"),
        (b'{"extFields":[]}', "extFields"),
    ],
)
def test_a_header_that_is_none_is_named(header, complaint):
    frame = struct.pack(">ii", 4 + len(header), len(header)) + header
    with pytest.raises(ProtocolError, match=complaint):
        FrameReader().feed(frame)


def test_what_speaks_another_protocol_is_told_at_its_first_bytes():
    with pytest.raises(ProtocolError, match="no RocketMQ remoting port"):
        FrameReader().feed(b"HTTP/1.1 400 Bad Request\r\n\r\n")


def test_a_binary_header_is_refused_by_name():
    """We ask in JSON, so this never comes from a RocketMQ."""
    with pytest.raises(ProtocolError, match="serialize type 1"):
        FrameReader().feed(struct.pack(">ii", 4 + 2, 1 << 24 | 2) + b"{}")


def test_fields_without_text_are_read_as_json_says_them():
    header = b'{"code":0,"extFields":{"a":1,"b":true}}'
    [command] = FrameReader().feed(struct.pack(">ii", 4 + len(header), len(header)) + header)
    assert command.fields == {"a": "1", "b": "true"}


def test_an_answer_carries_the_number_of_its_request():
    assert response_to(Command(11, opaque=9), 19, remark="none").opaque == 9
