"""What a run tolerates and what is known of its whole input, as plain data that a task can be sent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


class Alone(NamedTuple):
    """The facts of a one-sided key that rules read: its record's fields, and whether its message was sent in a batch.

    ``is_other``: sources mix writers, and its record is RocketMQ's or the Java agent's.
    """

    kind: str
    topic: str | None
    group_name: str | None
    service: str | None
    success: bool | None
    has_offset_msg_id: bool
    has_msg_id: bool
    id_source: str | None
    sent_in_batch: bool
    writer: str | None
    is_other: bool = False


class SideRule(NamedTuple):
    """A key with this ``status`` for which ``holds`` is BY_DESIGN; ``rule`` becomes its ``reason_detail``."""

    rule: str
    status: str
    holds: Callable[[Alone], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The kernel's input beside the events of a bucket. Durations and instants are milliseconds.

    Attributes:
        tolerance_ms: of ``start_ms``, ``end_ms`` and ``cost_ms``.
        native_lacks: per field the kinds for which native records lack it.
        otlp_lacks: per field the kinds for which spans lack it.
        wrong: per field the verdicts that make a key MISMATCHED.
        side_rules: why a side never has a record, from the key alone; the first that holds wins.
        horizon_ms: until when the data is complete; ``None`` if a side is empty: then every key stays open.
        other: where sources mix writers, the tolerances and lacking fields for keys of RocketMQ and the Java agent.
            ``side_rules`` are in one list, for both.
        has_mixed_spans: spans of both are among the sources; only native records are mixed otherwise.
        are_spans_other: where only records are mixed, the spans are not ours.
    """

    tolerance_ms: Mapping[str, int]
    native_lacks: Mapping[str, frozenset[str]]
    otlp_lacks: Mapping[str, frozenset[str]]
    wrong: Mapping[str, frozenset[str]]
    side_rules: tuple[SideRule, ...] = ()
    late_after_ms: int = 60_000
    consume_timeout_ms: int = 15 * 60_000
    value_length_limit: int | None = None
    mask_keys: str = "none"
    mask_text: str = "***"
    mask_salt: str = ""
    begin_ms: int | None = None
    end_ms: int | None = None
    data_end_ms: int | None = None
    horizon_ms: int | None = None
    other: Plan | None = None
    has_mixed_spans: bool = False
    are_spans_other: bool = False

    @property
    def pairing_ms(self) -> int:
        """How far apart the two records of an event may start, for any pair of writers."""
        return max(one.tolerance_ms["start_ms"] for one in (self, self.other) if one is not None)
