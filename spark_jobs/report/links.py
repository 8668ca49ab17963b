"""Make an event's ids a link into another tool, such as Jaeger's page of a trace."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from bridge.page.links import fill_template

if TYPE_CHECKING:
    from spark_jobs.report.result import Sample

__all__ = ["LINK_FIELDS", "link_of"]

LINK_FIELDS: Final = ("trace_id", "span_id", "msg_id", "topic", "group", "service")
"""The names a template may have in braces."""


def link_of(template: str, sample: Sample) -> str | None:
    """Return the address of ``sample``, every id quoted; ``None`` when it lacks one that the template names."""
    return fill_template(template, partial(_told, sample))


def _told(sample: Sample, name: str) -> Any:
    told = (fields[name] for fields in (sample.verdict, sample.otlp, sample.native) if fields and fields.get(name))
    return next(told, None)
