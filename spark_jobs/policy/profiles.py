"""What each writer can record: the tables that a missing field or a missing side is judged by.

Sources: the forms of the native records (``otel_mqtrace.wire.native.layout``) and runs in which the same messages were
recorded by RocketMQ's own trace and by OpenTelemetry's Java agent (clients 4.9.8, 5.3.3 and 5.5.0).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from otel_mqtrace.wire.native.layout import DEFAULT_DIALECT, parse_release
from spark_jobs.taxonomy import Kind, Status

if TYPE_CHECKING:
    from collections.abc import Callable

    from spark_jobs.judging.plan import Alone

AUTO: Final = "auto"
"""The value of ``--profile`` and ``--native-writer`` that leaves the choice to the input."""
MIXED: Final = "+"
"""Joins the names of two profiles or native writers, ours first, where the sources of a run mix them."""
NEWEST_RELEASE: Final = DEFAULT_DIALECT
"""The newest RocketMQ whose records are known here."""

LACKING: Final = {"native": Status.OTLP_ONLY, "otlp": Status.NATIVE_ONLY}
"""The status of a key that a side lacks, by that side."""

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
"""The fields of the native wire; all others are not comparable."""

_EVERYTHING = frozenset().union(*NATIVE_CARRIES.values()) | {"client_host"}
_TIMES = frozenset({"start_ms", "end_ms", "cost_ms"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """What spans of one writer record. A missing field of ``carries`` is a finding; of ``may_carry`` it is tolerated.

    Anything in neither is never written, so it is not comparable. Times may differ by ``tolerance_ms``.
    """

    name: str
    carries: dict[Kind, frozenset[str]]
    may_carry: dict[Kind, frozenset[str]]
    tolerance_ms: int

    @property
    def tolerated(self) -> frozenset[str]:
        """The fields that may be absent from a span without a finding."""
        return frozenset().union(*self.may_carry.values())


PROFILES: Final[dict[str, Profile]] = {
    "mqtrace": Profile(name="mqtrace", carries=dict.fromkeys(Kind, _EVERYTHING), may_carry={}, tolerance_ms=5),
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
        tolerance_ms=500,
    ),
}
"""Every value of ``--profile``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ByDesign:
    """A rule why a side never has a record: for which writers, since which release, and until which.

    ``when`` decides for a one-sided key; ``None`` if that needs the rest of the run (``spark_jobs.explain.rules``).
    """

    rule: str
    status: Status
    when: Callable[[Alone], bool] | None = None
    description: str = ""
    profiles: frozenset[str] = frozenset(PROFILES)
    native_writers: frozenset[str] = frozenset({"mqtrace", "rocketmq"})
    since: tuple[int, ...] = ()
    until: tuple[int, ...] | None = None

    def holds(self, profile: str, native_writer: str) -> bool:
        """Return whether the rule covers this pair of writers; a writer without a version is the newest."""
        name, version = parse_native_writer(native_writer) or ("mqtrace", ())
        old_enough = self.until is None or (version != () and version < self.until)
        new_enough = version == () or version >= self.since
        return profile in self.profiles and name in self.native_writers and old_enough and new_enough


def is_kind(kind: Kind, key: Alone) -> bool:
    """Return whether a one-sided key is of this kind."""
    return key.kind == kind.value


def _is_failed_send(key: Alone) -> bool:
    """The Java agent has a send's id from the answer, but for those of a batch: the broker stored it, if not well."""
    is_agents = (key.writer or "").startswith("java-agent") and not key.sent_in_batch
    is_answered = key.has_offset_msg_id or (is_agents and _has_own_id(key))
    return key.kind == Kind.PUBLISH.value and key.success is False and not is_answered


def _is_one_way_send(key: Alone) -> bool:
    return key.kind == Kind.PUBLISH.value and not _has_own_id(key)


def _has_own_id(key: Alone) -> bool:
    return key.has_msg_id and key.id_source in {None, "own"}


def _is_named_like_the_trace_topic(key: Alone) -> bool:
    return key.topic is not None and key.topic.startswith("RMQ_SYS_TRACE_TOPIC")


def _is_delivery_of_batch(key: Alone) -> bool:
    return key.kind == Kind.CONSUME.value and key.sent_in_batch


BATCH_SENT: Final = "rocketmq_records_no_delivery_of_batch_sent_messages"
"""The rule for deliveries of messages sent in a batch."""


def _spanless(rule: str, description: str, **fields: Any) -> ByDesign:
    return ByDesign(
        rule=rule, description=description, status=Status.NATIVE_ONLY, profiles=frozenset({"java-agent"}), **fields
    )


def _unrecorded(rule: str, description: str, **fields: Any) -> ByDesign:
    return ByDesign(
        rule=rule, description=description, status=Status.OTLP_ONLY, native_writers=frozenset({"rocketmq"}), **fields
    )


NAMED_LIKE_TRACE_TOPIC: Final = _unrecorded(
    "rocketmq_skips_topics_named_like_the_trace_topic",
    "a topic whose name begins like RocketMQ's trace topic or, if no record names it, like the one that was read",
    when=_is_named_like_the_trace_topic,
)
_FROM_THE_KEY: Final = (
    _spanless(
        "java_agent_makes_no_span_for_transaction_end",
        "the end of a transaction",
        when=partial(is_kind, Kind.TRANSACTION_END),
    ),
    _spanless("java_agent_makes_no_span_for_recall", "a recall", when=partial(is_kind, Kind.RECALL)),
    _unrecorded(
        "rocketmq_records_no_failed_send", "a send that the broker refused or that timed out", when=_is_failed_send
    ),
    _unrecorded(
        "rocketmq_records_no_one_way_send",
        "a one-way send: its span has no message id, or has it from a captured property only",
        when=_is_one_way_send,
    ),
    NAMED_LIKE_TRACE_TOPIC,
    _unrecorded(
        BATCH_SENT, "the delivery of a message that was sent in a batch", when=_is_delivery_of_batch, since=(5, 3, 1)
    ),
)
NO_TRACE_CONTEXT: Final = _unrecorded(
    "producer_made_no_trace_context",
    "a send after which its process drew no id for a trace context: native trace is off in that producer",
)
PRODUCER_NOT_TRACED: Final = _unrecorded(
    "producer_not_traced",
    "a send of a producer (client host and group) that made no trace context for two sends and recorded none",
)
CALL_WITHOUT_REGION: Final = _unrecorded(
    "rocketmq_records_no_call_that_ends_with_a_batch_sent_message",
    "a listener call whose last message was sent in a batch: nothing of the call is recorded",
    since=(5, 3, 1),
)
TRACE_OFF: Final = _unrecorded(
    "rocketmq_4_records_no_delivery_of_messages_with_trace_off",
    "a message that several groups had and no consumer recorded: its property TRACE_ON is false",
    until=(5,),
)
LITE_PULL: Final = _spanless(
    "java_agent_makes_no_span_for_lite_pull",
    "a consumer group that has no span at all and took no time over any message: a lite pull consumer",
)
BY_DESIGN: Final = (*_FROM_THE_KEY, NO_TRACE_CONTEXT, PRODUCER_NOT_TRACED, CALL_WITHOUT_REGION, TRACE_OFF, LITE_PULL)
"""The capability matrix: every rule of BY_DESIGN, in the order they are tried."""


def parse_native_writer(text: str) -> tuple[str, tuple[int, ...]] | None:
    """Split ``rocketmq-5.3.3`` into name and version; without a version the newest; ``None`` if it is not a writer."""
    name, dash, version = text.partition("-")
    if name not in {"mqtrace", "rocketmq"} or (dash and name == "mqtrace"):
        return None
    parts = version.split(".") if dash else []
    if not all(part.isdecimal() for part in parts):
        return None
    return name, tuple(map(int, parts))


def is_newer_than_known(native_writer: str) -> bool:
    """Return whether the release is after the newest known one, whose rules then apply."""
    _, version = parse_native_writer(native_writer) or ("", ())
    return version > parse_release(NEWEST_RELEASE)


def by_design_rules(profile: str, native_writer: str) -> tuple[ByDesign, ...]:
    """Return this pair of writers' rules that need only the key, in the order they are tried."""
    return tuple(rule for rule in _FROM_THE_KEY if rule.holds(profile, native_writer))
