"""The template environment of every report."""

from __future__ import annotations

import os
from functools import cache
from importlib.util import cache_from_source
from pathlib import Path
from typing import TYPE_CHECKING, Final

from markupsafe import Markup

from bridge.page.markup import open_templates
from otel_mqtrace._errors import MissingExtraError
from spark_jobs.report import wording
from spark_jobs.report.charts import swatch
from spark_jobs.report.glossary import (
    GROUP_COLOUR,
    OUTCOME_COLOUR,
    VERDICT_COLOUR,
    find_entry,
    group_field_verdict,
    group_finding,
    label_finding,
)

if TYPE_CHECKING:
    from jinja2 import Environment

_FILTERS = {
    "count": wording.count,
    "duration": wording.duration,
    "number": wording.number,
    "plural": wording.plural,
    "ppm": wording.ppm,
    "utc": wording.utc,
    "visible": wording.visible,
}
_COMPILED: Final = Path(cache_from_source(__file__)).parent
"""Templates are compiled where Python keeps the modules it has compiled: to compile all takes 0.2 s."""
_COLOURS = GROUP_COLOUR | OUTCOME_COLOUR | VERDICT_COLOUR


@cache
def environment() -> Environment:
    """Return the templates of every report."""
    functions = {
        "percent": wording.percent,
        "words": wording,
        "entry": find_entry,
        "label": label_finding,
        "group_of": group_finding,
        "group_of_field": group_field_verdict,
        "swatch": lambda name: swatch(_COLOURS[name]) if name in _COLOURS else Markup(""),
    }
    try:
        from jinja2 import FileSystemBytecodeCache  # noqa: PLC0415 - optional extra

        made = open_templates("spark_jobs.report", _FILTERS, functions)
    except ImportError as absent:  # pragma: no cover - an installation without the extra
        raise MissingExtraError("the report", "reconcile") from absent
    made.bytecode_cache = FileSystemBytecodeCache(str(_COMPILED)) if os.access(_COMPILED, os.W_OK) else None
    made.globals["ui"] = made.get_template("macros.html.j2").module
    return made
