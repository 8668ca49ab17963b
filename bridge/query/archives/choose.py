"""Open what a query is to search: paths, a Kafka topic or a RocketMQ cluster."""

from __future__ import annotations

from contextlib import closing, nullcontext
from typing import TYPE_CHECKING, Any, Final

from bridge.addresses import Kind, parse_address, parse_directory
from bridge.storage import as_path
from otel_mqtrace._errors import MissingExtraError, UsageError
from otel_mqtrace.config import Settings

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    from bridge.query.archives.scan import ArrivalRange
    from bridge.query.criteria import Query
    from bridge.query.search import Archive

__all__ = ["open_archive"]


_READABLE: Final = (Kind.FILES, Kind.KAFKA, Kind.ROCKETMQ)
_OPTION_OF: Final = {Kind.KAFKA: "--bootstrap", Kind.ROCKETMQ: "--namesrv"}


def open_archive(
    paths: Sequence[str],
    options: dict[str, Any],
    query: Query,
    arrivals: ArrivalRange,
    progress: Callable[[int, int], None],
) -> AbstractContextManager[Archive]:
    """Open the one archive that ``paths`` or an option names, ready to be closed.

    Raises:
        UsageError: none or several are named, or what is named cannot be opened or searched for ``query``.
    """
    sources: dict[str, Any] = {name: options[name] for name in ("--bootstrap", "--landing", "--namesrv")}
    addresses = [parse_address(path, readable=_READABLE) for path in paths]
    topics = [each for each in addresses if each.kind is not Kind.FILES]
    if topics and len(addresses) > 1:
        raise UsageError(f"{topics[0].text}: a query searches one topic, or files; ask again for the others")
    if topics:
        sources[_OPTION_OF[topics[0].kind]] = topics[0].servers
        options = {**options, "topics": [topics[0].topic]}
    elif addresses:
        sources["SRC"] = [each.path for each in addresses]
    named = [(name, value) for name, value in sources.items() if value is not None]
    if len(named) != 1:
        several = " and ".join(name for name, _ in named)
        problem = f"{several} name different places" if named else "no place is named"
        raise UsageError(f"{problem} to search: give paths, or one of --bootstrap B, --landing DIR, --namesrv N")
    name, value = named[0]
    if options["scan"] and name != "--namesrv":
        raise UsageError(f"--scan is for --namesrv: with {name} every trace message is read anyway")
    if name == "--namesrv" and not options["scan"] and not query.is_indexed:
        raise UsageError("the index of --namesrv knows whole ids and keys only: add --scan to read every trace message")
    settings = Settings.from_env({})
    searched = options["topics"] or [settings.trace_topic]
    return _OPENERS[name](value, arrivals, progress, {**options, "settings": settings, "topics": searched})


def _open_paths(
    paths: list[str], arrivals: ArrivalRange, progress: Callable[[int, int], None], _options: dict[str, Any]
) -> AbstractContextManager[Archive]:
    from bridge.query.archives.landing import FilesArchive, LandingArchive, is_landing  # noqa: PLC0415 - keep `--help` fast

    places = [as_path(path) for path in paths]
    try:
        if len(places) == 1 and is_landing(places[0]):
            return nullcontext(LandingArchive(places[0], arrivals=arrivals, on_progress=progress))
        return nullcontext(FilesArchive(places, arrivals=arrivals, on_progress=progress))
    except OSError as error:  # of a store
        raise UsageError(f"cannot read {', '.join(paths)}: {error.strerror or error}") from error


def _open_topic(
    bootstrap: str, arrivals: ArrivalRange, progress: Callable[[int, int], None], options: dict[str, Any]
) -> AbstractContextManager[Archive]:
    try:
        from bridge.query.archives.kafka import TopicArchive  # noqa: PLC0415 - optional extra
    except ModuleNotFoundError as error:
        raise MissingExtraError("searching a Kafka topic", "kafka") from error
    from otel_mqtrace.client_properties import read_properties  # noqa: PLC0415 - keep `mqtrace --help` fast

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
    landing: str, arrivals: ArrivalRange, progress: Callable[[int, int], None], _options: dict[str, Any]
) -> AbstractContextManager[Archive]:
    from bridge.query.archives.landing import LandingArchive  # noqa: PLC0415 - keep `mqtrace --help` fast

    directory = parse_directory(landing, option="--landing")
    return nullcontext(LandingArchive(directory, arrivals=arrivals, on_progress=progress))


def _open_broker(
    namesrv: str, arrivals: ArrivalRange, progress: Callable[[int, int], None], options: dict[str, Any]
) -> AbstractContextManager[Archive]:
    from bridge.query.archives.rocketmq import BrokerArchive  # noqa: PLC0415 - keep `mqtrace --help` fast

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
    "SRC": _open_paths,
    "--bootstrap": _open_topic,
    "--landing": _open_landing,
    "--namesrv": _open_broker,
}
