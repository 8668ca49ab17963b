"""The values of a span as Python and as text, from whatever format they were read."""

from __future__ import annotations

import base64
import json
import math
import re
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

Span = dict[str, Any]
"""The columns of ``schemas.SPAN`` with attributes as Python values, plus ``status_message``, ``events`` and ``bad``."""
_DOTTED: Final = re.compile(r"\.([0-9]+)\.([0-9]+)\Z")
_LINE_ENDS: Final = "\n\r\x85\u2028\u2029"
# What Java finds by ^ConsumeMessageThread_(.+)_\d+$.
_THREAD_OF_GROUP: Final = re.compile(rf"ConsumeMessageThread_([^{_LINE_ENDS}]+)_[0-9]+(\r\n|[{_LINE_ENDS}])?")
_MOST_OF_GROUP: Final = 100
LONG_MAX: Final = 2**63 - 1
"""The latest time that a column can hold; those of OTLP are unsigned, up to ``TIME_MAX``."""
TIME_MAX: Final = 2**64 - 1

KINDS: Final = ("UNSPECIFIED", "INTERNAL", "SERVER", "CLIENT", "PRODUCER", "CONSUMER")
STATUSES: Final = ("UNSET", "OK", "ERROR")


def offset_in_id(msg_id: str | None, topic: str | None) -> str | None:
    """Return ``topic-partition@offset`` of OpenTelemetry Python's ``topic.partition.offset``, ``None`` of others."""
    if msg_id is None or topic is None or not msg_id.startswith(f"{topic}."):
        return None
    position, found = _DOTTED.subn(r"-\1@\2", msg_id)
    return position if found else None


def group_of_thread(name: str) -> str | None:
    """Return the consumer group in the name of a RocketMQ listener's thread, where the Java agent's old names have it.

    ``None`` for any other name, and where the client may have cut the group off: it writes so many characters at most.
    """
    found = _THREAD_OF_GROUP.fullmatch(name)
    return found[1] if found and len(found[1]) < _MOST_OF_GROUP else None


def parent_or_none(span_id: str | None) -> str | None:
    """Return the id of a parent, ``None`` where it is missing, empty or all zeros."""
    return span_id if span_id and span_id.strip("0") else None


def enum_name(value: object, names: tuple[str, ...], prefix: str) -> str:
    """Return the name of an enumeration's value, given by number or name; the first one for what is neither."""
    text, number = str(value or 0).removeprefix(prefix), long_or_none(value or 0)
    if number is not None:
        return names[number] if 0 <= number < len(names) else names[0]
    return text if text in names else names[0]


def long_or_none(value: object, most: int = LONG_MAX) -> int | None:
    """Return a number of 64 bits, at most ``most``, that may be written as a text; ``None`` for anything else."""
    try:
        number = int(str(value))
    except ValueError:
        return None
    return number if -(2**63) <= number <= most else None


_JSON: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))


def text_attributes(attributes: Mapping[str, Any]) -> dict[str, str | None]:
    """Return attributes as ``schemas.SPAN`` holds them: scalars as text, arrays as JSON arrays of texts."""
    return {key: attribute_text(value) for key, value in attributes.items()}


def attribute_text(value: object) -> str | None:
    """Return one attribute value as text; ``None`` when it is unset."""
    if value is None or isinstance(value, str):
        return value
    return _TEXTS.get(type(value), str)(value)


def _float_text(value: float) -> str:
    if math.isfinite(value):
        return repr(value)
    return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")


def json_text(value: object) -> str:
    """Return ``value`` as compact JSON; it may be nested more deeply than Python can write."""
    try:
        return _JSON.encode(value)
    except RecursionError:
        return "(nested too deeply)"


_TEXTS: Final[dict[type, Callable[[Any], str]]] = {
    bool: lambda value: "true" if value else "false",
    float: _float_text,
    bytes: lambda value: base64.b64encode(value).decode(),
    list: lambda value: f"[{','.join([json_text(attribute_text(item)) for item in value])}]",
    dict: lambda value: json_text(text_attributes(value)),
}
