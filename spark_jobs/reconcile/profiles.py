"""This module knows what each writer can say: the tables a missing field or a missing side is judged by.

Sources: the forms of the native records (``bridge.codec.native.layout``) and runs in which the same messages were
recorded by RocketMQ's own trace and by OpenTelemetry's Java agent (clients 4.9.8, 5.3.3 and 5.5.0).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from bridge.codec.native.layout import DEFAULT_DIALECT
from spark_jobs.taxonomy import Kind, Status

__all__ = [
    "BATCH_SENT",
    "NATIVE_CARRIES",
    "NEWEST_RELEASE",
    "PROFILES",
    "ByDesign",
    "Profile",
    "by_design_rules",
    "is_newer_than_known",
    "parse_native_writer",
]

NEWEST_RELEASE: Final = DEFAULT_DIALECT
"""The newest RocketMQ whose records are known here."""

_ADDRESSED = frozenset({"topic", "group_name", "region_id", "start_ms"})
_DESCRIBED = frozenset({"tags", "keys", "store_host", "msg_type"})

NATIVE_CARRIES: Final[dict[Kind, frozenset[str]]] = {
    Kind.PUBLISH: _ADDRESSED | _DESCRIBED | {"offset_msg_id", "body_length", "end_ms", "cost_ms", "success"},
    Kind.CONSUME: frozenset(
        {"group_name", "region_id", "start_ms", "keys", "retry_times", "end_ms", "cost_ms", "success", "context_code"}
    ),
    Kind.TRANSACTION_END: _ADDRESSED | _DESCRIBED | {"transaction_id", "transaction_state", "from_transaction_check"},
    Kind.RECALL: _ADDRESSED | {"success"},
}
"""What the native wire has a place for; anything else that only the span knows is not comparable."""

_EVERYTHING = frozenset().union(*NATIVE_CARRIES.values()) | {"client_host"}
_TIMES = frozenset({"start_ms", "end_ms", "cost_ms"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """What spans of one writer say. ``carries``: a missing field is a finding; ``may_carry``: tolerated when missing.

    Anything in neither is never written, so it is not comparable. Tolerances are milliseconds; ``shared_clock_ms`` is
    the one for starts when both records were made from one event object.
    """

    name: str
    carries: dict[Kind, frozenset[str]]
    may_carry: dict[Kind, frozenset[str]]
    start_ms: int
    end_ms: int
    cost_ms: int
    shared_clock_ms: int

    @property
    def tolerated(self) -> frozenset[str]:
        """The fields whose absence from a span is no finding."""
        return frozenset().union(*self.may_carry.values())


PROFILES: Final[dict[str, Profile]] = {
    "mqtrace": Profile(
        name="mqtrace",
        carries=dict.fromkeys(Kind, _EVERYTHING),
        may_carry={},
        start_ms=5,
        end_ms=5,
        cost_ms=5,
        shared_clock_ms=0,
    ),
    # Start and duration differed by up to 331 ms where a hook loaded its classes or the JVM was cold.
    "java-agent": Profile(
        name="java-agent",
        carries=dict.fromkeys(Kind, _TIMES),
        may_carry={  # new conventions, experimental attributes
            Kind.PUBLISH: frozenset({"topic", "tags", "store_host", "success"}),
            Kind.CONSUME: frozenset(
                {"topic", "group_name", "tags", "store_host", "body_length", "success", "context_code"}
            ),
        },
        start_ms=500,
        end_ms=500,
        cost_ms=500,
        shared_clock_ms=500,
    ),
}
"""Every value of ``--profile``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ByDesign:
    """One rule of why a side never has a record. ``when`` is a SQL condition over a verdict row in the making.

    The row has ``kind``, ``topic``, ``own`` (the fields of the side that is there), ``has_id`` and ``sent_in_batch``.
    """

    rule: str
    status: Status
    when: str
    profiles: frozenset[str] = frozenset(PROFILES)
    native_writers: frozenset[str] = frozenset({"mqtrace", "rocketmq"})
    since: tuple[int, ...] = ()


_ROCKETMQ = frozenset({"rocketmq"})

BATCH_SENT: Final = "rocketmq_records_no_delivery_of_batch_sent_messages"
"""The rule for deliveries of messages that were sent in a batch; what else was in such a call asks for it."""

_RULES: Final = (
    ByDesign(
        rule="java_agent_makes_no_span_for_transaction_end",
        status=Status.NATIVE_ONLY,
        when=f"kind = '{Kind.TRANSACTION_END.value}'",
        profiles=frozenset({"java-agent"}),
    ),
    ByDesign(
        rule="java_agent_makes_no_span_for_recall",
        status=Status.NATIVE_ONLY,
        when=f"kind = '{Kind.RECALL.value}'",
        profiles=frozenset({"java-agent"}),
    ),
    ByDesign(
        rule="rocketmq_records_no_failed_send",
        status=Status.OTLP_ONLY,
        when=f"kind = '{Kind.PUBLISH.value}' and own.success = false and own.offset_msg_id is null",
        native_writers=_ROCKETMQ,
    ),
    ByDesign(
        rule="rocketmq_records_no_one_way_send",
        status=Status.OTLP_ONLY,
        when=f"kind = '{Kind.PUBLISH.value}' and (not has_id or own.id_source <> 'own')",
        native_writers=_ROCKETMQ,
    ),
    ByDesign(
        rule="rocketmq_skips_topics_named_like_the_trace_topic",
        status=Status.OTLP_ONLY,
        when="startswith(topic, 'RMQ_SYS_TRACE_TOPIC')",
        native_writers=_ROCKETMQ,
    ),
    ByDesign(
        rule=BATCH_SENT,
        status=Status.OTLP_ONLY,
        when=f"kind = '{Kind.CONSUME.value}' and sent_in_batch",
        native_writers=_ROCKETMQ,
        since=(5, 3, 1),
    ),
)


def parse_native_writer(text: str) -> tuple[str, tuple[int, ...]] | None:
    """Split ``rocketmq-5.3.3`` into name and version; no version is the newest; ``None`` when it is no writer."""
    name, dash, version = text.partition("-")
    if name not in {"mqtrace", "rocketmq"} or (dash and name == "mqtrace"):
        return None
    parts = version.split(".") if dash else []
    if not all(part.isdecimal() for part in parts):
        return None
    return name, tuple(int(part) for part in parts)


def is_newer_than_known(native_writer: str) -> bool:
    """Tell whether this names a release after the newest known one; it is then judged by the newest one's rules."""
    _, version = parse_native_writer(native_writer) or ("", ())
    return version > tuple(int(part) for part in NEWEST_RELEASE.split("."))


def by_design_rules(profile: str, native_writer: str) -> tuple[ByDesign, ...]:
    """Return the rules that hold for this pair of writers, in the order they are tried."""
    name, version = parse_native_writer(native_writer) or ("mqtrace", ())
    return tuple(
        rule
        for rule in _RULES
        if profile in rule.profiles and name in rule.native_writers and (not version or version >= rule.since)
    )
