"""The settings: names, defaults, and the reader of each; a wrong value is one warning, never an exception.

Every setting is an environment variable ``MQTRACE_<NAME>`` and, in lower case, a keyword option of the instrumentor.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from fnmatch import fnmatchcase
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from otel_mqtrace._errors import UsageError
from otel_mqtrace.client_properties import without_password

if TYPE_CHECKING:
    from typing import TypeGuard

    from opentelemetry.sdk.trace.export import SpanExporter

_log: Final = logging.getLogger(__name__)
_warned: Final[set[tuple[str, str]]] = set()

ENVIRONMENT_PREFIX: Final = "MQTRACE_"
QUEUE_SIZE: Final = 2048
BATCH_SIZE: Final = 100
LINGER_MS: Final = 500
"""Defaults of a lane: RocketMQ's queue and batch, in spans, and its linger, in ms."""


# -- readers of settings: a text or a given value in, the value or an error out ----------------------------------------
def _flag(value: object) -> bool:
    if isinstance(value, bool):
        return value
    word = str(value).strip().lower()
    if word in {"true", "1", "yes", "on"}:
        return True
    if word in {"false", "0", "no", "off"}:
        return False
    raise ValueError("true or false was expected")


def _up_to(most: int) -> Callable[[object], int]:
    def read(value: object) -> int:
        try:
            number = int(str(value))
        except ValueError:
            raise ValueError("a whole number was expected") from None
        if not 0 < number <= most:
            raise ValueError(f"a number from 1 to {most} was expected")
        return number

    return read


def _names(value: object) -> tuple[str, ...]:
    parts = (part.strip() for part in _texts(value, "a list of names was expected"))
    return tuple(dict.fromkeys(part for part in parts if part and part != "none"))


def _texts(value: object, expected: str) -> list[str]:
    """Return the texts of a list, or of one text with commas; bytes are a list of numbers, and so are refused."""
    if isinstance(value, str):
        return value.split(",")
    if not isinstance(value, Iterable):
        raise TypeError(expected)
    parts = list(value)
    if not all(isinstance(part, str) for part in parts):
        raise TypeError(expected)
    return parts


def _addresses(value: object) -> str:
    parts = map(str.strip, _texts(value, "host:port with commas, or a list of them, was expected"))
    return _text(",".join(filter(None, parts)))  # Kafka's clients pass over empty ones, too


def _ratios(value: object) -> dict[str, float]:
    expected = "pattern=share pairs were expected, each share from 0 to 1, as in audit.*=0,orders=0.1"
    if isinstance(value, Mapping):
        pairs = [(str(pattern), share) for pattern, share in value.items()]
    else:
        pairs = [each.strip().rpartition("=")[::2] for each in _texts(value, expected) if each.strip()]
    ratios = {}
    for pattern, share in pairs:
        try:
            ratio = float(share)
        except (TypeError, ValueError, OverflowError):
            ratio = -1.0
        if not pattern or not 0 <= ratio <= 1:
            raise ValueError(expected)
        ratios[str(pattern).strip()] = ratio
    return ratios


def _text(value: object) -> str:
    text = os.fspath(value) if isinstance(value, os.PathLike) else value
    if not isinstance(text, str) or not text:
        raise ValueError("some text was expected")
    return text


def _utf8_text(value: object) -> str:
    text = _text(value)
    try:
        text.encode()
    except UnicodeEncodeError:  # a variable may hold any bytes: each native record with them would be lost
        raise ValueError("text in UTF-8 was expected") from None
    return text


def _directory(value: object) -> str:
    text = _text(value)
    if "://" in text or "\0" in text:
        raise ValueError("a directory of this machine was expected")
    return text


def _client_properties(value: object) -> str | dict[str, Any]:
    if isinstance(value, Mapping):
        return dict(value)
    try:
        return _text(value)
    except ValueError:
        raise ValueError("a path or a mapping of client properties was expected") from None


def _dialect(value: object) -> str:
    from otel_mqtrace.wire.native.dialects import dialect_named  # noqa: PLC0415 - costs what few need

    return dialect_named(str(value)).name


def _one_of(*allowed: str) -> Callable[[object], str]:
    def parse(value: object) -> str:
        if value not in allowed:
            raise ValueError(f"one of {', '.join(allowed)} was expected")
        return str(value)

    return parse


_positive: Final = _up_to(2**31 - 1)
_REDACTED: Final = ("*authorization*", "*cookie*", "*credential*", "*password*", "*secret*", "*token*")
_PATTERNS: Final = ("topic_include", "topic_exclude", "topic_sampling", "capture_headers", "redact_headers")


def _setting(
    read: Callable[[object], Any], default: Any = None, *, unset: str | None = None, secret: bool = False
) -> Any:
    """Return the field of one setting.

    ``read`` takes a text or an object and returns the value; the text of its error describes the valid values.
    ``unset`` describes the default where ``default`` is ``None``.
    """
    metadata = {"read": read, "unset": unset}
    if isinstance(default, dict):
        return field(default_factory=dict, hash=False, metadata=metadata)
    return field(default=default, repr=not secret, hash=False if secret else None, metadata=metadata)


def _lane_default(value: int, variable: str) -> str:
    return f"{value}, or the value of the preset or OTEL_BSP_{variable},"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Every tunable, read once. ``None`` means "not set": the part that uses the setting then has its own default.

    ``queue_size`` and ``batch_size`` count spans, ``*_ms`` are milliseconds, ``*_bytes`` bytes; ``exporters`` are names
    of the entry-point group ``opentelemetry_traces_exporter``; ``topic_*`` and ``*_headers`` are shell-style patterns,
    ``topic_sampling`` maps such a pattern to the share of traces that begin there and are recorded, from 0 to 1;
    ``kafka_config`` is the path of a properties file or, given in code, the client properties themselves.
    """

    enabled: bool = _setting(_flag, default=True)
    trace_topic: str = _setting(_utf8_text, "RMQ_SYS_TRACE_TOPIC")
    exporters: tuple[str, ...] = _setting(_names, ("mqtrace_native",))
    bootstrap_servers: str | None = _setting(_addresses, secret=True)
    kafka_config: str | Mapping[str, Any] | None = _setting(_client_properties, secret=True)
    namesrv: str | None = _setting(_text, unset="no name server")
    rocketmq_access_key: str | None = _setting(_text, secret=True)
    rocketmq_secret_key: str | None = _setting(_text, secret=True)
    landing_dir: str = _setting(_directory, "mqtrace-landing")
    dialect: str = _setting(_dialect, "5.5.0")
    region_id: str = _setting(_utf8_text, "DefaultRegion")
    region_name: str | None = _setting(_utf8_text, unset="no name")
    group_name: str | None = _setting(_utf8_text, unset="no name")
    preset: str | None = _setting(_one_of("rocketmq4", "rocketmq5"), unset="no preset")
    queue_size: int | None = _setting(_positive, unset=_lane_default(QUEUE_SIZE, "MAX_QUEUE_SIZE"))
    batch_size: int | None = _setting(_positive, unset=_lane_default(BATCH_SIZE, "MAX_EXPORT_BATCH_SIZE"))
    linger_ms: int | None = _setting(_positive, unset=_lane_default(LINGER_MS, "SCHEDULE_DELAY"))
    export_timeout_ms: int | None = _setting(_positive, unset="30000, or the value of OTEL_BSP_EXPORT_TIMEOUT,")
    shutdown_timeout_ms: int | None = _setting(_positive, unset="30000")
    drop_policy: str | None = _setting(_one_of("newest", "oldest"), unset="newest")
    ledger_dir: str | None = _setting(_directory, unset="no directory")
    max_message_bytes: int = _setting(_positive, 128_000)
    process_context: str = _setting(_one_of("auto", "link", "parent", "both"), "auto")
    process_spans: str = _setting(_one_of("auto", "explicit"), "auto")
    process_timeout_ms: int = _setting(_positive, 900_000)
    receive_spans: bool = _setting(_flag, default=False)
    empty_poll_spans: bool = _setting(_flag, default=False)
    settle_spans: bool = _setting(_flag, default=False)
    topic_include: tuple[str, ...] = _setting(_names, ())
    topic_exclude: tuple[str, ...] = _setting(_names, ())
    topic_sampling: Mapping[str, float] = _setting(_ratios, {})
    propagation: bool = _setting(_flag, default=True)
    creation_context: str = _setting(_one_of("replace", "keep"), "replace")
    headerless_sends: str = _setting(_one_of("correlate", "leave"), "correlate")
    retry_header: str = _setting(_utf8_text, "RECONSUME_TIME")
    capture_headers: tuple[str, ...] = _setting(_names, ())
    redact_headers: tuple[str, ...] = _setting(_names, _REDACTED)
    client_metrics: bool = _setting(_flag, default=False)
    client_metrics_interval_ms: int = _setting(_positive, 15_000)
    create_trace_topic: bool = _setting(_flag, default=False)
    spool_dir: str | None = _setting(_directory, unset="no directory")
    spool_bytes: int = _setting(_up_to(2**63 - 1), 64 * 1024 * 1024)
    on_conflict: str = _setting(_one_of("step_back", "wrap"), "step_back")

    @classmethod
    def from_env(
        cls, overrides: Mapping[str, Any] | None = None, *, environ: Mapping[str, str] | None = None
    ) -> Settings:
        """Return the settings of the environment, ``overrides`` (lower-case names, typed values or text) on top."""
        environment = os.environ if environ is None else environ
        values: dict[str, Any] = {}
        for name in _FIELDS:
            variable = ENVIRONMENT_PREFIX + name.upper()
            if text := environment.get(variable, "").strip():
                _accept(values, name, text, source=variable)
        for name, value in (overrides or {}).items():
            if value is not None:
                _accept(values, name, value, source=f"option {name}")
        for name in _PATTERNS:
            for pattern in values.get(name, ()):
                if has_open_bracket(pattern):
                    warn_once(f"{name} = {pattern!r}", "a [ that no ] closes stands for itself; close it, or write [[]")
        if "queue_size" in values and "batch_size" in values:
            values["batch_size"] = fit_batch(values["batch_size"], values["queue_size"])
        return replace(cls(), **values)

    def without_secrets(self) -> Settings:
        """Return the settings to keep in an object: a crash report may print all its attributes, and theirs."""
        unset: dict[str, Any] = dict.fromkeys(NEVER_SHOWN)
        return replace(self, **unset)

    def excludes(self, topic: str) -> bool:
        """Return whether ``topic`` is never traced: the trace topic, one excluded, or one not among those included."""
        if topic == self.trace_topic or matches_any(topic, self.topic_exclude):
            return True
        return bool(self.topic_include) and not matches_any(topic, self.topic_include)

    def sampling_ratio(self, topic: str) -> float | None:
        """Return the share of the traces beginning at ``topic`` that is recorded; ``None`` leaves it to the SDK.

        The first pattern of ``topic_sampling`` that names the topic decides.
        """
        for pattern, ratio in self.topic_sampling.items():
            if fnmatchcase(topic, pattern):
                return ratio
        return None


_BRACKETS: Final = re.compile(r"\[(?:![^]]|[^]!]|!?\])[^]]*\]")
"""A bracket expression of a shell's pattern, such as ``[[]``."""


def has_open_bracket(pattern: str) -> bool:
    """Return whether a shell-style pattern has a ``[`` that no ``]`` closes: ``fnmatch`` takes it for itself."""
    return "[" in _BRACKETS.sub("", pattern)


def matches_any(name: str, patterns: tuple[str, ...]) -> bool:
    """Return whether ``name`` matches one of the shell-style ``patterns``."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _accept(values: dict[str, Any], name: str, value: object, *, source: str) -> None:
    if name not in _FIELDS:
        warn_once(f"{source} ({type(value).__name__})", "unknown setting; it is ignored")
        return
    try:
        values[name] = _FIELDS[name].metadata["read"](value)
    except (TypeError, ValueError, UsageError) as problem:
        if name in NEVER_SHOWN:
            warn_once(f"{source} ({type(value).__name__})", f"{problem}; it is ignored")
            return
        unset = _FIELDS[name].metadata["unset"] or _format_value(getattr(_DEFAULTS, name))
        instead = _format_value(values[name]) if name in values else unset
        warn_once(f"{source} = {without_password(repr(value))}", f"{problem}; {instead} is used")


def _format_value(value: object) -> str:
    if value in ((), {}):
        return "nothing"
    return repr(",".join(value) if isinstance(value, tuple) else value)


def is_exporter(value: object) -> TypeGuard[SpanExporter]:
    """Return whether ``value`` is an exporter object, not a class of exporters."""
    return callable(getattr(value, "export", None)) and not isinstance(value, type)


def fit_batch(batch_size: int, queue_size: int) -> int:
    """Return ``batch_size`` or, with a warning instead of a refusal to start, the size of a smaller queue."""
    if batch_size <= queue_size:
        return batch_size
    warn_once(f"batch_size = {batch_size}", f"no such batch fits a queue_size of {queue_size}; {queue_size} is used")
    return queue_size


def warn_once(setting: str, what: str) -> None:
    """Log a warning, once; ``setting`` has no value that may be a secret, of a connection or of an unknown name."""
    if (setting, what) not in _warned:
        _warned.add((setting, what))
        _log.warning("mqtrace: %s: %s", setting, what)


_DEFAULTS: Final = Settings()
_FIELDS: Final = {each.name: each for each in fields(Settings)}
NEVER_SHOWN: Final = frozenset(each.name for each in fields(Settings) if not each.repr)
"""What may hold a secret: a value of these is in no line of a log and in no output of the doctor."""


# -- OpenTelemetry's own setting that can break its import ------------------------------------------------------------
_OTEL_PROPAGATORS: Final = "OTEL_PROPAGATORS"


def load_propagators() -> None:
    """Import the propagators that the environment names; where one cannot be loaded, warn and use the default.

    OpenTelemetry itself raises then, and so does every import of its SDK.
    """
    try:
        import_module("opentelemetry.propagate")
    except Exception as problem:  # noqa: BLE001 - raised again below if the environment is not the cause
        given = os.environ.pop(_OTEL_PROPAGATORS, None)  # None: another thread has it now, or it is not the cause
        try:
            import_module("opentelemetry.propagate")
        finally:
            if given is not None:
                os.environ[_OTEL_PROPAGATORS] = given
        if given is not None:
            _log.warning("mqtrace: %s = %r: %s; tracecontext,baggage is used", _OTEL_PROPAGATORS, given, problem)
