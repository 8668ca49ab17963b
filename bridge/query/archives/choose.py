"""Open what a query is to search: paths, Kafka topics or topics of a RocketMQ cluster."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from bridge.addresses import Address, Kind, check_stores, parse_address
from otel_mqtrace._errors import MissingExtraError, UsageError
from otel_mqtrace.config import Settings

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from bridge.query.archives.scan import ArrivalRange
    from bridge.query.criteria import Query
    from bridge.query.search import Archive


_READABLE: Final = (Kind.FILES, Kind.KAFKA, Kind.ROCKETMQ)


@dataclass(frozen=True, slots=True)
class Sources:
    """What is searched as one: paths, or topics of the same servers."""

    kind: Kind
    servers: str
    addresses: tuple[Address, ...]

    @classmethod
    def parse(
        cls, sources: Sequence[str], topics: Sequence[str] | None, *, bootstrap: str | None, namesrv: str | None
    ) -> Sources:
        """Return what ``SRC`` or an option names; ``topics`` are those of the options.

        Raises:
            UsageError: none or several are named, or one cannot be searched.
        """
        check_stores({"SRC": sources})
        addresses = [parse_address(source, readable=_READABLE) for source in sources]
        for kind, servers in ((Kind.KAFKA, bootstrap), (Kind.ROCKETMQ, namesrv)):
            if servers is not None:
                addresses += [
                    Address(kind, f"{kind.name.lower()} at {servers}", servers=servers, topic=topic)
                    for topic in topics or (Settings.from_env({}).trace_topic,)
                ]
        places = {(each.kind, each.servers): each.text for each in addresses}
        if len(places) != 1:
            problem = f"{' and '.join(places.values())} are different places" if places else "no place is named"
            raise UsageError(f"{problem} to search: give paths, or kafka://B/TOPIC, or rocketmq://N/TOPIC")
        ((kind, servers),) = places
        return cls(kind, servers, tuple(addresses))


def open_archive(  # noqa: PLR0913 - one parameter per option
    sources: Sources,
    query: Query,
    arrivals: ArrivalRange,
    progress: Callable[[int, int], None],
    *,
    scan: bool,
    kafka_config: Path | None,
    timeout_ms: float,
) -> AbstractContextManager[Archive]:
    """Open the archive of ``sources``, ready to be closed.

    Raises:
        UsageError: it cannot be opened, or not be searched for ``query``.
    """
    is_broker = sources.kind is Kind.ROCKETMQ
    if scan and not is_broker:
        raise UsageError("--scan is for RocketMQ: elsewhere every trace message is read anyway")
    if is_broker and not scan and not query.is_indexed:
        raise UsageError("RocketMQ's index finds whole ids and keys only: add --scan to read every trace message")
    if sources.kind is Kind.FILES:
        from bridge.query.archives.landing import FilesArchive  # noqa: PLC0415 - keep `mqtrace --help` fast

        paths = [each.path for each in sources.addresses]
        return closing(FilesArchive(paths, arrivals=arrivals, on_progress=progress))
    topics = [each.topic for each in sources.addresses]
    if is_broker:
        from bridge.query.archives.rocketmq import BrokerArchive  # noqa: PLC0415 - keep `mqtrace --help` fast

        settings = Settings.from_env({})
        return closing(
            BrokerArchive(
                sources.servers,
                topics,
                arrivals=arrivals,
                reads_all=scan,
                on_progress=progress,
                timeout_ms=timeout_ms,
                access_key=settings.rocketmq_access_key,
                secret_key=settings.rocketmq_secret_key,
            )
        )
    try:
        from bridge.query.archives.kafka import TopicArchive  # noqa: PLC0415 - optional extra
    except ModuleNotFoundError as error:
        raise MissingExtraError("searching a Kafka topic", "kafka") from error
    from otel_mqtrace.client_properties import read_properties  # noqa: PLC0415 - keep `mqtrace --help` fast

    return closing(
        TopicArchive(
            sources.servers,
            topics,
            arrivals=arrivals,
            kafka_config=None if kafka_config is None else read_properties(kafka_config),
            timeout_ms=timeout_ms,
            on_progress=progress,
        )
    )
