"""Readers of settings: text or a given value in, the value or a warning out.

Each reader takes a text or an object and returns the value; ``ValueError`` and ``TypeError`` say what was expected.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

__all__ = ["DIALECTS", "READERS", "one_of", "without_password"]

DIALECTS: Final = (
    *("4.4.0", "4.8.0", "4.9.0", "4.9.1", "4.9.2", "4.9.3", "4.9.5"),
    *("5.0.0", "5.1.1", "5.1.4", "5.3.1", "5.3.2", "5.5.0"),
)
"""The releases of RocketMQ whose records the bridge writes, by the names its codec has for them."""
_MOST: Final = 2**31 - 1
_MOST_BYTES: Final = 2**63 - 1
_USER_INFORMATION: Final = re.compile(r"(?<=//)[^\s/@]+:\S*@")


def without_password(text: str) -> str:
    """Return ``text`` without the user and password that an address in it may carry: ``https://user:password@host``."""
    return _USER_INFORMATION.sub("…@", text)


def _flag(value: object) -> bool:
    if isinstance(value, bool):
        return value
    word = str(value).strip().lower()
    if word in {"true", "1", "yes", "on"}:
        return True
    if word in {"false", "0", "no", "off"}:
        return False
    raise ValueError("true or false was expected")


def _whole(value: object) -> int:
    try:
        return int(str(value))
    except ValueError:
        raise ValueError("a whole number was expected") from None


def _up_to(most: int) -> Callable[[object], int]:
    def read(value: object) -> int:
        number = _whole(value)
        if not 0 < number <= most:
            raise ValueError(f"a number from 1 to {most} was expected")
        return number

    return read


def _names(value: object) -> tuple[str, ...]:
    parts = (part.strip() for part in _texts(value, "a list of names was expected"))
    return tuple(part for part in parts if part and part != "none")


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
    """Several as the clients write them, with commas, or in a list."""
    parts = [part.strip() for part in _texts(value, "host:port with commas, or a list of them, was expected")]
    if not all(parts) or not parts:
        raise ValueError("some text was expected")
    return ",".join(parts)


def _ratios(value: object) -> dict[str, float]:
    expected = "pattern=share pairs were expected, each share from 0 to 1, as in audit.*=0,orders=0.1"
    if isinstance(value, Mapping):
        pairs = [(str(pattern), said) for pattern, said in value.items()]
    else:
        pairs = [each.strip().rpartition("=")[::2] for each in _texts(value, expected) if each.strip()]
    ratios = {}
    for pattern, said in pairs:
        try:
            ratio = float(said)
        except (TypeError, ValueError):
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


def _directory(value: object) -> str:
    text = _text(value)
    if "://" in text:
        raise ValueError("a directory of this machine was expected")
    return text


def _client_properties(value: object) -> str | dict[str, Any]:
    if isinstance(value, Mapping):
        return dict(value)
    try:
        return _text(value)
    except ValueError:
        raise ValueError("a path or a mapping of client properties was expected") from None


def one_of(*allowed: str) -> Callable[[object], str]:
    """Return the reader of a setting that has just these values."""

    def parse(value: object) -> str:
        if value not in allowed:
            raise ValueError(f"one of {', '.join(allowed)} was expected")
        return str(value)

    return parse


_positive: Final = _up_to(_MOST)
READERS: Final[Mapping[str, Callable[[object], Any]]] = {
    "enabled": _flag,
    "trace_topic": _text,
    "exporters": _names,
    "bootstrap_servers": _addresses,
    "kafka_config": _client_properties,
    "namesrv": _text,
    "rocketmq_access_key": _text,
    "rocketmq_secret_key": _text,
    "landing_dir": _directory,
    "dialect": one_of(*DIALECTS),
    "region_id": _text,
    "region_name": _text,
    "group_name": _text,
    "preset": one_of("rocketmq4", "rocketmq5"),
    "queue_size": _positive,
    "batch_size": _positive,
    "linger_ms": _positive,
    "ledger_dir": _directory,
    "max_message_bytes": _positive,
    "process_context": one_of("auto", "link", "parent", "both"),
    "process_spans": one_of("auto", "explicit"),
    "process_timeout_ms": _positive,
    "receive_spans": _flag,
    "empty_poll_spans": _flag,
    "settle_spans": _flag,
    "topic_include": _names,
    "topic_exclude": _names,
    "topic_sampling": _ratios,
    "propagation": _flag,
    "creation_context": one_of("replace", "keep"),
    "headerless_sends": one_of("correlate", "send_each", "leave"),
    "retry_header": _text,
    "capture_headers": _names,
    "redact_headers": _names,
    "client_metrics": _flag,
    "client_metrics_interval_ms": _positive,
    "create_trace_topic": _flag,
    "spool_dir": _directory,
    "spool_bytes": _up_to(_MOST_BYTES),
    "on_conflict": one_of("step_back", "wrap"),
}
"""Setting → what reads it."""
