"""This module knows ``mqtrace query``: its options, which archive they name, and what becomes of the answer."""

from __future__ import annotations

import json
import sys
from contextlib import closing, contextmanager, nullcontext
from enum import Enum
from pathlib import Path  # noqa: TC003 - typer reads the annotations
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from otel_mqtrace._clock import SystemClock
from otel_mqtrace._errors import MissingExtraError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from bridge.query.instants import ArrivalRange
    from bridge.query.search import Answer, Archive

__all__ = ["MessageTypeMap", "query"]

_FOUND, _NOTHING_FOUND = 0, 1
_NS_PER_MS: Final = 1_000_000


class MessageTypeMap(str, Enum):
    """What the ordinals of message types mean: ``b`` for bodies of RocketMQ 5.0.0 and 5.1.0."""

    A = "a"
    B = "b"


def query(  # noqa: PLR0913 - one parameter per option
    *,
    msg_id: Annotated[str | None, typer.Option(help="The message: its unique id or the id of its place.")] = None,
    key: Annotated[str | None, typer.Option(help="Messages with this key; with --msg-id it must have both.")] = None,
    bootstrap: Annotated[str | None, typer.Option(help="Search a Kafka trace topic: HOST:PORT,...")] = None,
    landing: Annotated[Path | None, typer.Option(help="Search a landing directory.")] = None,
    namesrv: Annotated[str | None, typer.Option(help="Search a RocketMQ cluster: HOST:PORT;...")] = None,
    trace_topic: Annotated[
        list[str] | None,
        typer.Option(help="Trace topic, else MQTRACE_TRACE_TOPIC, else RocketMQ's own; may be given again."),
    ] = None,
    begin: Annotated[
        str | None, typer.Option(help="Trace messages that arrived since: ISO 8601, epoch ms, or 15m, 2h, 3d ago.")
    ] = None,
    end: Annotated[str | None, typer.Option(help="Trace messages that arrived until.")] = None,
    scan: Annotated[
        bool, typer.Option("--scan", help="RocketMQ: read every trace message instead of asking the index.")
    ] = False,
    html: Annotated[Path | None, typer.Option(help="Write a page that stands alone to this file, too.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
    limit: Annotated[int, typer.Option(min=1, help="At most so many messages, the newest.")] = 64,
    kafka_config: Annotated[Path | None, typer.Option(help="Properties file for the Kafka client: TLS, SASL.")] = None,
    msg_type_map: Annotated[
        MessageTypeMap, typer.Option(help="Message type ordinals; b for bodies of RocketMQ 5.0.0 and 5.1.0.")
    ] = MessageTypeMap.A,
    charset: Annotated[str, typer.Option(help="The writer's charset, such as gbk.", metavar="NAME")] = "utf-8",
    timeout_ms: Annotated[float, typer.Option(min=1, help="How long one answer of a broker may take.")] = 10_000,
) -> int:
    """Tell what happened to a message: every send attempt, its transaction, each group's deliveries and retries.

    Exit code 0: found; 1: nothing found in what was searched; 2: it could not be searched.

    Example:
        mqtrace query --msg-id C00002027A9A4E0E2F2A6972872E01E4 --landing landing --html message.html
    """
    from bridge.codec.reading import Reading  # noqa: PLC0415
    from bridge.query.instants import arrival_range  # noqa: PLC0415
    from bridge.query.search import search  # noqa: PLC0415
    from bridge.query.wanted import wanted  # noqa: PLC0415
    from otel_mqtrace.config import Settings  # noqa: PLC0415
    from otel_mqtrace.wire.native import decode_body  # noqa: PLC0415 - keep `mqtrace --help` fast

    sought = wanted(msg_id, key)
    decode_body(b" ", charset=charset)  # a wrong charset fails before anything is read
    arrivals = arrival_range(begin, end, now_ms=SystemClock().wall_ns() // _NS_PER_MS)
    sources = {"--bootstrap": bootstrap, "--landing": landing, "--namesrv": namesrv}
    settings = Settings.from_env({})
    options = {"topics": trace_topic or [settings.trace_topic], "scan": scan, "kafka_config": kafka_config}
    _check_page(html)
    with (
        _bar() as progress,
        _opened(sources, arrivals, progress, settings=settings, timeout_ms=timeout_ms, **options) as archive,
    ):
        answer = search(archive, sought, Reading(msg_type_map.value, charset), limit=limit)
    return _told(answer, html, as_json=as_json)


def _opened(
    sources: dict[str, Any], arrivals: ArrivalRange, progress: Callable[[int, int], None], **options: Any
) -> AbstractContextManager[Archive]:
    """Open the one archive that is named, ready to be closed.

    Raises:
        UsageError: none or several are named, or what is named cannot be opened.
    """
    named = [(option, value) for option, value in sources.items() if value is not None]
    if len(named) != 1:
        told = (
            "nothing says where" if not named else f"{' and '.join(option for option, _ in named)} say different places"
        )
        raise UsageError(f"{told} to search: give one of --bootstrap B, --landing DIR, --namesrv N")
    option, value = named[0]
    if options["scan"] and option != "--namesrv":
        raise UsageError(f"--scan is for --namesrv: with {option} every trace message is read anyway")
    return _OPENERS[option](value, arrivals, progress, options)


def _open_topic(
    bootstrap: str, arrivals: ArrivalRange, progress: Callable[[int, int], None], options: dict[str, Any]
) -> AbstractContextManager[Archive]:
    try:
        from bridge.query.topic import TopicArchive  # noqa: PLC0415 - optional extra
    except ModuleNotFoundError as error:
        raise MissingExtraError("searching a Kafka topic", "kafka") from error
    from otel_mqtrace.exporters.connection import read_properties  # noqa: PLC0415 - keep `mqtrace --help` fast

    file = options["kafka_config"]
    return closing(
        TopicArchive(
            bootstrap,
            options["topics"],
            arrivals=arrivals,
            kafka_config=None if file is None else read_properties(file),
            timeout_ms=options["timeout_ms"],
            on_progress=progress,
        )
    )


def _open_landing(
    landing: Path, arrivals: ArrivalRange, progress: Callable[[int, int], None], _options: dict[str, Any]
) -> AbstractContextManager[Archive]:
    from bridge.query.landed import LandingArchive  # noqa: PLC0415 - keep `mqtrace --help` fast

    return nullcontext(LandingArchive(landing, arrivals=arrivals, on_progress=progress))


def _open_broker(
    namesrv: str, arrivals: ArrivalRange, progress: Callable[[int, int], None], options: dict[str, Any]
) -> AbstractContextManager[Archive]:
    from bridge.query.broker import BrokerArchive  # noqa: PLC0415 - keep `mqtrace --help` fast

    return closing(
        BrokerArchive(
            namesrv,
            options["topics"],
            arrivals=arrivals,
            scan=options["scan"],
            on_progress=progress,
            timeout_ms=options["timeout_ms"],
            access_key=options["settings"].rocketmq_access_key,
            secret_key=options["settings"].rocketmq_secret_key,
        )
    )


_OPENERS: Final[dict[str, Callable[..., AbstractContextManager[Archive]]]] = {
    "--bootstrap": _open_topic,
    "--landing": _open_landing,
    "--namesrv": _open_broker,
}


def _told(answer: Answer, html: Path | None, *, as_json: bool) -> int:
    """Show ``answer`` in every form that was asked for, and return the exit code."""
    if as_json:
        from bridge.query.answer_json import answer_json  # noqa: PLC0415

        text = json.dumps(answer_json(answer), ensure_ascii=False, indent=2)
        sys.stdout.buffer.write(text.encode("utf-8", "backslashreplace") + b"\n")
        sys.stdout.buffer.flush()
    else:
        from bridge.query.terminal import print_answer  # noqa: PLC0415 - rich takes its time

        print_answer(answer)
    if html is not None:
        from bridge.query.page import page  # noqa: PLC0415

        html.write_text(page(answer), encoding="utf-8", errors="backslashreplace")
        typer.echo(f"mqtrace: the page is {html}", err=True)
    if answer.stories:
        return _FOUND
    typer.echo("mqtrace: nothing found; check the id, and --begin and --end: they are about arrivals", err=True)
    return _NOTHING_FOUND


def _check_page(html: Path | None) -> None:
    """Refuse a page that cannot be written before anything is searched."""
    if html is not None and (html.is_dir() or not html.parent.is_dir()):
        raise UsageError(f"--html {html}: name a file in a directory that exists")


@contextmanager
def _bar() -> Iterator[Callable[[int, int], None]]:
    """Give what draws a progress bar on standard error, on a terminal only; it is gone at the end."""
    if not sys.stderr.isatty():
        yield lambda _done, _all: None
        return
    from rich.console import Console  # noqa: PLC0415 - only a terminal is worth loading rich for
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn  # noqa: PLC0415

    columns = (TextColumn("searching"), BarColumn(), TextColumn("{task.percentage:>3.0f} %"), TimeRemainingColumn())
    with Progress(*columns, console=Console(file=sys.stderr), transient=True) as progress:
        task = progress.add_task("searching", total=None)
        yield lambda done, whole: progress.update(task, completed=done, total=whole)
