"""This module knows which message headers become span attributes, and which of them must not be read by anybody.

Names are compared with shell-style patterns in any case; the attribute keeps the name as the message has it. What
tracing itself sends along (the propagator's headers, the id of a message) is on the span already, and baggage may hold
anything of anybody: only a pattern that is such a name, letter by letter, captures it. What is written is bounded,
because a header can hold anything: so many values, so many characters each.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from otel_mqtrace import semconv
from otel_mqtrace.hooks._headers import header_name
from otel_mqtrace.hooks._propagation import propagator_in_force

if TYPE_CHECKING:
    from collections.abc import Sequence

    from otel_mqtrace.config import Settings
    from otel_mqtrace.hooks._headers import Header, HeaderValue
    from otel_mqtrace.spans.mapping import Attributes

__all__ = ["MOST_CHARACTERS", "MOST_VALUES", "REDACTED", "HeaderCapture"]

REDACTED: Final = "REDACTED"
MOST_VALUES: Final = 64
"""How many header values of one message are written; the ones after are left out."""
MOST_CHARACTERS: Final = 1_024
"""How many characters of one value are written."""
_OWN: Final = semconv.HEADER_UNIQ_KEY.lower()
_NAMES_REMEMBERED: Final = 512
_MOST_BYTES: Final = 4 * MOST_CHARACTERS
"""UTF-8 needs no more for that many characters."""


class HeaderCapture:
    """Turns message headers into ``messaging.header.<name>`` attributes; a name is compared once."""

    def __init__(self, captured: Sequence[str], redacted: Sequence[str]) -> None:
        self._captured = tuple(pattern.lower() for pattern in captured)
        self._redacted = tuple(pattern.lower() for pattern in redacted)
        self._decide = lru_cache(maxsize=_NAMES_REMEMBERED)(self._judged)

    @classmethod
    def of(cls, settings: Settings) -> HeaderCapture | None:
        """Return the capture the settings ask for; ``None`` when they ask for none."""
        return cls(settings.capture_headers, settings.redact_headers) if settings.capture_headers else None

    def attributes(self, headers: Sequence[Header]) -> Attributes:
        """Return one ``string[]`` for each captured name, its values in order; bytes that are no UTF-8 are escaped.

        A header without a value counts as empty text.
        """
        found: dict[str, list[str]] = {}
        left = MOST_VALUES
        carriers = propagator_in_force().names
        for given, value in headers:
            name = header_name(given)
            captured, redacted = self._decide(name, carriers)
            if captured:
                found.setdefault(name, []).append(REDACTED if redacted else _text(value))
                left -= 1
                if not left:
                    break
        return {f"{semconv.CAPTURED_HEADER_PREFIX}{name}": tuple(values) for name, values in found.items()}

    def _judged(self, name: str, carriers: frozenset[str]) -> tuple[bool, bool]:
        folded = name.lower()
        of_tracing = folded == _OWN or folded in carriers
        captured = folded in self._captured if of_tracing else _matches(folded, self._captured)
        return captured, _matches(folded, self._redacted)


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _text(value: HeaderValue) -> str:
    if value is None:
        return ""
    if isinstance(value, (bytes, bytearray)):
        return bytes(value[:_MOST_BYTES]).decode("utf-8", "backslashreplace")[:MOST_CHARACTERS]
    return str(value)[:MOST_CHARACTERS]
