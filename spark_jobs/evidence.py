"""Evidence of input that could not be mapped: what, why, and the messages it names."""

from __future__ import annotations

import re
from typing import Any, Final

__all__ = ["MESSAGE_ID", "SAMPLE_CHARACTERS", "bad_piece", "mentioned_in"]

MESSAGE_ID: Final = r"(?<![0-9A-Fa-f])([0-9A-Fa-f]{56}|[0-9A-Fa-f]{32})(?![0-9A-Fa-f])"
"""32 hexadecimal digits, or 56 from a host that has IPv6 addresses only (``MessageClientIDSetter``)."""

_MESSAGE_ID: Final = re.compile(MESSAGE_ID)


def mentioned_in(text: str) -> list[str]:
    """Return the message ids readable in ``text``: distinct, upper case, in order of appearance."""
    return list(dict.fromkeys(found.upper() for found in _MESSAGE_ID.findall(text)))


SAMPLE_CHARACTERS: Final = 200
"""Characters of an offending text that are kept."""


def bad_piece(field: str | None, reason: str, text: str, *, within: str | None = None) -> dict[str, Any]:
    """Return a value of ``schemas.BAD``.

    Args:
        field: the field at fault.
        reason: why it could not be mapped.
        text: the offending text; its first ``SAMPLE_CHARACTERS`` are kept.
        within: where message ids are looked for; ``text`` by default.
    """
    mentions = mentioned_in(text if within is None else within)
    return {"field": field, "reason": reason, "text": text[:SAMPLE_CHARACTERS], "mentions": mentions}
