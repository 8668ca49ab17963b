"""This module knows ``mqtrace forward``: its options, its signals and what it says when it is done."""

from __future__ import annotations

import json
import re
import signal
import threading
from pathlib import Path  # noqa: TC003 - typer reads the annotations
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from otel_mqtrace._errors import PeerError, UsageError

if TYPE_CHECKING:
    from bridge.forwarder.service import ForwardCounts
    from bridge.forwarder.source import KafkaTraceSource

__all__ = ["forward"]

_KAFKA: Final = re.compile(r"kafka://(?P<bootstrap>[^/]+)/(?P<topic>[^/]+)\Z")
_PAUSE_MS: Final = 1_000
_STOPPED_ON_ERROR: Final = 1  # nothing uncommitted is lost: it will be forwarded again


def forward(  # noqa: PLR0913 - one parameter per option
    source: Annotated[str, typer.Option(help="Where the native trace is: kafka://BOOTSTRAP/TOPIC.")],
    landing: Annotated[Path, typer.Option(help="Directory for the raw trace messages.")],
    *,
    once: Annotated[bool, typer.Option("--once", help="Stop at the topic's present end.")] = False,
    group: Annotated[str, typer.Option(help="Consumer group that remembers the position.")] = "mqtrace-forward",
    kafka_config: Annotated[Path | None, typer.Option(help="Properties file for the client: TLS, SASL.")] = None,
    landing_format: Annotated[str, typer.Option(help="parquet, or jsonl without the spark extra.")] = "parquet",
    accept_trimmed: Annotated[
        bool, typer.Option("--accept-trimmed", help="Go on after messages that retention removed.")
    ] = False,
    timeout_ms: Annotated[float, typer.Option(help="How long one answer of the broker may take.")] = 10_000,
    as_json: Annotated[bool, typer.Option("--json", help="Print the counts as JSON.")] = False,
) -> int:
    """Forward a native trace topic into a landing: raw bodies, durable before their offsets are committed.

    Without --once it goes on until SIGINT or SIGTERM, and then finishes and commits what it has read; each pass that
    moved something is a line on stderr. Large backlogs are committed part by part.

    Example:
        mqtrace forward --source kafka://127.0.0.1:9092/RMQ_SYS_TRACE_TOPIC --landing landing --once
    """
    from bridge.forwarder.service import forward_once, forward_until  # noqa: PLC0415 - keep `mqtrace --help` fast
    from bridge.landing.writer import LandingWriter  # noqa: PLC0415 - keep `mqtrace --help` fast

    opened = _open(source, group=group, kafka_config=kafka_config, accept_trimmed=accept_trimmed, timeout_ms=timeout_ms)
    writer = LandingWriter(landing, format=landing_format)
    try:
        with opened:
            if once:
                counts = forward_once(opened, writer)
            else:
                counts = forward_until(_stop_on_signals(), opened, writer, pause_ms=_PAUSE_MS, on_pass=_tell_progress)
    except PeerError as error:
        typer.echo(f"mqtrace: error: {error}", err=True)
        return _STOPPED_ON_ERROR
    typer.echo(_told(counts, opened, landing, as_json=as_json))
    return 0


def _open(source: str, **options: Any) -> KafkaTraceSource:
    found = _KAFKA.match(source)
    if found is None:
        raise UsageError(f"--source {source} is not understood: give kafka://BOOTSTRAP/TOPIC")
    from bridge.exporters.connection import read_properties  # noqa: PLC0415 - keep `mqtrace --help` fast
    from bridge.forwarder.source import KafkaTraceSource  # noqa: PLC0415 - optional extra

    properties_file = options.pop("kafka_config")
    properties = None if properties_file is None else read_properties(properties_file)
    return KafkaTraceSource(found["bootstrap"], found["topic"], kafka_config=properties, **options)


def _stop_on_signals() -> threading.Event:
    stopped = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopped.set())
    return stopped


def _tell_progress(passed: ForwardCounts) -> None:
    if passed.messages:
        typer.echo(f"mqtrace: {passed.messages} trace messages committed", err=True)


def _told(counts: ForwardCounts, source: KafkaTraceSource, landing: Path, *, as_json: bool) -> str:
    gone = sum(trimmed.offsets for trimmed in source.trimmed)
    if as_json:
        numbers = {"messages": counts.messages, "body_bytes": counts.body_bytes, "trimmed_offsets": gone}
        return json.dumps({**numbers, "parts": [part.file for part in counts.parts]})
    lost = f"; {gone} offsets had been trimmed before" if gone else ""
    return (
        f"{counts.messages} trace messages ({counts.body_bytes} bytes) in {len(counts.parts)} parts of {landing}{lost}"
    )
