"""RocketMQ's remoting frames: one command, request or response, as bytes. No I/O.

::

    length (4) · serialize type (1) and header length (3) · header · body

``length`` counts everything after itself. The header is a JSON object (serialize type 0): a server answers in the
request's form, so RocketMQ's binary header (type 1) never comes. Source: ``RemotingCommand`` of apache/rocketmq.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from otel_mqtrace._errors import PeerError

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_FRAME_BYTES: Final = 64 * 1024 * 1024
"""Far above Java's default of 16 MiB: what announces more is not RocketMQ."""
_LENGTH: Final = struct.Struct(">I")
_PREFIX: Final = struct.Struct(">II")
_HEADER_LENGTH_MASK: Final = 0xFFFFFF
_JSON: Final = 0
_TYPE_SHIFT: Final = 24
_RESPONSE: Final = 1  # bit of the header's ``flag``
_LANGUAGE: Final = "PYTHON"
_VERSION: Final = 401
"""``MQVersion.V4_9_4``: name servers write standard JSON to it; newer versions may be refused."""


class ProtocolError(PeerError):
    """Bytes that violate RocketMQ's remoting protocol; the text names the error and its place."""


@dataclass(frozen=True, slots=True)
class Command:
    """A request or an answer.

    ``code`` is the request code, or in an answer the response code; ``opaque`` pairs the two; ``fields`` are the
    header's ``extFields``, texts by name; ``remark`` is a server's own sentence.
    """

    code: int
    fields: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    opaque: int = 0
    is_response: bool = False
    remark: str | None = None

    def numbered(self, opaque: int) -> Command:
        """Return the same command under ``opaque``."""
        return replace(self, opaque=opaque)


def response_to(
    request: Command, code: int, fields: Mapping[str, str] | None = None, body: bytes = b"", remark: str | None = None
) -> Command:
    """Return the answer to ``request`` as a server gives it."""
    return Command(code, fields or {}, body, request.opaque, is_response=True, remark=remark)


def encode_command(command: Command) -> bytes:
    """Return ``command`` as one frame."""
    header: dict[str, Any] = {
        "code": command.code,
        "language": _LANGUAGE,
        "version": _VERSION,
        "opaque": command.opaque,
        "flag": _RESPONSE if command.is_response else 0,
        "extFields": dict(command.fields),
    }
    if command.remark is not None:
        header["remark"] = command.remark
    text = json.dumps(header).encode()
    return _PREFIX.pack(_LENGTH.size + len(text) + len(command.body), len(text)) + text + command.body


class FrameReader:
    """Cuts a stream of bytes into commands, however it arrives. After a :class:`ProtocolError` the stream is lost."""

    def __init__(self, *, max_frame_bytes: int = MAX_FRAME_BYTES) -> None:
        self._max_frame_bytes = max_frame_bytes
        self._buffer = bytearray()

    @property
    def waiting_bytes(self) -> int:
        """How much of an unfinished frame is there."""
        return len(self._buffer)

    def feed(self, data: bytes) -> list[Command]:
        """Take ``data`` and return the commands that are complete now.

        Raises:
            ProtocolError: the data is not a frame.
        """
        self._buffer += data
        commands: list[Command] = []
        start = 0
        with memoryview(self._buffer) as view:
            while len(view) - start >= _PREFIX.size:
                end = start + _LENGTH.size + self._length_at(start)
                if end > len(view):
                    break
                commands.append(_decode(view[start + _LENGTH.size : end]))
                start = end
        del self._buffer[:start]
        return commands

    def _length_at(self, start: int) -> int:
        length: int = _LENGTH.unpack_from(self._buffer, start)[0]
        if not _LENGTH.size <= length <= self._max_frame_bytes:
            raise ProtocolError(f"a frame of {length} bytes is announced: this is not a RocketMQ remoting port")
        return length


def _decode(frame: memoryview) -> Command:
    """Return the command of ``frame``, which begins behind the length."""
    with frame:
        marked = _LENGTH.unpack_from(frame)[0]
        kind, header_end = marked >> _TYPE_SHIFT, _LENGTH.size + (marked & _HEADER_LENGTH_MASK)
        if kind != _JSON:
            raise ProtocolError(f"a header has serialize type {kind} instead of JSON (0)")
        if header_end > len(frame):
            raise ProtocolError(f"a header of {header_end - _LENGTH.size} bytes does not fit its frame")
        header, body = bytes(frame[_LENGTH.size : header_end]), bytes(frame[header_end:])
    try:
        document = json.loads(header)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"a header is not JSON: {error}") from error
    if not isinstance(document, dict):
        raise ProtocolError("a header is not a JSON object")
    remark = document.get("remark")
    return Command(
        code=_number(document, "code"),
        fields=_texts(document.get("extFields")),
        body=body,
        opaque=_number(document, "opaque"),
        is_response=bool(_number(document, "flag") & _RESPONSE),
        remark=None if remark is None else str(remark),
    )


def _number(header: Mapping[str, Any], name: str) -> int:
    value = header.get(name, 0)
    if type(value) is not int:
        raise ProtocolError(f"{name} of a header is not a number")
    return value


def _texts(fields: object) -> dict[str, str]:
    if fields is None:
        return {}
    if not isinstance(fields, dict):
        raise ProtocolError("extFields of a header is not an object")
    return {name: value if isinstance(value, str) else json.dumps(value) for name, value in fields.items()}
