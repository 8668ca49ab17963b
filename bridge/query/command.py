"""``mqtrace query``: its options, and how the answer is shown."""

from __future__ import annotations

import json
import os
import sys
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from bridge.addresses import Address, Kind, check_stores, parse_address
from bridge.codec.framing import MessageTypeMap
from bridge.commands import Charset, TimeoutMs, TypeMap, option
from bridge.page.wording import visible
from bridge.query.matching import OutcomeFilter, parse_query
from otel_mqtrace._clock import NS_PER_MS, SystemClock
from otel_mqtrace._errors import MissingExtraError, UsageError, describe_write_fix
from otel_mqtrace.client_properties import read_properties
from otel_mqtrace.config import Settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from bridge.query.matching import Query
    from bridge.query.search import Answer, Archive, ArrivalRange

_READABLE: Final = (Kind.FILES, Kind.KAFKA, Kind.ROCKETMQ)


def find_sources(
    sources: Sequence[str], topics: Sequence[str] | None, *, bootstrap: str | None, namesrv: str | None
) -> list[Address]:
    """Return what is searched as one: paths, or topics of the same servers; ``topics`` are those of the options.

    Raises:
        UsageError: none or several places are named, one cannot be searched, or ``topics`` change nothing.
    """
    check_stores({"SRC": sources})
    addresses = [parse_address(source, readable=_READABLE) for source in sources]
    for option_name, kind, servers in (("--bootstrap", Kind.KAFKA, bootstrap), ("--namesrv", Kind.ROCKETMQ, namesrv)):
        if servers is not None:
            named = topics or (Settings.from_env({}).trace_topic,)
            addresses += [_address_of(option_name, kind, "".join(servers.split()), topic) for topic in named]
    places = {(each.kind, each.servers): each.text for each in addresses}
    if len(places) != 1:
        problem = f"{' and '.join(places.values())} are different places" if places else "no place is named"
        raise UsageError(f"{problem} to search: give paths, or kafka://B/TOPIC, or rocketmq://N/TOPIC")
    if topics and bootstrap is None and namesrv is None:
        raise UsageError(
            f"--trace-topic {topics[0]} changes nothing here: it is for --bootstrap and --namesrv; leave it out"
        )
    return addresses


def _address_of(option_name: str, kind: Kind, servers: str, topic: str) -> Address:
    """Return the address of a topic of an option's servers, which may name a protocol: ``PLAINTEXT://HOST:PORT``."""
    if not servers or "@" in servers:
        raise UsageError(f"{option_name} {'carries a password' if servers else 'is empty'}: write HOST:PORT")
    return Address(kind, f"{option_name} {servers}", servers=servers, topic=topic)


def open_archive(  # noqa: PLR0913 - one parameter per option
    sources: Sequence[Address],
    query: Query,
    arrivals: ArrivalRange,
    progress: Callable[[int, int], None],
    *,
    scan: bool,
    kafka_config: Path | None,
    timeout_ms: float,
) -> Archive:
    """Open the archive of ``sources``, which the caller closes.

    Raises:
        UsageError: it cannot be opened, or not be searched for ``query``.
    """
    kind, servers = sources[0].kind, sources[0].servers
    is_broker = kind is Kind.ROCKETMQ
    if kafka_config is not None and kind is not Kind.KAFKA:
        raise UsageError(f"--kafka-config {kafka_config} is for Kafka topics, and none is given: leave it out")
    if scan and not is_broker:
        raise UsageError("--scan is for RocketMQ: elsewhere every trace message is read anyway")
    if is_broker and not scan and not query.is_indexed:
        raise UsageError("RocketMQ's index finds whole ids and keys only: add --scan to read every trace message")
    if kind is Kind.FILES:
        from bridge.query.landing_archive import FilesArchive  # noqa: PLC0415 - keep `mqtrace --help` fast

        return FilesArchive([each.path for each in sources], arrivals=arrivals, on_progress=progress)
    topics = [each.topic for each in sources]
    if is_broker:
        from bridge.query.rocketmq_archive import BrokerArchive  # noqa: PLC0415 - keep `mqtrace --help` fast

        settings = Settings.from_env({})
        return BrokerArchive(
            servers,
            topics,
            arrivals=arrivals,
            reads_all=scan,
            on_progress=progress,
            timeout_ms=timeout_ms,
            access_key=settings.rocketmq_access_key,
            secret_key=settings.rocketmq_secret_key,
        )
    try:
        from bridge.query.kafka_archive import TopicArchive  # noqa: PLC0415 - optional extra
    except ModuleNotFoundError as error:
        raise MissingExtraError("searching a Kafka topic", "kafka") from error

    return TopicArchive(
        servers,
        topics,
        arrivals=arrivals,
        kafka_config=None if kafka_config is None else read_properties(kafka_config),
        timeout_ms=timeout_ms,
        on_progress=progress,
    )


_FOUND, _NOTHING_FOUND = 0, 1


_Sources = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="SRC", help="Landing, directory, files, kafka://BOOTSTRAP/TOPIC or rocketmq://NAMESRV/TOPIC."
    ),
]
_MsgId = Annotated[
    str | None,
    option("Search", "The message: its unique id, the id of its place, or a prefix followed by *.", metavar="ID"),
]
_Key = Annotated[
    str | None, option("Search", "Messages with this key (not Kafka's record key); with --msg-id, both.", metavar="KEY")
]
_Topic = Annotated[
    str | None, option("Search", "Messages of this topic, with or without its namespace.", metavar="TOPIC")
]
_Group = Annotated[
    str | None, option("Search", "Messages that this producer or consumer group handled.", metavar="GROUP")
]
_Outcome = Annotated[
    OutcomeFilter | None,
    option("Search", "How the last send attempt or a group's last delivery ended; retried: there were several."),
]
_Bootstrap = Annotated[str | None, option("Input", "Search a Kafka trace topic: HOST:PORT,...", metavar="HOST:PORT")]
_Landing = Annotated[
    str | None,
    option("Input", "Search a landing: a directory, s3a://BUCKET/PATH or hdfs://NAMENODE/PATH.", metavar="URL"),
]
_Namesrv = Annotated[str | None, option("Input", "Search a RocketMQ cluster: HOST:PORT;...", metavar="HOST:PORT")]
_TraceTopic = Annotated[
    list[str] | None,
    option("Input", "Trace topic, else MQTRACE_TRACE_TOPIC, else RocketMQ's own; may be given again.", metavar="TOPIC"),
]
_Begin = Annotated[
    str | None,
    option("Search", "Trace messages that arrived since: ISO 8601, epoch ms, or 15m, 2h, 3d ago.", metavar="TIME"),
]
_End = Annotated[str | None, option("Search", "Trace messages that arrived until.", metavar="TIME")]
_Scan = Annotated[bool, option("Search", "RocketMQ: read every trace message instead of asking the index.", "--scan")]
_Html = Annotated[Path | None, option("Output", "Write a page that stands alone to this file, too.", metavar="FILE")]
_AsJson = Annotated[bool, option("Output", "Print JSON instead of tables.", "--json")]
_Limit = Annotated[int, option("Output", "Messages on a page; page 1 has the newest.", metavar="N", min=1)]
_Page = Annotated[int, option("Output", "The page to show.", metavar="N", min=1)]
_LinkTemplate = Annotated[
    str | None,
    option("Output", "Address of mqtrace forward's trace: https://jaeger.example/trace/{trace_id}.", metavar="URL"),
]
_KafkaConfig = Annotated[
    Path | None, option("Input", "Properties file for the Kafka client: TLS, SASL.", metavar="FILE")
]


def query(  # noqa: PLR0913 - one parameter per option
    sources: _Sources = None,
    *,
    msg_id: _MsgId = None,
    key: _Key = None,
    topic: _Topic = None,
    group: _Group = None,
    outcome: _Outcome = None,
    bootstrap: _Bootstrap = None,
    landing: _Landing = None,
    namesrv: _Namesrv = None,
    trace_topic: _TraceTopic = None,
    begin: _Begin = None,
    end: _End = None,
    scan: _Scan = False,
    html: _Html = None,
    as_json: _AsJson = False,
    limit: _Limit = 64,
    page: _Page = 1,
    link_template: _LinkTemplate = None,
    kafka_config: _KafkaConfig = None,
    msg_type_map: TypeMap = MessageTypeMap.A,
    charset: Charset = "utf-8",
    timeout_ms: TimeoutMs = 10_000,
) -> int:
    """Show what happened to a message: every send attempt, its transaction, each group's deliveries and retries.

    Several messages are a list with pages, one is shown whole.

    Exit codes: 0 found, 1 nothing found in what was searched, 2 wrong usage or a source that cannot be searched,
    130 interrupted.

    Example:
        mqtrace query landing --msg-id C00002027A9A4E0E2F2A6972872E01E4 --html message.html
        mqtrace query landing --group billing --outcome failed --limit 20
    """
    from bridge.codec.files import BodyDecoder  # noqa: PLC0415
    from bridge.page.markup import check_template  # noqa: PLC0415
    from bridge.query.details import LINK_FIELDS  # noqa: PLC0415
    from bridge.query.search import arrival_range, search  # noqa: PLC0415 - keep `mqtrace --help` fast

    criteria = parse_query(msg_id, key, topic=topic, group=group, outcome=outcome)
    template = None if link_template is None else check_template(link_template, LINK_FIELDS)
    decoder = BodyDecoder(msg_type_map.value, charset)  # a wrong charset fails before anything is read
    arrivals = arrival_range(begin, end, now_ms=SystemClock().wall_ns() // NS_PER_MS)
    places = find_sources(
        [*(sources or ()), *([] if landing is None else [landing])], trace_topic, bootstrap=bootstrap, namesrv=namesrv
    )
    if html is not None:
        _check_page(html)
    with (
        _bar() as progress,
        closing(
            open_archive(
                places, criteria, arrivals, progress, scan=scan, kafka_config=kafka_config, timeout_ms=timeout_ms
            )
        ) as archive,
    ):
        answer = search(archive, criteria, decoder, limit=limit, page=page)
    return _show(replace(answer, link_template=template), arrivals, html, as_json=as_json)


def _check_page(html: Path) -> None:
    """Refuse a page that cannot be written, or that would replace a file that is not a page."""
    if str(html) == "-" or html.is_dir():
        raise UsageError(f"--html {html} is not a file: name one, such as message.html")
    if not html.parent.is_dir():
        raise UsageError(f"--html {html}: there is no directory {html.parent}; create it, or name a file elsewhere")
    if not html.is_file():
        return
    with html.open("rb") as file:
        head = file.read(99).lstrip()
    if head and not head.startswith(b"<!doctype html>"):
        raise UsageError(f"--html {html} would replace a file that is not a page of mqtrace: name another file")


def _show(answer: Answer, arrivals: ArrivalRange, html: Path | None, *, as_json: bool) -> int:
    """Show ``answer`` in every requested form, and return the exit code."""
    if as_json:
        from bridge.query.details import answer_json  # noqa: PLC0415

        text = json.dumps(answer_json(answer), ensure_ascii=False, indent=2)
        with suppress(BrokenPipeError):  # the exit code is still the result
            sys.stdout.buffer.write(text.encode("utf-8", "backslashreplace") + b"\n")
            sys.stdout.buffer.flush()
    from bridge.query.terminal import nothing_found, print_answer  # noqa: PLC0415 - rich takes its time

    if not answer.stories:
        typer.echo(f"mqtrace: {nothing_found(answer, arrivals)}", err=True)
        return _NOTHING_FOUND
    if not as_json:
        print_answer(answer)
    if html is not None:
        _write_page(answer, html)
        typer.echo(f"mqtrace: the page is {visible(str(html), limit=None)}", err=True)
    return _FOUND


def _write_page(answer: Answer, html: Path) -> None:
    from bridge.query.html import page  # noqa: PLC0415

    text, is_new = page(answer), not os.path.lexists(html)
    try:
        html.write_text(text, encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        with suppress(OSError):  # nor can that be removed from a read-only file system
            if is_new:
                html.unlink()  # a part of the page; a file of the user's stays
        fix = describe_write_fix(error, "name a file elsewhere")
        raise UsageError(f"cannot write --html {html}: {error.strerror}; {fix}") from error


@contextmanager
def _bar() -> Iterator[Callable[[int, int], None]]:
    if not sys.stderr.isatty():  # without loading rich
        yield lambda _done, _whole: None
        return
    from otel_mqtrace._terminal import progress_bar  # noqa: PLC0415

    with progress_bar("searching") as show:
        yield lambda done, whole: show(completed=done, total=whole)
