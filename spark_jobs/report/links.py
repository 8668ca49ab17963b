"""Make an event's ids a link into another tool, such as Jaeger's page of a trace."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from otel_mqtrace._errors import UsageError

if TYPE_CHECKING:
    from spark_jobs.report.result import Sample

__all__ = ["LINK_FIELDS", "check_template", "link_of"]

LINK_FIELDS: Final = ("trace_id", "span_id", "msg_id", "topic", "group", "service")
"""The names a template may have in braces."""

_NAME: Final = re.compile(r"\{(\w*)\}")


def check_template(template: str) -> str:
    """Return ``template`` when links can be made of it.

    Raises:
        UsageError: it is no address of the web, names no id, or names one there is not.
    """
    if not re.match(r"https?://[^\s/]+", template):
        raise UsageError(f"--link-template {template!r} is no address: begin it with http:// or https://")
    named = _NAME.findall(template)
    unknown = sorted(set(named) - set(LINK_FIELDS))
    if unknown or not named:
        told = f"{{{unknown[0]}}} is unknown" if unknown else "nothing in it changes"
        raise UsageError(f"--link-template: {told}; use {', '.join(f'{{{name}}}' for name in LINK_FIELDS)}")
    return template


def link_of(template: str, sample: Sample) -> str | None:
    """Return the address of ``sample``, every id quoted; ``None`` when it lacks one that the template names."""
    ids = {name: _told(sample, name) for name in _NAME.findall(template)}
    if None in ids.values():
        return None
    return _NAME.sub(lambda hit: quote(str(ids[hit[1]]), safe=""), template)


def _told(sample: Sample, name: str) -> Any:
    told = (fields[name] for fields in (sample.verdict, sample.otlp, sample.native) if fields and fields.get(name))
    return next(told, None)
