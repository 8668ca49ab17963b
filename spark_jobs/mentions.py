"""This module knows how a RocketMQ message id is told from the text around it, with and without Spark."""

from __future__ import annotations

import re
from typing import Final

__all__ = ["MESSAGE_ID", "mentioned_in"]

MESSAGE_ID: Final = r"(?<![0-9A-Fa-f])([0-9A-Fa-f]{56}|[0-9A-Fa-f]{32})(?![0-9A-Fa-f])"
"""32 hexadecimal digits, or 56 from a host that has IPv6 addresses only (``MessageClientIDSetter``)."""

_MESSAGE_ID: Final = re.compile(MESSAGE_ID)


def mentioned_in(text: str) -> list[str]:
    """Return the message ids readable in ``text``: distinct, upper case, in order of appearance."""
    return list(dict.fromkeys(found.upper() for found in _MESSAGE_ID.findall(text)))
