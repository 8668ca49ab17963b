"""The codec's commands ``mqtrace decode``, ``encode`` and ``dialects``; options that several commands share."""

from __future__ import annotations

from contextlib import suppress
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from bridge.addresses import Kind, find_orphaned_parts, parse_address
from bridge.codec.framing import Framing, MessageTypeMap
from bridge.page.wording import visible
from otel_mqtrace._errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable


def option(panel: str, text: str, *names: str, **more: Any) -> Any:
    """Return the option that ``--help`` explains by ``text`` in ``panel``; ``names`` are those its parameter lacks."""
    return typer.Option(*names, help=text, rich_help_panel=panel, **more)


def parse_charset(text: str) -> str:
    """Return the charset that ``--charset`` names; raise ``UsageError`` for an unknown one."""
    from otel_mqtrace.wire.native.decode import check_charset  # noqa: PLC0415  only when a command is called

    try:
        check_charset(text)
    except UsageError as error:
        raise UsageError(f"--charset: {error}") from error
    return text


TypeMap = Annotated[MessageTypeMap, option("Input", "Message type ordinals; b for bodies of RocketMQ 5.0.0 and 5.1.0.")]
Charset = Annotated[str, option("Input", "The writer's charset, such as gbk.", parser=parse_charset, metavar="NAME")]
LONGEST_TIMEOUT_MS: Final = 24 * 60 * 60 * 1_000
TimeoutMs = Annotated[
    float, option("Input", "How long one answer of a broker may take.", metavar="MS", min=1, max=LONGEST_TIMEOUT_MS)
]


def warn_of_orphans(sources: Iterable[str]) -> None:
    """Name the part of a landing that a writer left open when it ended: only ``mqtrace query`` reads it."""
    paths = [each.path for each in map(parse_address, sources) if each.kind is Kind.FILES]
    with suppress(OSError):  # the command itself reports it
        found = sorted({file for path in paths for file in find_orphaned_parts(path)})
        if found:
            more = f" and {len(found) - 1} more" if len(found) > 1 else ""
            typer.echo(
                f"mqtrace: warning: not read: {visible(str(found[0]), limit=None)}{more}, left open by a process that "
                "has ended; the next writer to this landing finishes it",
                err=True,
            )


class Format(str, Enum):
    """How ``decode`` prints records."""

    JSONL = "jsonl"
    TABLE = "table"


class OutputFraming(str, Enum):
    """How ``encode`` writes bodies."""

    RAW = "raw"
    JSONL_BASE64 = "jsonl-base64"


def decode(  # noqa: PLR0913 - one parameter for each option
    files: Annotated[
        list[str] | None,
        typer.Argument(metavar="SRC|-", help="Files, directories, globs; - or nothing is standard input."),
    ] = None,
    *,
    output: Annotated[Format, typer.Option("--format", help="JSON lines, or a table for people.")] = Format.JSONL,
    framing: Annotated[Framing, typer.Option(help="How the bodies lie in the files.")] = Framing.AUTO,
    msg_type_map: TypeMap = MessageTypeMap.A,
    charset: Charset = "utf-8",
    explode_batches: Annotated[
        bool, typer.Option("--explode-batches", help="One object for each message of a batch's Pub, not one for all.")
    ] = False,
) -> int:
    """Read native trace bodies: one JSON object per record, bad records reported in place.

    A file holds one raw body, JSON lines with body_base64, or Parquet with a column body; auto detects which.

    Exit codes: 0, 1 if a record is bad, 2 wrong usage or unreadable input, 130 interrupted.

    Example:
        mqtrace decode landing
        mqtrace decode --format table - < body.bin
    """
    from bridge.codec.files import decode_files  # noqa: PLC0415  only when called

    warn_of_orphans(files or ())
    return decode_files(
        files,
        framing,
        msg_type_map=msg_type_map.value,
        charset=charset,
        explode_batches=explode_batches,
        as_table=output is Format.TABLE,
    )


def encode(
    file: Annotated[
        str, typer.Argument(metavar="FILE|-", help="JSON lines as decode prints them; - is standard input.")
    ] = "-",
    *,
    dialect: Annotated[
        str | None,
        typer.Option(
            help="Dialect or release to write, /CLOUD for that channel; default: the record's own, else 5.5.0.",
            metavar="NAME",
        ),
    ] = None,
    framing: Annotated[
        OutputFraming, typer.Option(help="The bodies as they are, or a JSON line with body_base64 and keys for each.")
    ] = OutputFraming.RAW,
    charset: Annotated[
        str, typer.Option(help="The charset to write, such as gbk.", parser=parse_charset, metavar="NAME")
    ] = "utf-8",
) -> int:
    """Write native trace bodies from the JSON that decode prints.

    Neighbours with the same body_index make one body. A record that the dialect cannot encode is refused and counted.

    Exit codes: 0, 1 if a record was refused, 2 wrong usage or unreadable input, 130 interrupted.

    Example:
        mqtrace decode body.bin | mqtrace encode --dialect 4.8.0 > old.bin
    """
    from bridge.codec.files import encode_file  # noqa: PLC0415  only when called

    return encode_file(file, dialect=dialect, charset=charset, as_lines=framing is OutputFraming.JSONL_BASE64)


def dialects(
    files: Annotated[
        list[str] | None,
        typer.Argument(metavar="SRC|-", help="Bodies whose writers to name; without any, all writers are listed."),
    ] = None,
    *,
    framing: Annotated[Framing, typer.Option(help="How the bodies lie in the files.")] = Framing.AUTO,
    charset: Charset = "utf-8",
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per writer instead of a table.")] = False,
) -> int:
    """Show every known writer of the native format, or who can have written given bodies, with the evidence.

    The wire names no writer: the records of each group are compared with every known writer, and those that fit remain.

    Exit codes: 0, 2 wrong usage or unreadable input, 130 interrupted.

    Example:
        mqtrace dialects
        mqtrace dialects landing/native/date=2026-11-21/part-0.jsonl
    """
    from bridge.codec.files import show_writers  # noqa: PLC0415  only when called

    return show_writers(files, framing, charset=charset, as_json=as_json)
