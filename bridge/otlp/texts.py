"""This module knows how an attribute is written as text: scalars as they stand, arrays and maps as JSON."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable, Mapping
from typing import Any, Final

__all__ = ["attribute_text", "json_text", "text_attributes"]

_JSON: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))


def text_attributes(attributes: Mapping[str, Any]) -> dict[str, str | None]:
    """Return attributes as ``schemas.SPAN`` holds them: scalars as text, arrays as JSON arrays of texts."""
    return {key: attribute_text(value) for key, value in attributes.items()}


def attribute_text(value: object) -> str | None:
    """Return one attribute value as text; ``None`` when it is unset."""
    if value is None or isinstance(value, str):
        return value
    for kinds, text_of in _TEXTS:
        if isinstance(value, kinds):
            return text_of(value)
    return str(value)


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


_TEXTS: Final[tuple[tuple[Any, Callable[[Any], str]], ...]] = (
    (bool, lambda value: "true" if value else "false"),
    (float, _float_text),
    (bytes, lambda value: base64.b64encode(value).decode()),
    (list, lambda value: f"[{','.join(json_text(attribute_text(item)) for item in value)}]"),
    (Mapping, lambda value: json_text(text_attributes(value))),
)
