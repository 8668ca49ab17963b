"""This module knows how one attribute of a span is read without making the others of it.

Spans that are traced here keep their attributes as they came until somebody reads them
(:mod:`otel_mqtrace.hooks._unread`). What is asked on the application's thread must not be the first to do so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from opentelemetry.sdk.trace import ReadableSpan

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["asking", "attributes_of", "kept", "plainly", "told"]

_ATTRIBUTES: Final = ReadableSpan.attributes


def told(span: ReadableSpan, name: str) -> Any:
    """Return what ``span`` was told under ``name``, before any limit; ``None`` when it was told nothing."""
    as_it_came: Callable[[str], Any] | None = getattr(span, "as_it_came", None)
    return asking(span)(name) if as_it_came is None else as_it_came(name)


def asking(span: ReadableSpan) -> Callable[[str], Any]:
    """Return :func:`told` for several names of one span."""
    as_it_came: Callable[[str], Any] | None = getattr(span, "as_it_came", None)
    return attributes_of(span).get if as_it_came is None else as_it_came


def attributes_of(span: ReadableSpan) -> Mapping[str, object]:
    """Return all that ``span`` says, for many looks.

    The SDK's own mapping answers "not there" by an exception inside, which costs more than all the rest. A span that
    answers otherwise, without what is secret say, is asked.
    """
    plain: Mapping[str, object] | None = None
    if getattr(type(span), "attributes", None) is _ATTRIBUTES:
        plain = getattr(kept(span), "_dict", None)
    return (span.attributes or {}) if plain is None else plain


def plainly(span: ReadableSpan) -> ReadableSpan:
    """Return ``span`` for reading: what it was told, where the SDK would make no more of it."""
    read: Callable[[], ReadableSpan | None] | None = getattr(span, "plainly", None)
    return (read and read()) or span


def kept(span: object) -> Any:
    """Return what ``span`` keeps its attributes in, ``None`` where that is not known; what is public is a view."""
    return getattr(span, "_attributes", None)
