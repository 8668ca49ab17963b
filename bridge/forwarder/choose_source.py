"""Choose and open the source that --source names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol

from bridge.addresses import Kind, parse_address, root_of
from bridge.forwarder.service import TraceSource
from bridge.forwarder.sources.files import FilesTraceSource, SpanFilesSource
from otel_mqtrace._errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import TracebackType

    from typing_extensions import Self

    from bridge.storage import AnyPath


class OpenSource(TraceSource, Protocol):
    """A source that holds a connection or a file; use it as a context manager."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def open_source(  # noqa: PLR0913 - the options, by name
    source: str,
    *,
    state: AnyPath,
    group: str,
    client_config: Mapping[str, str],
    accept_trimmed: bool = False,
    timeout_ms: float = 10_000,
    of_spans: bool = False,
) -> OpenSource:
    """Return the source that ``source`` names, at the position of ``group``; ``state`` keeps that for files.

    With ``of_spans`` files hold OTLP messages, else native bodies.

    Raises:
        UsageError: not a file, a directory, a glob or a topic.
        MissingExtraError: a client that is not installed.
        PeerError: the source does not answer.
    """
    address = parse_address(source, readable=(Kind.KAFKA, Kind.ROCKETMQ, Kind.FILES))
    if address.kind is Kind.FILES:
        files = SpanFilesSource if of_spans else FilesTraceSource
        return files(address.path, group=group, state=state)
    return _OPENERS[address.kind](
        address.servers,
        address.topic,
        group=group,
        client_config=client_config,
        accept_trimmed=accept_trimmed,
        timeout_ms=timeout_ms,
    )


def files_directory(source: str) -> AnyPath | None:
    """Return the directory of the files that ``source`` names, ``None`` when it names a topic."""
    address = parse_address(source)
    return root_of(address.path) if address.kind is Kind.FILES else None


def _open_kafka(servers: str, topic: str, *, client_config: Mapping[str, str], **options: Any) -> OpenSource:
    from bridge.forwarder.sources.kafka import KafkaTraceSource  # noqa: PLC0415 - optional extra

    return KafkaTraceSource(servers, topic, kafka_config=client_config or None, **options)


def _open_rocketmq(servers: str, topic: str, *, client_config: Mapping[str, str], **options: Any) -> OpenSource:
    from bridge.forwarder.sources.rocketmq import RemotingTraceSource  # noqa: PLC0415 - one kind is used, at most

    unknown = client_config.keys() - _ROCKETMQ_KEYS.keys()
    if unknown:
        raise UsageError(
            f"--client-config: {', '.join(sorted(unknown))} is not known; give {', '.join(_ROCKETMQ_KEYS)}"
        )
    keys: dict[str, Any] = {_ROCKETMQ_KEYS[name]: value for name, value in client_config.items()}
    return RemotingTraceSource(servers, topic, **keys, **options)


_ROCKETMQ_KEYS: Final = {"accessKey": "access_key", "secretKey": "secret_key"}
"""In the properties file, as RocketMQ's own tools spell them → the client's parameters."""
_OPENERS: Final[Mapping[Kind, Callable[..., OpenSource]]] = {Kind.KAFKA: _open_kafka, Kind.ROCKETMQ: _open_rocketmq}
