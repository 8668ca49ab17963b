"""The settings: names, defaults, and the reader of each; a wrong value is one warning, never an exception.

Every setting is an environment variable ``MQTRACE_<NAME>`` and, in lower case, a keyword option of the instrumentor.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Mapping  # noqa: TC003 - declarative configuration asks for the types of the settings
from dataclasses import dataclass, field, fields, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Final

from otel_mqtrace.settings_text import READERS, one_of, without_password

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

__all__ = [
    "BATCH_SIZE",
    "ENVIRONMENT_PREFIX",
    "LINGER_MS",
    "NEVER_SHOWN",
    "QUEUE_SIZE",
    "Settings",
    "application_kafka_config",
    "connection_settings",
    "forget_application_kafka_config",
    "remember_application_kafka_config",
]

_log: Final = logging.getLogger(__name__)
_warned: Final[set[tuple[str, str]]] = set()

ENVIRONMENT_PREFIX: Final = "MQTRACE_"
QUEUE_SIZE: Final = 2048
BATCH_SIZE: Final = 100
LINGER_MS: Final = 500
"""Defaults of a lane: RocketMQ's queue and batch, in spans, and its linger, in ms."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Every tunable, read once. ``None`` means "not said": the part that uses the setting then has its own default.

    ``queue_size`` and ``batch_size`` count spans, ``*_ms`` are milliseconds, ``*_bytes`` bytes; ``exporters`` are names
    of the entry-point group ``opentelemetry_traces_exporter``; ``topic_*`` and ``*_headers`` are shell-style patterns,
    ``topic_sampling`` maps such a pattern to the share of traces that begin there and are recorded, from 0 to 1;
    ``kafka_config`` is the path of a properties file or, given in code, the client properties themselves.
    """

    enabled: bool = True
    trace_topic: str = "RMQ_SYS_TRACE_TOPIC"
    exporters: tuple[str, ...] = ("mqtrace_native",)
    bootstrap_servers: str | None = field(default=None, repr=False)
    kafka_config: str | Mapping[str, Any] | None = field(default=None, repr=False, hash=False)
    namesrv: str | None = None
    rocketmq_access_key: str | None = field(default=None, repr=False)
    rocketmq_secret_key: str | None = field(default=None, repr=False)
    landing_dir: str = "mqtrace-landing"
    dialect: str = "5.5.0"
    region_id: str = "DefaultRegion"
    region_name: str | None = None
    group_name: str | None = None
    preset: str | None = None
    queue_size: int | None = None
    batch_size: int | None = None
    linger_ms: int | None = None
    ledger_dir: str | None = None
    max_message_bytes: int = 128_000
    process_context: str = "auto"
    process_spans: str = "auto"
    process_timeout_ms: int = 900_000
    receive_spans: bool = False
    empty_poll_spans: bool = False
    settle_spans: bool = False
    topic_include: tuple[str, ...] = ()
    topic_exclude: tuple[str, ...] = ()
    topic_sampling: Mapping[str, float] = field(default_factory=dict, hash=False)
    propagation: bool = True
    creation_context: str = "replace"
    headerless_sends: str = "correlate"
    retry_header: str = "RECONSUME_TIME"
    capture_headers: tuple[str, ...] = ()
    redact_headers: tuple[str, ...] = (
        "*authorization*",
        "*cookie*",
        "*credential*",
        "*password*",
        "*secret*",
        "*token*",
    )
    client_metrics: bool = False
    client_metrics_interval_ms: int = 15_000
    create_trace_topic: bool = False
    spool_dir: str | None = None
    spool_bytes: int = 64 * 1024 * 1024
    on_conflict: str = "step_back"

    @classmethod
    def from_env(
        cls,
        overrides: Mapping[str, Any] | None = None,
        *,
        environ: Mapping[str, str] | None = None,
        choices: Mapping[str, Collection[str]] | None = None,
    ) -> Settings:
        """Return the settings of the environment, ``overrides`` (lower-case names, typed values or text) on top.

        ``choices`` names the values of settings that only the caller can judge; any other value is a wrong one.
        """
        readers = {**READERS, **{name: one_of(*allowed) for name, allowed in (choices or {}).items()}}
        environment = os.environ if environ is None else environ
        found: dict[str, Any] = {}
        for each in fields(cls):
            text = environment.get(ENVIRONMENT_PREFIX + each.name.upper())
            if text is not None and text.strip():
                _accept(found, readers, each.name, text.strip(), source=ENVIRONMENT_PREFIX + each.name.upper())
        for name, value in (overrides or {}).items():
            if value is not None:
                _accept(found, readers, name, value, source=f"option {name}")
        _fit_batch(found)
        return replace(cls(), **found)

    def excludes(self, topic: str) -> bool:
        """Whether ``topic`` is never traced: the trace topic, one excluded, or one not among those included."""
        if topic == self.trace_topic or _matches(topic, self.topic_exclude):
            return True
        return bool(self.topic_include) and not _matches(topic, self.topic_include)

    def sampling_ratio(self, topic: str) -> float | None:
        """Return the share of the traces beginning at ``topic`` that is recorded; ``None`` leaves it to the SDK.

        The first pattern of ``topic_sampling`` that names the topic decides.
        """
        for pattern, ratio in self.topic_sampling.items():
            if fnmatchcase(topic, pattern):
                return ratio
        return None


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _accept(
    found: dict[str, Any], readers: Mapping[str, Callable[[object], Any]], name: str, value: object, *, source: str
) -> None:
    read = readers.get(name)
    if read is None:
        _warn_once(f"{source} ({type(value).__name__})", "there is no such setting; it is ignored")
        return
    try:
        found[name] = read(value)
    except (TypeError, ValueError) as problem:
        if name in NEVER_SHOWN:
            _warn_once(f"{source} ({type(value).__name__})", f"{problem}; it is ignored")
            return
        instead = repr(found[name]) if name in found else _UNSAID.get(name) or repr(getattr(_DEFAULTS, name))
        _warn_once(f"{source} = {without_password(repr(value))}", f"{problem}; {instead} is used")


def _fit_batch(found: dict[str, Any]) -> None:
    """Two values that contradict each other are a wrong value too."""
    queue_size, batch_size = found.get("queue_size"), found.get("batch_size")
    if queue_size is not None and batch_size is not None and batch_size > queue_size:
        _warn_once(
            f"batch_size = {batch_size}", f"no such batch fits a queue_size of {queue_size}; {queue_size} is used"
        )
        found["batch_size"] = queue_size


def _warn_once(setting: str, what: str) -> None:
    """``setting`` shows a value only where it cannot be a secret: never of a connection, nor of an unknown name."""
    if (setting, what) not in _warned:
        _warned.add((setting, what))
        _log.warning("mqtrace: %s: %s", setting, what)


_DEFAULTS: Final = Settings()
_UNSAID: Final[Mapping[str, str]] = {
    "namesrv": "no name server",
    "queue_size": f"{QUEUE_SIZE}, or what the preset or OTEL_BSP_MAX_QUEUE_SIZE says,",
    "batch_size": f"{BATCH_SIZE}, or what the preset or OTEL_BSP_MAX_EXPORT_BATCH_SIZE says,",
    "linger_ms": f"{LINGER_MS}, or what the preset or OTEL_BSP_SCHEDULE_DELAY says,",
    "preset": "no preset",
    "region_name": "no name",
    "group_name": "no name",
    "ledger_dir": "no directory",
    "spool_dir": "no directory",
}
"""What is used where the default is ``None``, in words."""
NEVER_SHOWN: Final = frozenset({"bootstrap_servers", "kafka_config", "rocketmq_access_key", "rocketmq_secret_key"})
"""What may hold a secret: a value of these is in no line of a log and in nothing the doctor tells."""

# -- the application's own connection, learned from its first client, for exporters that were told nothing ---------
_CONNECTION_KEYS: Final = re.compile(
    r"(bootstrap\.servers|metadata\.broker\.list|broker\.address\.family|client\.dns\.lookup|security\.protocol"
    r"|enable\.ssl\.certificate\.verification|(sasl|ssl)\..+)\Z"
)
_learned: dict[str, Any] = {}


def remember_application_kafka_config(conf: Mapping[str, Any]) -> None:
    """Keep the first client's connection settings: addresses, security, SASL and TLS; nothing else, never logged.

    The first configuration that names a server wins; callbacks and every other setting stay out.
    """
    if _learned or not (conf.get("bootstrap.servers") or conf.get("metadata.broker.list")):
        return
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
