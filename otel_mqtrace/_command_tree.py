"""The command tree of ``mqtrace``: every command is an entry point of the group ``mqtrace.commands``.

An entry point names a plain function with typer annotations. Its docstring is its help: the text before ``Args:``, and
the indented lines of its ``Example:`` section below the options. A command returns its exit code (``None`` is 0) or
raises ``typer.Exit``. A command that cannot be imported reports so only when it is called.
"""

from __future__ import annotations

import inspect
import os
import re
from importlib.metadata import EntryPoint, entry_points, version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.markup import escape

from otel_mqtrace._errors import MissingExtraError, MqTraceError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

COMMAND_GROUP: Final = "mqtrace.commands"
DISTRIBUTION: Final = "otel-mqtrace"
_NAME: Final = "mqtrace"
_COMPLETION: Final = f"_{_NAME.upper()}_COMPLETE"  # set by a shell that completes a word

_EXTRA_OF_MODULE: Final = {
    "confluent_kafka": "kafka",
    "google": "reconcile",  # protobuf, which comes with opentelemetry-proto
    "jinja2": "reconcile",
    "markupsafe": "reconcile",  # comes with jinja2
    "numpy": "reconcile",
    "opentelemetry.exporter": "otlp",
    "opentelemetry.proto": "reconcile",
    "pandas": "spark",
    "prometheus_client": "reconcile",
    "pyarrow": "reconcile",
    "pyspark": "spark",
    "tomli": "reconcile",
    "xxhash": "reconcile",
    "zstandard": "reconcile",
}

# typer's wrong-usage errors are click's, or since 0.26 its copy: reached through the one public name of both.
_COMMAND_LINE_ERROR: Final[Any] = typer.BadParameter.__mro__[2]

_VERSION: Final = frozenset({"-V", "--version"})
_CONTEXT: Final = {"help_option_names": ["-h", "--help"]}


class _PlainFlags:
    """A command whose help shows no ``<bool>`` after a flag."""

    def get_params(self, ctx: Any) -> Any:
        params = super().get_params(ctx)  # type: ignore[misc]  # of typer's class beside it
        for option in params:
            if getattr(option, "is_flag", False) and option.metavar is None:
                option.metavar = ""
        return params


class _Command(_PlainFlags, typer.core.TyperCommand):
    pass


class _Group(_PlainFlags, typer.core.TyperGroup):
    pass


_SECTION = re.compile(r"^(?P<name>[A-Z][a-z]+):\n(?P<body>(?:[ \t]+.*\n?|\n)*)", re.MULTILINE)


def run(arguments: list[str], points: Iterable[EntryPoint] | None = None) -> int:
    """Run the command that ``arguments`` name and return its exit code; no arguments mean ``--help``.

    ``points`` defaults to the installed entry points; typer answers an interrupt with the exit code 130. Raises
    ``UsageError`` for a command line that is wrong, ``MissingExtraError`` for a command whose extra is not installed
    (some modules are loaded only when it is called), ``MqTraceError`` for what the command itself refuses.
    """
    known = {point.name: point for point in (entry_points(group=COMMAND_GROUP) if points is None else points)}
    # Only the command that is called gets imported; the list of all is read when it is shown.
    called = known.get(arguments[0]) if arguments else None
    words = arguments[: arguments.index("--")] if "--" in arguments else arguments
    if called and _VERSION & {*words}:
        arguments, called = ["--version"], None
    # Named after "--", or completed by a shell, a command needs its options as well.
    listed = not (known.keys() & {*arguments}) and _COMPLETION not in os.environ
    app = _make_app([called] if called else sorted(known.values(), key=lambda point: point.name), listed=listed)
    try:
        outcome = app(_rewrite(called, arguments) or ["--help"], prog_name=_NAME, standalone_mode=False)
    except SystemExit as error:  # what typer makes of a closed pipe
        if isinstance(error.__context__, BrokenPipeError):
            raise error.__context__ from error
        raise
    except _COMMAND_LINE_ERROR as error:
        named = f"{_NAME} {called.name}" if called else _NAME  # an option without its argument has no context
        where = error.ctx.command_path if getattr(error, "ctx", None) else named
        message = error.format_message().rstrip(".").replace("Value error, ", "")  # the library's own words
        raise UsageError(f"{message}; see '{where} --help'") from error
    except ModuleNotFoundError as error:
        raise _find_missing_extra(arguments[0], error) or error from error
    return outcome if isinstance(outcome, int) else 0


def _rewrite(called: EntryPoint | None, arguments: list[str]) -> list[str]:
    """Apply a command's ``rewrite_arguments``, since an option parser accepts one form only."""
    try:
        rewrite = getattr(called.load() if called else None, "rewrite_arguments", None)
    except Exception:  # noqa: BLE001  registering the command reports the error
        return arguments
    return [*arguments[:1], *rewrite(arguments[1:])] if rewrite else arguments


def _make_app(points: Iterable[EntryPoint], *, listed: bool) -> typer.Typer:
    app = typer.Typer(
        name=_NAME, cls=_Group, rich_markup_mode="rich", pretty_exceptions_enable=False, context_settings=_CONTEXT
    )
    app.callback()(_options)
    for point in points:
        _register(app, point, listed=listed)
    return app


def _print_version(wanted: bool) -> None:  # noqa: FBT001  typer calls it with the option's value
    if wanted:
        typer.echo(f"{_NAME} {version(DISTRIBUTION)}")
        raise typer.Exit


def _options(
    *,
    _version: Annotated[
        bool,
        typer.Option("--version", "-V", help="Print the version and exit.", callback=_print_version, is_eager=True),
    ] = False,
) -> None:
    """RocketMQ's native message trace and OpenTelemetry spans: record, read, forward and reconcile them."""


def _register(app: typer.Typer, point: EntryPoint, *, listed: bool) -> None:
    """Add a command; one that is only ``listed`` without its options, which take as long to read as all the rest."""
    try:
        function = point.load()
        command = _stand_in if listed and inspect.isfunction(function) else _check_command(function)
    except Exception as error:  # noqa: BLE001  one broken command must not take the others along
        cause = _find_shadow(point, error) or _describe_failure(point.name, error)
        app.command(
            point.name,
            help=f"Not available: {escape(str(cause))}",
            context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
            add_help_option=False,
        )(_make_refusal(cause))
        return
    text, examples = help_of(function)
    epilog = "\n\n".join(["Example:", *(f"  {escape(line)}" for line in examples)]) if examples else None
    app.command(point.name, cls=_Command, help=escape(text), epilog=epilog, context_settings=_CONTEXT)(command)


def _stand_in() -> None:
    """Stand in a list for a command that is not called."""


def _check_command(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``function`` if typer can make a command of it; else raise here, where only this command is lost."""
    alone = typer.Typer(add_completion=False)
    alone.command()(function)
    typer.main.get_command(alone)
    return function


def _make_refusal(cause: MqTraceError) -> Callable[[], None]:
    def refuse() -> None:
        raise cause

    return refuse


def _find_shadow(point: EntryPoint, error: Exception) -> MqTraceError | None:
    """Return what to do where another package has the name of ours that the command is in, or imports."""
    for module in (point.module, str(getattr(error, "name", None))):
        name = module.partition(".")[0]
        ours = Path(__file__).parent.parent / name
        spec = find_spec(name) if ours.is_dir() else None
        location = None if spec is None else next(iter(spec.submodule_search_locations or ()), spec.origin)
        if location is not None and Path(location).resolve() != ours.resolve():
            return MqTraceError(
                f"{_NAME} {point.name}: the package {name!r} at {location} shadows the one of {DISTRIBUTION}; "
                "run the command from another directory, or without PYTHONPATH"
            )
    return None


def _describe_failure(name: str, error: Exception) -> MqTraceError:
    if isinstance(error, MqTraceError):
        return error
    missing = _find_missing_extra(name, error)
    return missing or MqTraceError(f"mqtrace {name} cannot be loaded ({error}); reinstall {DISTRIBUTION} to fix it")


def _find_missing_extra(name: str, error: Exception) -> MissingExtraError | None:
    """Return the sentence that installs the extra a command lacks, if that is what ``error`` is about."""
    absent = f"{error.name}." if isinstance(error, ModuleNotFoundError) else ""
    extras = (extra for module, extra in _EXTRA_OF_MODULE.items() if absent.startswith(f"{module}."))
    return next((MissingExtraError(f"{_NAME} {name}", extra) for extra in extras), None)


def help_of(function: Callable[..., object]) -> tuple[str, list[str]]:
    """Split a docstring into the help before its first section and the lines of its ``Example:`` section."""
    text = inspect.getdoc(function) or ""
    sections = {match["name"]: match["body"] for match in _SECTION.finditer(text + "\n")}
    first = _SECTION.search(text + "\n")
    examples = inspect.cleandoc(sections.get("Example", sections.get("Examples", ""))).splitlines()
    help_text = re.sub(r"(?<!\n)\n(?!\n)", " ", text[: first.start() if first else None].strip())
    return help_text, [line for line in examples if line.strip(" :`")]
