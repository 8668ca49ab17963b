"""This module knows how a lane may be tuned, and where a tunable that code did not give comes from.

Order: keyword argument, ``MQTRACE_*``, ``OTEL_BSP_*``, default. A mistake in code raises; one in the environment is
told and never breaks start-up.
"""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from otel_mqtrace.config import Settings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from otel_mqtrace.spans.queue import DropPolicy

__all__ = ["LaneSettings", "resolve"]

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class LaneSettings:
    """How a lane batches.

    A longer queue rides out longer stalls of the peer and costs memory. A larger batch costs latency and saves
    requests. A longer ``schedule_delay_ms`` fills batches better and shows spans later. Without ``background`` there is
    no thread: spans leave by ``run_once``, ``force_flush`` and ``shutdown`` only, in the calling thread.
    """

    max_queue_size: int = 2048
    max_export_batch_size: int = 100
    schedule_delay_ms: float = 500
    export_timeout_ms: float = 30_000
    shutdown_timeout_ms: float = 30_000
    drop_policy: DropPolicy = "newest"
    background: bool = True

    def __post_init__(self) -> None:
        if self.max_queue_size < 1 or self.max_export_batch_size < 1:
            raise ValueError("max_queue_size and max_export_batch_size must be at least 1")
        if self.max_export_batch_size > self.max_queue_size:
            raise ValueError("max_export_batch_size must not exceed max_queue_size")
        if min(self.schedule_delay_ms, self.export_timeout_ms, self.shutdown_timeout_ms) < 0:
            raise ValueError("delays and timeouts must not be negative")
        if self.drop_policy not in ("newest", "oldest"):
            raise ValueError("drop_policy must be 'newest' or 'oldest'")


_BSP_NAMES: Final[Mapping[str, str]] = {
    "max_queue_size": "OTEL_BSP_MAX_QUEUE_SIZE",
    "max_export_batch_size": "OTEL_BSP_MAX_EXPORT_BATCH_SIZE",
    "schedule_delay_ms": "OTEL_BSP_SCHEDULE_DELAY",
    "export_timeout_ms": "OTEL_BSP_EXPORT_TIMEOUT",
}
"""OpenTelemetry's own names (``sdk-environment-variables`` of the specification), counts and milliseconds."""


def resolve(*, environ: Mapping[str, str] | None = None, **given: Any) -> LaneSettings:
    """Return the settings of a lane: what is ``given`` and not ``None``, the rest from ``environ``, then the defaults.

    Raises:
        ValueError: for a wrong value in ``given``, or a batch larger than the queue when both were given.
    """
    environment = os.environ if environ is None else environ
    chosen = {name: value for name, value in given.items() if value is not None}
    ours = Settings.from_env(environ=environment)
    found = _from_bsp(environment) | {
        name: value
        for name, value in (
            ("max_queue_size", ours.queue_size),
            ("max_export_batch_size", ours.batch_size),
            ("schedule_delay_ms", ours.linger_ms),
        )
        if value is not None
    }
    merged: dict[str, Any] = {**found, **chosen}
    if not {"max_queue_size", "max_export_batch_size"} <= chosen.keys():
        merged |= _fitting_batch(merged)
    return LaneSettings(**merged)


def _from_bsp(environment: Mapping[str, str]) -> dict[str, int]:
    texts = {name: environment.get(variable, "").strip() for name, variable in _BSP_NAMES.items()}
    found: dict[str, int] = {}
    for name, text in texts.items():
        if text.isdecimal() and (int(text) > 0 or name.endswith("_ms")):
            found[name] = int(text)
        elif text:
            _logger.warning("mqtrace: %s = %r: a whole number was expected; it is ignored", _BSP_NAMES[name], text)
    return found


def _fitting_batch(merged: Mapping[str, Any]) -> dict[str, int]:
    """Shrink a batch that nobody chose together with the queue, instead of refusing to start."""
    queue_size = merged.get("max_queue_size", LaneSettings.max_queue_size)
    batch_size = merged.get("max_export_batch_size", LaneSettings.max_export_batch_size)
    if batch_size <= queue_size:
        return {}
    _logger.warning("mqtrace: batches of %d do not fit a queue of %d; %d is used", batch_size, queue_size, queue_size)
    return {"max_export_batch_size": max(queue_size, 1)}
