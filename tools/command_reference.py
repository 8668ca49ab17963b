"""Print the page of the commands, from their own help."""

from __future__ import annotations

import inspect
import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import typer

from otel_mqtrace._command_tree import COMMAND_GROUP, help_of

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

if TYPE_CHECKING:
    from collections.abc import Callable

_PROJECT: Final = Path(__file__).resolve().parent.parent / "pyproject.toml"


def command_line_page() -> str:
    """Return ``reference/command-line.md``: each command of the project file, its arguments and options."""
    lines = [
        "<!-- Generated from the commands themselves by `make docs`. Edit them, not this page. -->",
        "# Command line",
        "",
        "Errors are a single line on standard error that begins with `mqtrace: error:` and names the fix.",
        "Each command lists its exit codes. SIGTERM is 143 and SIGHUP 129 where SIGINT is 130. `decode`, `encode` and",
        "the streams of `inspect` end with 141 if the reader of their output, such as `head`, ends first.",
        "Progress is drawn on a terminal only; `NO_COLOR` is respected.",
    ]
    points = tomllib.loads(_PROJECT.read_text(encoding="utf-8"))["project"]["entry-points"][COMMAND_GROUP]
    for name in sorted(points):
        module, _, function = points[name].partition(":")
        lines += ["", *_section(name, getattr(import_module(module), function))]
    return "\n".join([*lines, ""])


def _section(name: str, function: Callable[..., Any]) -> list[str]:
    text, examples = help_of(function)
    app = typer.Typer(add_completion=False)
    app.command(name)(function)
    command = typer.main.get_command(app)
    context = command.make_context(f"mqtrace {name}", [], resilient_parsing=True)
    shown = [parameter for parameter in command.params if parameter.name != "help"]
    lines = [f"## mqtrace {name}", "", *inspect.cleandoc(text).splitlines(), "", "| | meaning |", "| --- | --- |"]
    for names, meaning in (_record(parameter, context) for parameter in shown):
        lines.append(f"| `{_plain(names)}` | {_plain(meaning)} |")
    if examples:
        lines += ["", "```sh", *(line.strip() for line in examples), "```"]
    return lines


def _record(parameter: Any, context: Any) -> tuple[str, str]:
    """Return the names of a parameter and its help, without the Python type of an argument."""
    names, meaning = parameter.get_help_record(context)
    return names.partition(" <")[0] if parameter.param_type_name == "argument" else names, meaning


def _plain(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
