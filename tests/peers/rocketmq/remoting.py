"""Enough of RocketMQ's remoting protocol to ask a name server or broker one question."""

import json
import socket
import struct
from collections.abc import Mapping
from typing import Any

UPDATE_AND_CREATE_TOPIC, GET_BROKER_CLUSTER_INFO, UPDATE_AND_CREATE_GROUP = 17, 106, 200
SUCCESS = 0
_REQUEST_VERSION, _ANSWER_SECONDS = 479, 30


class RefusedError(Exception):
    """The server answered, and not with success."""


def ask(address: str, code: int, fields: Mapping[str, object] | None = None, body: bytes = b"") -> bytes:
    """Return the body of the answer to one request; ``OSError`` without an answer."""
    header: dict[str, Any] = {"code": code, "language": "PYTHON", "version": _REQUEST_VERSION, "opaque": 1, "flag": 0}
    header["extFields"] = {name: str(value) for name, value in (fields or {}).items()}
    encoded = json.dumps(header).encode()
    host, port = address.split(":")
    with socket.create_connection((host, int(port)), timeout=_ANSWER_SECONDS) as connection:
        connection.sendall(struct.pack(">II", 4 + len(encoded) + len(body), len(encoded)) + encoded + body)
        stream = connection.makefile("rb")
        total, marked = struct.unpack(">II", _exactly(stream, 8))
        length = marked & 0xFFFFFF  # the first byte says how the header is written: 0, JSON
        answer = json.loads(_exactly(stream, length))
        content = _exactly(stream, total - 4 - length)
    if answer["code"] != SUCCESS:
        raise RefusedError(f"{code} at {address}: {answer['code']} {answer.get('remark')}")
    return content


def _exactly(stream: Any, count: int) -> bytes:
    got: bytes = stream.read(count)
    if len(got) != count:
        raise ConnectionError(f"{len(got)} of {count} bytes came")
    return got
