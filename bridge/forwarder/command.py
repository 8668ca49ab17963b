"""The command mqtrace forward."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from bridge.addresses import parse_directory, parse_duration_ms
from bridge.codec.framing import MessageTypeMap
from bridge.commands import LONGEST_TIMEOUT_MS, Charset, TimeoutMs, TypeMap, option
from otel_mqtrace._errors import UsageError
from otel_mqtrace.config import has_open_bracket
from otel_mqtrace.wire.native.layout import DEFAULT_DIALECT


class _ServiceNameFrom(str, Enum):
    """Where a span's ``service.name`` is taken from."""

    GROUP = "group"
    FIXED = "fixed"


_Source = Annotated[
    str,
    option(
        "Input",
        "kafka://BOOTSTRAP/TOPIC, rocketmq://NAMESRV[;NAMESRV]/TOPIC, a file, DIR or glob; with "
        "--native a Collector's topic or files of spans.",
        metavar="SRC",
    ),
]
_Landing = Annotated[
    str | None,
    option(
        "Output",
        "Where the raw trace messages go: a directory, s3a://BUCKET/PATH or hdfs://NAMENODE/PATH.",
        metavar="URL",
    ),
]
_OtlpEndpoint = Annotated[
    str | None,
    option("Output", "Where spans go: http(s)://HOST:PORT, with a path or not, or grpc(s)://HOST:PORT.", metavar="URL"),
]
_Native = Annotated[
    str | None,
    option(
        "Output",
        "Write spans as native records: to kafka://BOOTSTRAP/TOPIC, rocketmq://NAMESRV[;NAMESRV]/TOPIC or a DIR.",
        metavar="URL",
    ),
]
_Dialect = Annotated[
    str | None,
    option("Output", f"The records of --native: as this release writes, else {DEFAULT_DIALECT}.", metavar="NAME"),
]
_State = Annotated[
    str | None,
    option(
        "Input",
        "Directory for the file of what was delivered beyond the commits; default: in the landing.",
        metavar="DIR",
    ),
]
_Once = Annotated[
    bool, typer.Option("--once", help="Forward what is there now, and end; else go on until SIGINT, SIGTERM or SIGHUP.")
]
_Group = Annotated[str, option("Input", "Consumer group that remembers the position.", metavar="GROUP")]
_ClientConfig = Annotated[
    Path | None,
    option("Input", "Properties of the client: TLS, SASL, ACL.", "--client-config", "--kafka-config", metavar="FILE"),
]
_LandingFormat = Annotated[str, option("Output", "parquet, or jsonl, which needs no extra.", metavar="parquet|jsonl")]
_AcceptTrimmed = Annotated[bool, option("Input", "Go on after messages that retention removed.", "--accept-trimmed")]
_OtlpTimeoutMs = Annotated[
    float,
    option("Output", "How long an OTLP request may take, with retries.", metavar="MS", min=1, max=LONGEST_TIMEOUT_MS),
]
_PairTimeout = Annotated[
    str, option("Spans", "How long half a listener call waits: 60s, 5m, 500ms.", metavar="DURATION")
]
_MaxPending = Annotated[int, option("Spans", "Records that may wait; each takes about 1 KB.", metavar="N", min=1)]
_NameFrom = Annotated[
    _ServiceNameFrom, option("Spans", "The spans' service.name: the record's group, or --service-name.")
]
_ServiceName = Annotated[str | None, option("Spans", "For --service-name-from fixed; else rocketmq.", metavar="NAME")]
_MessagingSystem = Annotated[str, option("Spans", "The spans' messaging.system.", metavar="NAME")]
_StampedAfter = Annotated[
    list[str] | None, option("Spans", "Groups of clients that stamp a Pub after the send: Go's.", metavar="PATTERN")
]


def forward(  # noqa: PLR0913 - one parameter per option
    source: _Source,
    landing: _Landing = None,
    *,
    otlp_endpoint: _OtlpEndpoint = None,
    native: _Native = None,
    dialect: _Dialect = None,
    state: _State = None,
    once: _Once = False,
    group: _Group = "mqtrace-forward",
    client_config: _ClientConfig = None,
    landing_format: _LandingFormat = "parquet",
    accept_trimmed: _AcceptTrimmed = False,
    timeout_ms: TimeoutMs = 10_000,
    otlp_timeout_ms: _OtlpTimeoutMs = 10_000,
    pair_timeout: _PairTimeout = "60s",
    max_pending: _MaxPending = 100_000,
    service_name_from: _NameFrom = _ServiceNameFrom.GROUP,
    service_name: _ServiceName = None,
    messaging_system: _MessagingSystem = "rocketmq",
    stamped_after: _StampedAfter = None,
    msg_type_map: TypeMap = MessageTypeMap.A,
    charset: Charset = "utf-8",
    as_json: Annotated[bool, typer.Option("--json", help="Print the counts as JSON.")] = False,
) -> int:
    """Forward a native trace topic to OTLP, into a landing, or both; with --native, spans to a native trace topic.

    Exit codes: 0, also when a signal stops a run without --once, 1 a peer failed later (nothing uncommitted is lost),
    2 wrong usage or no answer, 130 interrupted.

    Example:
        mqtrace forward --source rocketmq://127.0.0.1:9876/RMQ_SYS_TRACE_TOPIC --otlp-endpoint http://127.0.0.1:4318
        mqtrace forward --source kafka://127.0.0.1:9092/RMQ_SYS_TRACE_TOPIC --landing landing --once
        mqtrace forward --source spans --native rocketmq://127.0.0.1:9876/RMQ_SYS_TRACE_TOPIC --once
    """
    from bridge.forwarder.run import ForwardOptions, run  # noqa: PLC0415 - keep `mqtrace --help` fast

    options = ForwardOptions(
        source=source,
        landing=None if landing is None else parse_directory(landing, option="--landing"),
        otlp_endpoint=otlp_endpoint,
        native=native,
        dialect=dialect,
        state=None if state is None else parse_directory(state, option="--state"),
        once=once,
        group=group,
        client_config=client_config,
        landing_format=landing_format,
        accept_trimmed=accept_trimmed,
        timeout_ms=timeout_ms,
        otlp_timeout_ms=otlp_timeout_ms,
        pair_timeout_ms=parse_duration_ms(pair_timeout, name="--pair-timeout"),
        max_pending=max_pending,
        service_name=_fixed_name(service_name, service_name_from),
        messaging_system=messaging_system,
        stamped_after=tuple(map(parse_pattern, stamped_after or ())),
        msg_type_map=msg_type_map.value,
        charset=charset,
    )
    return run(options, as_json=as_json)


def parse_pattern(text: str) -> str:
    """Return a pattern of group names as a shell has them: ``*``, ``?``, ``[…]``.

    Raises:
        UsageError: it is empty, or a bracket is not closed.
    """
    if not text.strip():
        raise UsageError("--stamped-after is empty: write a name, or a pattern such as PG_*")
    if has_open_bracket(text):
        problem = "has a [ that no ] closes: close it, or write [[] for the character itself"
        raise UsageError(f"--stamped-after '{text}' {problem}")
    return text


def _fixed_name(name: str | None, name_from: _ServiceNameFrom) -> str | None:
    """Return the name of all spans' service; ``None``: each has its group's."""
    if name_from is _ServiceNameFrom.FIXED:
        return name or "rocketmq"
    if name is not None:
        raise UsageError(f"--service-name {name} changes nothing here: add --service-name-from fixed")
    return None
