"""This module knows which broker the trace goes to: what was said, else the environment, else the application's own."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from otel_mqtrace._errors import UsageError
from otel_mqtrace.client_properties import read_properties
from otel_mqtrace.config import application_kafka_config

if TYPE_CHECKING:
    from collections.abc import Mapping

    from otel_mqtrace.config import Settings

__all__ = ["connection_of", "read_properties"]


def connection_of(
    settings: Settings,
    *,
    bootstrap_servers: str | None = None,
    kafka_config: str | Path | Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return client properties with ``bootstrap.servers``. They may hold passwords: never log them.

    A dedicated trace broker never inherits the application's credentials: once an address is given, here or by
    ``MQTRACE_BOOTSTRAP_SERVERS`` or in the file of ``MQTRACE_KAFKA_CONFIG``, the application's own settings stay out.

    Raises:
        UsageError: no address is known, or the properties file cannot be read.
    """
    given = kafka_config if kafka_config is not None else settings.kafka_config
    properties = read_properties(Path(given)) if isinstance(given, (str, Path)) else dict(given or {})
    address = bootstrap_servers or settings.bootstrap_servers
    if address:
        properties["bootstrap.servers"] = address
    if not (properties.get("bootstrap.servers") or properties.get("metadata.broker.list")):
        properties = {**(application_kafka_config() or {}), **properties}
    if not (properties.get("bootstrap.servers") or properties.get("metadata.broker.list")):
        raise UsageError("no broker is known for the trace topic: set MQTRACE_BOOTSTRAP_SERVERS")
    return properties
