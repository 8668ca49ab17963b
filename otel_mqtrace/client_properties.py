"""Texts about a connection that may hold passwords: the properties file of a Kafka client, and addresses."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from otel_mqtrace._errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

_USER_INFORMATION: Final = re.compile(r"(?<=//)[^\s/@]+:\S*@")


def without_password(text: str) -> str:
    """Return ``text`` without the user and password that an address in it may carry: ``https://user:password@host``."""
    return _USER_INFORMATION.sub("…@", text)


def read_properties(path: Path) -> dict[str, str]:
    """Return the ``name=value`` lines of a librdkafka or Kafka client properties file; ``#`` and ``!`` start comments.

    Raises:
        UsageError: the file cannot be read, or a line is not ``name=value``; the message names the line, not its text.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read the Kafka properties file {path}: {error}") from error
    properties: dict[str, str] = {}
    for number, line in enumerate(map(str.strip, lines), start=1):
        if not line or line.startswith(("#", "!")):
            continue
        name, separator, value = line.partition("=")
        if not separator or not name.strip():
            raise UsageError(f"line {number} of {path} is not name=value")
        properties[name.strip()] = value.strip()
    return properties
