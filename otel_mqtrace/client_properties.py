"""Connections of Kafka clients: properties with passwords, addresses, the application's own, metadata, errors."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from otel_mqtrace._errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

_MOST_CHARACTERS: Final = 16 << 20  # of a properties file
_USER_INFORMATION: Final = re.compile(r"(?<=//)[^\s/@]*:\S*@")


def without_password(text: str) -> str:
    """Return ``text`` without the user and password that an address in it may carry: ``https://user:password@host``."""
    return _USER_INFORMATION.sub("…@", text)


def servers_of(properties: Mapping[str, Any]) -> str:
    """Return the addresses that a Kafka client's properties name, an empty text for none."""
    return str(properties.get("bootstrap.servers") or properties.get("metadata.broker.list") or "")


def read_properties(path: Path) -> dict[str, str]:
    """Return the ``name=value`` lines of a librdkafka or Kafka client properties file; ``#`` and ``!`` start comments.

    Raises:
        UsageError: the file cannot be read, or a line is not ``name=value``; the message names the line, not its text.
    """
    try:
        with path.open(encoding="utf-8-sig") as file:
            text = file.read(_MOST_CHARACTERS + 1)
    except OSError as error:
        raise UsageError(f"cannot read the Kafka properties file {path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"the Kafka properties file {path} is not UTF-8 text: name another file") from error
    if len(text) > _MOST_CHARACTERS:  # a device or pipe may have no end
        raise UsageError(
            f"the Kafka properties file {path} has more than {_MOST_CHARACTERS >> 20} MiB: name another file"
        )
    properties: dict[str, str] = {}
    for number, line in enumerate(map(str.strip, text.splitlines()), start=1):
        if not line or line.startswith(("#", "!")):
            continue
        name, separator, value = line.partition("=")
        if not separator or not name.strip():
            raise UsageError(f"line {number} of {path} is not name=value")
        properties[name.strip()] = value.strip()
    return properties


def merge_properties(given: str | Path | Mapping[str, Any] | None, servers: str | None) -> dict[str, Any]:
    """Return the client properties ``given``, or those of a file; with ``servers``, if any, instead of its addresses.

    Raises:
        UsageError: as :func:`read_properties`.
    """
    properties = read_properties(Path(given)) if isinstance(given, str | Path) else dict(given or {})
    return {**properties, "bootstrap.servers": servers} if servers else properties


# -- the application's own connection, learned from its first client, for exporters without one ---------
_CONNECTION_KEYS: Final = re.compile(
    r"(bootstrap\.servers|metadata\.broker\.list|broker\.address\.family|client\.dns\.lookup|security\.protocol"
    r"|enable\.ssl\.certificate\.verification|(sasl|ssl)\..+)\Z"
)
_learned: dict[str, Any] = {}


def remember_application_kafka_config(conf: Mapping[str, Any]) -> None:
    """Keep the first client's connection settings: addresses, security, SASL and TLS; nothing else, never logged.

    The first configuration that names a server wins; callbacks and every other setting stay out.
    """
    if not _learned and servers_of(conf):
        _learned.update(connection_settings(conf))


def connection_settings(conf: Mapping[str, Any]) -> dict[str, Any]:
    """Return what of a client's configuration is needed to reach its cluster. Holds secrets: never log it."""
    return {name: value for name, value in conf.items() if _CONNECTION_KEYS.match(name)}


def application_kafka_config() -> dict[str, Any] | None:
    """Return a copy of what was learned, or ``None`` while no client of the application was seen. Holds secrets."""
    return dict(_learned) or None


def forget_application_kafka_config() -> None:
    """Forget what was learned: the next client is the first one again."""
    _learned.clear()


# -- metadata ---------------------------------------------------------------------------------------------------------
_NOT_CONNECTED, _UNANSWERED = "_TRANSPORT", "_TIMED_OUT"
_INTERRUPTIBLE_S: Final = 0.5


def fetch_metadata(client: Any, topic: str | None, timeout_s: float) -> Any:
    """Return ``client.list_topics(topic)``; a signal handler runs while no broker can be connected to.

    confluent-kafka runs none during a call, so the wait for a connection is cut into short calls. A connected broker
    may use all the time that is left for its answer.

    Raises:
        KafkaException: there is none within ``timeout_s``, or the broker refuses.
    """
    while True:
        wait_s = min(timeout_s, _INTERRUPTIBLE_S)
        try:
            return client.list_topics(topic, timeout=wait_s)
        except Exception as error:
            reason = error_name(error)
            timeout_s -= wait_s
            if timeout_s <= 0 or reason not in {_NOT_CONNECTED, _UNANSWERED}:
                raise
        if reason == _UNANSWERED:
            return client.list_topics(topic, timeout=timeout_s)


# -- errors -----------------------------------------------------------------------------------------------------------
def error_name(error: object) -> str:
    """Return librdkafka's name of an error, as ``_TRANSPORT``; of an error that is not the client's, its class."""
    cause = _cause_of(error)
    return str(cause.name()) if callable(getattr(cause, "name", None)) else type(error).__name__


def error_text(error: object) -> str:
    """Return the client's message on one line; it never quotes the value of a password."""
    cause = _cause_of(error)
    text = str(cause.str() if hasattr(cause, "str") else cause)
    return " ".join(text.split()) or type(error).__name__


def _cause_of(error: Any) -> Any:
    """Return the ``KafkaError`` in a ``KafkaException``, any other error as it is."""
    inner = next(iter(getattr(error, "args", ())), None)
    return inner if hasattr(inner, "str") else error
