"""The settings of a lane, and where one that code did not give comes from.

Order: keyword argument, ``MQTRACE_*`` with ``MQTRACE_PRESET`` last, ``OTEL_BSP_*``, default. A mistake in code raises;
one in the environment is a warning and never breaks start-up.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal

from otel_mqtrace.config import BATCH_SIZE, LINGER_MS, QUEUE_SIZE, Settings, fit_batch, is_exporter, warn_once

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from otel_mqtrace.spans.queue import DropPolicy

LingerFrom = Literal["arrival", "last_batch"]


@dataclass(frozen=True, kw_only=True)
class LaneSettings:
    """How a lane batches; the fields are arguments of the processor.

    A longer queue survives longer stalls of the peer and costs memory. A larger batch costs latency and saves requests.
    A longer ``schedule_delay_millis`` fills batches better and shows spans later; it counts from the oldest span's
    ``arrival`` or, ``linger_from="last_batch"``, from the time the last batch left. Without ``background`` spans leave
    by ``run_once``, ``force_flush`` and ``shutdown`` only, in the calling thread.
    """

    max_queue_size: int = QUEUE_SIZE
    max_export_batch_size: int = BATCH_SIZE
    schedule_delay_millis: float = LINGER_MS
    export_timeout_millis: float = 30_000
    shutdown_timeout_millis: float = 30_000
    drop_policy: DropPolicy = "newest"
    linger_from: LingerFrom = "arrival"
    background: bool = True

    def __post_init__(self) -> None:
        refuse_wrong(vars(self))
        if self.max_export_batch_size > self.max_queue_size:
            raise ValueError(
                f"max_export_batch_size must not exceed max_queue_size: {self.max_export_batch_size} is more than "
                f"{self.max_queue_size}"
            )


def refuse_wrong(values: Mapping[str, Any]) -> None:
    """Raise ``ValueError``, naming the processor's argument, for the first of ``values`` that can never be right."""
    for name, value in values.items():
        right, expected = _EXPECTED.get(name, _ANYTHING)
        if not right(value):
            raise ValueError(f"{name} must be {expected}, not {value!r}")


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _is_duration(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < math.inf


def _has(*methods: str) -> Callable[[object], bool]:
    return lambda value: value is None or all(callable(getattr(value, method, None)) for method in methods)


_COUNT: Final = (_is_count, "a whole number, at least 1")
_DURATION: Final = (_is_duration, "a number of milliseconds, at least 0")
_ANYTHING: Final = (lambda _value: True, "anything")
_EXPECTED: Final[Mapping[str, tuple[Callable[[Any], bool], str]]] = {
    "max_queue_size": _COUNT,
    "max_export_batch_size": _COUNT,
    "schedule_delay_millis": (lambda value: _is_duration(value) and value != 0, "a number of milliseconds above 0"),
    "export_timeout_millis": _DURATION,
    "shutdown_timeout_millis": _DURATION,
    "drop_policy": (("newest", "oldest").__contains__, "'newest' or 'oldest'"),
    "linger_from": (("arrival", "last_batch").__contains__, "'arrival' or 'last_batch'"),
    "exporters": (lambda values: all(map(is_exporter, values)), "span exporters, as objects"),
    "on_drop": (_has("__call__"), "a function"),
    "ledger_dir": (lambda value: value is None or isinstance(value, (str, os.PathLike)), "a directory"),
    "meter_provider": (_has("get_meter"), "an object with get_meter()"),
    "clock": (_has("wall_ns", "monotonic_ns"), "an object with wall_ns() and monotonic_ns()"),
}
_BSP_NAMES: Final[Mapping[str, str]] = {
    "max_queue_size": "OTEL_BSP_MAX_QUEUE_SIZE",
    "max_export_batch_size": "OTEL_BSP_MAX_EXPORT_BATCH_SIZE",
    "schedule_delay_millis": "OTEL_BSP_SCHEDULE_DELAY",
    "export_timeout_millis": "OTEL_BSP_EXPORT_TIMEOUT",
}
"""OpenTelemetry's own names (``sdk-environment-variables`` of the specification), counts and milliseconds."""


def resolve(**given: Any) -> LaneSettings:
    """Return the settings of a lane: what is ``given`` and not ``None``, then the environment, then the defaults.

    Raises:
        ValueError: for a wrong value in ``given``, or a batch larger than the queue when both were given.
    """
    chosen = {name: value for name, value in given.items() if value is not None}
    refuse_wrong(chosen)  # before a warning about sizes that do not fit
    ours = Settings.from_env()
    sizes = {"max_queue_size": QUEUE_SIZE, "max_export_batch_size": BATCH_SIZE}
    of_preset = PRESETS.get(ours.preset or "", {})
    merged: dict[str, Any] = {**sizes, **_from_bsp(), **of_preset, **processor_options(ours), **chosen}
    if not sizes.keys() <= chosen.keys():
        merged["max_export_batch_size"] = fit_batch(merged["max_export_batch_size"], merged["max_queue_size"])
    if "max_export_batch_size" not in chosen:
        merged["max_export_batch_size"] = _cap_batch(ours.preset, merged["max_export_batch_size"])
    return LaneSettings(**merged)


def processor_options(settings: Settings) -> dict[str, Any]:
    """Return the arguments of the processor that ``settings`` have."""
    named = {
        "max_queue_size": settings.queue_size,
        "max_export_batch_size": settings.batch_size,
        "schedule_delay_millis": settings.linger_ms,
        "export_timeout_millis": settings.export_timeout_ms,
        "shutdown_timeout_millis": settings.shutdown_timeout_ms,
        "drop_policy": settings.drop_policy,
    }
    return {name: value for name, value in named.items() if value is not None}


PRESETS: Final[Mapping[str, Mapping[str, Any]]] = MappingProxyType(
    {
        "rocketmq4": {
            "max_queue_size": 1024,
            "max_export_batch_size": 100,
            "schedule_delay_millis": 500,
            "linger_from": "arrival",
        },
        "rocketmq5": {
            "max_queue_size": 2048,
            "max_export_batch_size": 10,
            "schedule_delay_millis": 5000,
            "linger_from": "last_batch",
        },
    }
)
"""``AsyncTraceDispatcher``'s numbers and flush rules: 4.9.4 to 5.3.0 (first record older than 500 ms), and since 5.3.1
(a full batch waits, or 5000 ms since the last flush)."""
_ROCKETMQ5_BATCH_CAP: Final = 20
"""``Math.min(20, traceMsgBatchNum)`` since 5.3.1."""


def preset_options(name: str, **overrides: Any) -> dict[str, Any]:
    """Return the processor's arguments for the preset ``name``; ``overrides`` that are not ``None`` win.

    Raises:
        ValueError: The preset is unknown, or a value is wrong.
    """
    if name not in PRESETS:
        raise ValueError(f"unknown preset {name!r}: choose one of {', '.join(PRESETS)}")
    given = {argument: value for argument, value in overrides.items() if value is not None}
    options: dict[str, Any] = {**PRESETS[name], **given}
    refuse_wrong(options)
    if "max_export_batch_size" not in given:
        options["max_export_batch_size"] = fit_batch(options["max_export_batch_size"], options["max_queue_size"])
    options["max_export_batch_size"] = _cap_batch(name, options["max_export_batch_size"])
    return options


def _cap_batch(preset: str | None, size: int) -> int:
    return min(size, _ROCKETMQ5_BATCH_CAP) if preset == "rocketmq5" else size


def _from_bsp() -> dict[str, int]:
    values: dict[str, int] = {}
    for name, variable in _BSP_NAMES.items():
        text = os.environ.get(variable, "").strip()
        try:
            given = {name: int(text)} if text else {}
            refuse_wrong(given)
        except ValueError:  # of int() also for more digits than Python converts
            (_, expected), default = _EXPECTED[name], getattr(LaneSettings, name)
            warn_once(f"{variable} = {text!r}", f"{expected} was expected; it is ignored, the default is {default}")
        else:
            values |= given
    return values
