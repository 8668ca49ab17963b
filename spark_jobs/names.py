"""The prefixes that RocketMQ writes before the name of a topic or group."""

from __future__ import annotations

import re
from typing import Final

__all__ = ["PREFIXES", "bare"]

PREFIXES: Final = "^(?:%(RETRY|DLQ)%)?(?:([^%]+)%)?"
"""Before a name: that of a retry or dead-letter topic, and a namespace."""

_PREFIXES: Final = re.compile(PREFIXES)


def bare(name: str) -> str:
    """Return the name without what stands before it, which writers treat differently."""
    return _PREFIXES.sub("", name)
