"""Reasons told by where a side has nothing at all: silent writers, an instance's end, an input's late beginning.

*Silent* is a topic (of publishes) or a consumer group of which the other side shows nothing at all while it does show
others; a service and its topic or group; or a service, a process, that is nowhere on the other side.

An *instance* is the process that drew an id (a sender by its messages, a consumer by its request ids), or the service
where only spans are left. Both exporters hand on in the order in which calls ended. So what dies with an instance is
the end of its line: the missing side shows nothing of it that ended later. A gap with records behind it is no ending.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from spark_jobs.judging.columns import NullableInts
from spark_jobs.policy.profiles import LITE_PULL
from spark_jobs.taxonomy import Kind

if TYPE_CHECKING:
    import numpy.typing as npt

    from spark_jobs.explain.answered import AnsweredRows
    from spark_jobs.judging.columns import Mask

__all__ = [
    "BEGINNINGS",
    "INSTANCES",
    "SILENT",
    "find_before_the_input",
    "find_lite_pull",
    "find_shutdown",
    "find_silent_writer",
]

SILENT: Final = ("topic", "group", "service and topic", "service and group", "service", "process")
"""What may be silent: the details of WRITER_SILENT."""
INSTANCES: Final = ("process", "service")
"""What may have ended: the details of SHUTDOWN_WINDOW."""
BEGINNINGS: Final = ("before_first_native", "before_first_otlp")
"""Which input begins later: the details of LATE_BEYOND_RETENTION."""

_ENOUGH: Final = 10  # keys of a service or process before its silence means something: one lost record is no silence
_INSTANT_MS: Final = 1
_SEVERAL: Final = 2  # keys before a name shared by ids is an instance and no accident
_JITTER_MS: Final = 20  # between the ends the two hooks of one call see
_SIDES: Final = (("otlp", "native"), ("native", "otlp"))


def find_lite_pull(rows: AnsweredRows) -> npt.NDArray[np.int8]:
    """Return 1 for deliveries of a group that never has a span and took no time over any message.

    A lite pull consumer runs both hooks one after the other when ``poll`` returns; the agent instruments listeners.
    """
    if not rows.holds(LITE_PULL) or not _names_any(rows, "otlp", Kind.CONSUME):
        return rows.none().astype(np.int8)
    group = rows.hear("name")
    cost_ms = group.value("cost_ms")
    is_instant = cost_ms.known & (cost_ms.values <= _INSTANT_MS)
    found = rows.on_native & rows.is_kind(Kind.CONSUME) & group.has_none("otlp") & is_instant
    return found.astype(np.int8)


def find_silent_writer(rows: AnsweredRows) -> npt.NDArray[np.int8]:
    """Return which of ``SILENT`` is silent on the side that a key lacks: 0 for none, else its place counted from 1.

    Topics and groups count from the policy's ``writer_silent_minimum`` on, the finer ones from ``_ENOUGH``.
    """
    found = np.zeros(rows.rows, np.int8)
    minimum = rows.policy.writer_silent_minimum
    for own, other in _SIDES:
        instance = "service" if own == "otlp" else "process"
        for kind, name in ((Kind.PUBLISH, "topic"), (Kind.CONSUME, "group")):
            is_here = rows.is_alone(own) & rows.is_kind(kind)
            is_named = np.full(rows.rows, _names_any(rows, other, kind))
            finer = max(minimum, _ENOUGH)
            found[is_here] = np.select(
                [
                    is_named & _is_silent(rows, "name", own, other, minimum),
                    is_named & _is_silent(rows, "place", own, other, finer),
                    _is_silent(rows, instance, own, other, finer),
                ],
                [1 + SILENT.index(detail) for detail in (name, f"service and {name}", instance)],
                0,
            )[is_here]
    return found


def _is_silent(rows: AnsweredRows, question: str, own: str, other: str, minimum: int) -> Mask:
    heard = rows.hear(question)
    return heard.has_none(other) & (heard.count(own) >= minimum)


def _names_any(rows: AnsweredRows, side: str, kind: Kind) -> bool:
    """Tell whether a side names any topic or group at all: one that names none proves nothing about one of them."""
    return rows.facts.named.get((side, kind.value), 0) > 0


def find_shutdown(rows: AnsweredRows) -> npt.NDArray[np.int8]:
    """Return in whose last ``shutdown_window`` a key lies: 0 nobody's, 1 its process's, 2 its service's.

    The instance must have ended before the horizon: of one that goes on, what is missing may still arrive or is lost.
    """
    horizon_ms = rows.facts.horizon_ms
    if horizon_ms is None:
        return np.zeros(rows.rows, np.int8)
    by_service = rows.on_otlp & rows.is_kind(Kind.CONSUME)
    # Native records name no service: that none of the group's ended later holds for its processes as well.
    native_ms = rows.hear("name").value("native_ms")
    none_later = _is_at_least(rows.number("otlp.end_ms") + _constant(rows, _JITTER_MS), native_ms)
    chosen = np.select(
        [
            rows.on_native & _is_last_of(rows, "process", "native", horizon_ms),
            by_service & none_later & _is_last_of(rows, "service", "otlp", horizon_ms),
            rows.on_otlp & ~by_service & _is_last_of(rows, "process", "otlp", horizon_ms),
        ],
        [1, 2, 1],
        0,
    )
    return chosen.astype(np.int8)


def _is_last_of(rows: AnsweredRows, instance: str, own: str, horizon_ms: int) -> Mask:
    """Tell which keys, on side ``own`` only, lie at the end of their instance."""
    heard, over_ms = rows.hear(instance), rows.over_ms(own)
    window_ms = _constant(rows, rows.policy.shutdown_window_ms)
    last_ms, first_ms = heard.value("last_ms"), heard.value("first_ms")
    shown_ms = heard.value("otlp_ms" if own == "native" else "native_ms")
    is_short = _is_at_least(window_ms, last_ms - first_ms)
    shows_nothing_later = _is_at_least(over_ms + _constant(rows, _JITTER_MS), shown_ms)
    is_over = last_ms.known & (last_ms.values < horizon_ms)
    at_the_end = _is_at_least(window_ms, last_ms - over_ms)
    is_several = heard.count("keys") >= _SEVERAL
    return is_several & is_over & at_the_end & np.where(shown_ms.known, shows_nothing_later, is_short)


def find_before_the_input(rows: AnsweredRows) -> npt.NDArray[np.int8]:
    """Return the place in ``BEGINNINGS``, counted from 1, where the other side's input begins after a key; else 0.

    By more than ``late_after``: a record that late would still have been in the input. What a side lost of its very
    beginning cannot be told from what it no longer kept.
    """
    found = np.zeros(rows.rows, np.int8)
    for place, (own, other) in enumerate(_SIDES, 1):
        first_ms = rows.facts.first.get(other)
        if first_ms is not None:
            over_ms = rows.over_ms(own)
            is_before = over_ms.known & (over_ms.values < first_ms - rows.policy.late_after_ms)
            found[rows.is_alone(own) & is_before] = place
    return found


def _constant(rows: AnsweredRows, value: int) -> NullableInts:
    return NullableInts.constant(rows.rows, value)


def _is_at_least(one: NullableInts, other: NullableInts) -> Mask:
    """Tell where both are known and ``one`` is not the smaller."""
    at_least: Mask = one.known & other.known & (one.values >= other.values)
    return at_least
