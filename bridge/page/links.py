"""Links into other tools, such as Jaeger's page of a trace, from a template with names in braces."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from otel_mqtrace._errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

__all__ = ["check_template", "fill_template"]

_NAME: Final = re.compile(r"\{(\w*)\}")


def check_template(template: str, fields: Collection[str]) -> str:
    """Return ``template`` when links can be made of it; ``fields`` are the names it may have.

    Raises:
        UsageError: it is no web address, names no field, or an unknown one.
    """
    if not re.match(r"https?://[^\s/]+", template):
        raise UsageError(f"--link-template {template!r} is no address: begin it with http:// or https://")
    names = _NAME.findall(template)
    unknown = sorted(set(names) - set(fields))
    if unknown or not names:
        problem = f"{{{unknown[0]}}} is unknown" if unknown else "nothing in it changes"
        raise UsageError(f"--link-template: {problem}; use {', '.join(f'{{{name}}}' for name in fields)}")
    return template


def fill_template(template: str, value_of: Callable[[str], Any]) -> str | None:
    """Return the address with every value quoted; ``None`` when ``value_of`` a name in it is ``None``."""
    values = {name: value_of(name) for name in _NAME.findall(template)}
    if None in values.values():
        return None
    return _NAME.sub(lambda hit: quote(str(values[hit[1]]).encode("utf-8", "replace"), safe=""), template)
