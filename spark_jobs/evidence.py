"""The evidence that is kept of a piece of input that could not be mapped: what, why, and the messages it names."""

from __future__ import annotations

from typing import Any, Final

from spark_jobs.mentions import mentioned_in

__all__ = ["SAMPLE_CHARACTERS", "bad_piece"]

SAMPLE_CHARACTERS: Final = 200
"""Characters of an offending text that are kept."""


def bad_piece(field: str, reason: str, text: str) -> dict[str, Any]:
    """Return a value of ``schemas.BAD``.

    Args:
        field: the field at fault.
        reason: why it could not be mapped.
        text: the offending text; its first ``SAMPLE_CHARACTERS`` are kept, and the message ids in all of it.
    """
    return {"field": field, "reason": reason, "text": text[:SAMPLE_CHARACTERS], "mentions": mentioned_in(text)}
