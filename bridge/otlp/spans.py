"""Read one OTLP message as plain spans; ``proto_spans`` has the part that needs protobuf.

Tolerated (``docs/specification.md`` of opentelemetry-proto, "JSON Protobuf Encoding", and files seen): ids in upper
case hex, base64 or lists of bytes; 64-bit numbers as strings or numbers; enumerations by name; snake_case names; the
``instrumentationLibrary`` names of before 2022; a bare array of ResourceSpans; a ``result`` wrapper around it all. An
unreadable span is ``bad`` alone.
"""

from __future__ import annotations

import base64
import codecs
import json
import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from bridge.otlp.span_count import count_ids, count_proto_spans, count_written_ids
from bridge.otlp.values import (
    KINDS,
    STATUSES,
    TIME_MAX,
    Span,
    attribute_text,
    enum_name,
    json_text,
    long_or_none,
    parent_or_none,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_BEFORE_JSON: Final = codecs.BOM_UTF8 + b" \t\r\n"  # joined files have byte order marks anywhere


def parse_message(payload: bytes) -> list[Any] | None:
    """Return the ResourceSpans of one message (dicts of JSON, or protobuf messages); ``None`` if it is not OTLP.

    Metrics and logs, which a Collector may write into the same file, are messages without ResourceSpans.
    """
    found = parse_json(payload) if payload.lstrip(_BEFORE_JSON)[:1] in {b"{", b"["} else None
    return _protobuf().parse_proto(payload) if found is None else found


def is_proto(resource_spans: list[Any]) -> bool:
    """Return whether :func:`parse_message` read them from protobuf."""
    return bool(resource_spans) and hasattr(resource_spans[0], "scope_spans")


def _protobuf() -> Any:
    from bridge.otlp import proto_spans  # noqa: PLC0415 - needs protobuf

    return proto_spans


def spans_of(resource_spans: list[Any]) -> Iterator[Span]:
    """Yield the spans of :func:`parse_message`'s answer, in order."""
    spans = _protobuf().proto_spans if is_proto(resource_spans) else _json_spans
    for one in resource_spans:
        yield from spans(one)


def count_expected_spans(payload: bytes, resource_spans: list[Any]) -> int:
    """Return how many spans a message holds by its bytes, those that the parser dropped included.

    ``resource_spans`` is what :func:`parse_message` made of it.
    """
    if not resource_spans:
        return 0
    if is_proto(resource_spans):
        return count_proto_spans(payload)
    count, written = sum(map(_count_json_spans, resource_spans)), count_written_ids(payload)
    spans = [span for one in resource_spans for _, _, span in _walk_spans(one)]
    if written <= sum(map(_count_usual_ids, spans)):  # fewer where a name is written with escapes
        return count
    return count + max(written - sum(map(count_ids, spans)), 0)


_SCOPE_SPANS: Final = ("scopeSpans", "instrumentationLibrarySpans")
_HEX_ID: Final = re.compile(r"(?:[0-9a-fA-F]{2})+")
_BASE64_LENGTHS: Final = frozenset({12, 24})
_DEEPEST_VALUE: Final = 100  # levels; protobuf's own readers stop earlier
# Every escape is one token, so that "\\\\ud800" (a backslash and letters) is not taken for a surrogate.
_ESCAPE: Final = re.compile(
    r"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(?P<lone>u[dD][89a-fA-F][0-9a-fA-F]{2})|.)",
    re.DOTALL,
)
# A quote inside a text is escaped: no text can look like it. ``\w`` before the quote would take quadratic time.
SNAKE_NAME: Final = r'_[a-z]+"\s*:'
_SNAKE_NAME: Final = re.compile(SNAKE_NAME)
_SNAKE_PART: Final = re.compile("_([a-z])")
SCALARS: Final = ("stringValue", "boolValue", "intValue", "doubleValue", "bytesValue")
"""The names of a plain attribute value in JSON, in the order they are looked for."""


def parse_json(payload: bytes) -> list[Any] | None:
    """Return the ResourceSpans of one JSON message, ``None`` for any other bytes."""
    text = payload.decode("utf-8", errors="replace").lstrip("\ufeff")
    try:
        in_camel = _camel_names if _SNAKE_NAME.search(text) else None
        value = json.loads(_without_lone_surrogates(text), parse_int=_json_number, object_pairs_hook=in_camel)
    except (ValueError, RecursionError):
        return None
    if isinstance(value, dict) and isinstance(value.get("result"), (dict, list)):
        value = value["result"]
    if isinstance(value, list):
        nested = [_parse_value(item) for item in value]
        return [one for many in nested if many is not None for one in many] if None not in nested else None
    return _parse_value(value)


def _camel_names(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    return {_SNAKE_PART.sub(lambda found: found[1].upper(), name): value for name, value in pairs}


def _without_lone_surrogates(text: str) -> str:
    """Replace each lone surrogate by a question mark, as Java writes it."""
    if "\\ud" not in text and "\\uD" not in text:
        return text
    return _ESCAPE.sub(lambda found: "?" if found["lone"] else found[0], text)


def _json_number(text: str) -> int | float:
    """Keep the sign of ``-0``, which is how a Collector writes the double -0.0; too many digits are infinity."""
    if text == "-0":
        return -0.0
    try:
        return int(text)
    except ValueError:
        return float(text)


def _parse_value(value: object) -> list[Any] | None:
    if not isinstance(value, dict):
        return None
    if any(name in value for name in _SCOPE_SPANS):
        return [value]
    if not value or "resourceMetrics" in value or "resourceLogs" in value:
        return []
    found = value.get("resourceSpans")
    return list(found) if isinstance(found, list) else None


def _pick(value: Mapping[str, Any], *names: str) -> Any:
    for name in names:
        if (found := value.get(name)) is not None:
            return found
    return None


class _OddError(Exception):
    """A part of a span is not of the kind it must be."""


def _object(value: Any) -> Mapping[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise _OddError
    return value


def _objects(value: Any) -> list[Mapping[str, Any]]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise _OddError
    return [_object(item) for item in value]


def _text(value: Any) -> str:
    return "" if value is None else value if isinstance(value, str) else json_text(value)


def _json_spans(one: Any) -> Iterator[Span]:
    for service, scope, span in _walk_spans(one):
        yield _span_or_bad(span, service, scope)


def _count_json_spans(one: Any) -> int:
    """Return how many spans there must be, odd ones included, without the walk that reads them."""
    if not isinstance(one, dict):
        return 1
    return sum(len(_as_list(part.get("spans"))) if isinstance(part, dict) else 1 for part in _parts(one))


def _count_usual_ids(span: Any) -> int:
    """Return how many span ids a usual span has, its own and those of its links, without a walk."""
    if not isinstance(span, dict):
        return 0
    links = span.get("links")
    linked = links if isinstance(links, list) else ()
    return sum(isinstance(one, dict) and one.get("spanId") is not None for one in (span, *linked))


def _parts(one: Mapping[str, Any]) -> list[Any]:
    """Return the ScopeSpans of a ResourceSpans, under whatever names it has them; in 2022 some had two."""
    return [part for name in _SCOPE_SPANS for part in _as_list(one.get(name))]


def _span_or_bad(span: Any, service: str | None, scope: str | None) -> Span:
    with suppress(_OddError):
        if isinstance(span, dict):
            return _json_span(span, service, scope)
    return {"bad": (None, "not a span", _text(span)), "attributes": {}, "links": []}


def _walk_spans(one: Any) -> Iterator[tuple[str | None, str | None, Any]]:
    """Yield service, scope and what stands where a span should; a level that is not a list of objects stands for it."""
    if not isinstance(one, dict):
        yield None, None, one
        return
    service = _service(one.get("resource"))
    for part in _parts(one):
        if not isinstance(part, dict):
            yield service, None, part
            continue
        scope = _pick(part, "scope", "instrumentationLibrary")
        name = _text(scope.get("name")) if isinstance(scope, dict) else ""
        yield from ((service, name or None, span) for span in _as_list(part.get("spans")))


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [] if value is None else [json_text(value)]


def _service(resource: Any) -> str | None:
    try:
        return attribute_text(_json_attributes(_object(resource).get("attributes")).get("service.name"))
    except _OddError:
        return None


def _json_span(span: Mapping[str, Any], service: str | None, scope: str | None) -> Span:
    status = _object(span.get("status"))
    start, end = span.get("startTimeUnixNano"), span.get("endTimeUnixNano")
    return {
        "trace_id": _json_id(span.get("traceId")),
        "span_id": _json_id(span.get("spanId")),
        "parent_span_id": parent_or_none(_json_id(span.get("parentSpanId"))),
        "name": _text(span.get("name")),
        "kind": enum_name(span.get("kind"), KINDS, "SPAN_KIND_"),
        "start_ns": long_or_none(start, TIME_MAX) or 0,
        "end_ns": long_or_none(end, TIME_MAX) or 0,
        "status": enum_name(status.get("code"), STATUSES, "STATUS_CODE_"),
        "status_message": _text(status.get("message")),
        "service": service,
        "scope": scope,
        "flags": long_or_none(span.get("flags")) or 0,
        "attributes": _json_attributes(span.get("attributes")),
        "links": [_json_link(link) for link in _objects(span.get("links"))],
        "events": [_json_event(event) for event in _objects(span.get("events"))],
        "dropped_attributes": long_or_none(span.get("droppedAttributesCount")) or 0,
        "dropped_links": long_or_none(span.get("droppedLinksCount")) or 0,
        "bad": _bad_time("start_ns", start) or _bad_time("end_ns", end),
    }


def _bad_time(field: str, value: object) -> tuple[str, str, str] | None:
    text = _text(value)
    return (field, "not a number", text) if text and long_or_none(value, TIME_MAX) is None else None


def _json_link(link: Mapping[str, Any]) -> Span:
    return {
        "trace_id": _json_id(link.get("traceId")),
        "span_id": _json_id(link.get("spanId")),
        "flags": long_or_none(link.get("flags")) or 0,
        "attributes": _json_attributes(link.get("attributes")),
    }


def _json_event(event: Mapping[str, Any]) -> Span:
    time_ns = long_or_none(event.get("timeUnixNano"), TIME_MAX) or 0
    attributes = _json_attributes(event.get("attributes"))
    return {"name": _text(event.get("name")), "time_ns": time_ns, "attributes": attributes}


def _json_attributes(pairs: object, depth: int = 0) -> dict[str, Any]:
    return {_text(pair.get("key")): _json_value(pair.get("value"), depth) for pair in _objects(pairs)}


def _json_value(value: Any, depth: int) -> Any:
    if depth > _DEEPEST_VALUE:
        raise _OddError
    if not isinstance(value, dict):
        return value if isinstance(value, (str, bool, int, float)) else None
    if len(value) == 1 and isinstance(text := value.get("stringValue"), str):
        return text
    array, kvlist = _pick(value, "arrayValue", "arrayvalue"), _pick(value, "kvlistValue", "kvlistvalue")
    if array is not None:
        return [_json_value(item, depth + 1) for item in _objects(_object(array).get("values"))]
    if kvlist is not None:
        return _json_attributes(_object(kvlist).get("values"), depth + 1)
    for name in SCALARS:
        if value.get(name) is not None:
            return json_scalar(name, value[name])
    return None


def json_scalar(name: str, value: Any) -> Any:
    """Return a scalar of an AnyValue, given by the name it stands under; one that is not of its kind as text."""
    try:
        if name == "intValue":
            return int(value)
        if name == "doubleValue":
            return float(value)
        if name == "bytesValue":
            return base64.b64decode(value)
    except (TypeError, ValueError, OverflowError):
        return _text(value)
    return value if isinstance(value, (str, bool)) else _text(value)


def _json_id(value: object) -> str | None:
    """Return hex as specified; some producers write base64 or lists of bytes."""
    if isinstance(value, list):
        return bytes(item & 0xFF for item in value if isinstance(item, int)).hex() or None
    text = _text(value)
    if len(text) in _BASE64_LENGTHS and text.endswith("="):
        try:
            return base64.b64decode(text).hex()
        except ValueError:
            return text
    return (text.lower() if _HEX_ID.fullmatch(text) else text) or None
