"""This module knows how spans become canonical events: one row per message a span is about, in the native side's words.

Our own spans say what they are (``mqtrace.trace_type``); others go by operation and span kind. A span about several
messages has them on its links (one each) or as ids joined with commas, and is exploded; a span about none (a poll, the
parent of a batch send, other people's work, the trace topic's own traffic) leaves with the ``scope`` that says so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F

from otel_mqtrace import semconv
from otel_mqtrace.model import ContextCode, MessageType
from spark_jobs.normalise.aliases import ALIASES, OPERATIONS, TRACE_TOPIC_NAMES, TRACE_TOPIC_PREFIX
from spark_jobs.normalise.texts import folded_id, key_set, present
from spark_jobs.schemas import NORMALISED, SPAN

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column, DataFrame

__all__ = ["otlp_events"]

_OUR_KINDS: Final = {
    semconv.TRACE_TYPE_PUB: "publish",
    semconv.TRACE_TYPE_SUB: "consume",
    semconv.TRACE_TYPE_END_TRANSACTION: "transaction_end",
    semconv.TRACE_TYPE_RECALL: "recall",
}
_REGISTRY_TYPES: Final = {
    "normal": MessageType.NORMAL,
    "fifo": MessageType.ORDER,
    "delay": MessageType.DELAY,
    "transaction": MessageType.TRANS_HALF,
}
_NS_PER_MS: Final = 1_000_000
_OUR_SCOPE: Final = "otel_mqtrace"
_SEND_OK: Final = "SEND_OK"
_KAFKA: Final = "kafka"
_BEFORE: Final = "before"
_DOTTED_PLACE: Final = r"\.(\d+)\.(\d+)\z"
_TOLD_CODES: Final = tuple(code.name for code in ContextCode)
# RocketMQ calls a delivery that took too long successful (ConsumeReturnType.TIME_OUT with success=true), spans do not.
_SUCCESSFUL_CODES: Final = (ContextCode.SUCCESS.name, ContextCode.TIME_OUT.name)
_OWN_ID_NAMES: Final = ALIASES["msg_id"].names
_SAMPLED: Final = 0x01
_REMOTENESS_KNOWN: Final = 0x100
_THREAD_OF_GROUP: Final = r"^ConsumeMessageThread_(.+)_\d+$"


def otlp_events(spans: DataFrame, *, trace_topics: Sequence[str] = ()) -> DataFrame:
    """Return ``NORMALISED`` plus ``extra``: 1 on each row beyond a span's first.

    Args:
        spans: ``READ_SPAN``.
        trace_topics: topics whose sends are trace traffic, beside RocketMQ's own names.
    """
    linked = F.exists("links", lambda link: _names_a_message(link["attributes"])).alias("links_name")
    hashed = spans.drop("raw_hash").select("*", _hash(), _text("msg_id", "attributes").alias("given_id"), linked)
    listed = hashed.withColumn("messages", _messages())
    exploded = listed.select(
        "*",
        F.size("messages").alias("message_count"),
        F.posexplode("messages").alias("message_at", "message"),
    )
    named = exploded.select("*", *(_alias(name).alias(f"a_{name}") for name in ALIASES if name != "keys"))
    told = named.select("*", _kind().alias("a_kind"), _writer().alias("a_writer"))
    columns = _columns(trace_topics)
    good = F.col("bad").isNull()
    everywhere = {"side", "path", "line", "record_index", "bad", "raw_hash"}
    kept = {name: column if name in everywhere else F.when(good, column) for name, column in columns.items()}
    extra = F.when(F.col("message_at") > 0, F.lit(1)).otherwise(F.lit(0)).cast("bigint")
    return told.select(
        *(kept[field.name].cast(field.dataType).alias(field.name) for field in NORMALISED.fields),
        extra.alias("extra"),
    )


def _hash() -> Column:
    content = [name for name in SPAN.names if name not in {"path", "line", "raw_hash", "attributes", "links"}]
    links = F.transform(
        "links",
        lambda link: F.struct(link["trace_id"], link["span_id"], F.map_entries(link["attributes"])),
    )
    return F.xxhash64(*content, F.map_entries("attributes"), links).alias("raw_hash")


def _messages() -> Column:
    """Return one ``{id, attributes}`` per message of the span: one per link, else its own id or ids, else one null.

    An id that is equal for all messages stands on the span although each has a link.
    """
    no_attributes = F.lit(None).cast("map<string,string>")
    own = F.transform(
        F.split("given_id", ","),
        lambda one: F.struct(one.alias("id"), no_attributes.alias("attributes")),
    )
    linked = F.transform(
        "links",
        lambda link: F.struct(
            F.coalesce(_of(link["attributes"], "msg_id"), F.col("given_id")).alias("id"),
            link["attributes"].alias("attributes"),
        ),
    )
    nothing = F.array(F.struct(F.lit(None).cast("string").alias("id"), no_attributes.alias("attributes")))
    return F.when(_one_per_link(), linked).when(F.col("given_id").isNotNull(), own).otherwise(nothing)


def _one_per_link() -> Column:
    """Say whether the span's messages are on its links; ids joined with commas are all there is to say of a batch."""
    joined = F.coalesce(F.col("given_id").contains(","), F.lit(False))
    return F.col("links_name") & ~joined


def _names_a_message(attributes: Column) -> Column:
    offset = _of(attributes, "kafka_offset").isNotNull() | _of(attributes, "offset_msg_id").isNotNull()
    return _of(attributes, "msg_id").isNotNull() | offset


def _of(attributes: Column, field: str) -> Column:
    alias = ALIASES[field]
    arrays = (F.get(F.from_json(attributes[name], "array<string>"), F.lit(0)) for name in alias.arrays)
    return F.coalesce(*(attributes[name] for name in alias.names), *arrays)


def _text(field: str, column: str) -> Column:
    return _of(F.col(column), field)


def _alias(field: str) -> Column:
    """Return a field as text: from the message's own link first, then from the span."""
    if field == "msg_id":
        return F.col("message.id")
    return F.coalesce(_text(field, "message.attributes"), _text(field, "attributes"))


def _a(field: str) -> Column:
    return F.col(f"a_{field}")


def _kind() -> Column:
    """Return the kind of event, or in upper case the scope by which the span is none."""
    ours = _lookup(_a("trace_type"), _OUR_KINDS)
    operation = _lookup(F.lower(_a("operation")), OPERATIONS)
    by_span = _lookup(F.col("kind"), {"PRODUCER": "publish", "CONSUMER": "consume"})
    parent = (operation == "publish") & F.col("given_id").isNull() & (F.size("links") > 0) & ~F.col("links_name")
    messaging = _a("system").isNotNull() | _a("operation").isNotNull()
    return F.coalesce(
        ours,
        F.when(~messaging, F.lit("NOT_MESSAGING")),
        F.when(parent, F.lit("BATCH_PARENT")),
        operation,
        F.when(_a("operation").isNull(), by_span),
        F.lit("NOT_MESSAGING"),
    )


def _lookup(value: Column, table: dict[str, str]) -> Column:
    return F.coalesce(*(F.when(value == key, F.lit(found)) for key, found in table.items()))


def _writer() -> Column:
    agent = F.col("scope").startswith("io.opentelemetry.")
    ours = _a("trace_type").isNotNull() | (F.col("scope") == _OUR_SCOPE)
    return (
        F.when(ours, F.lit("mqtrace"))
        .when(agent & _a("operation_name").isNotNull(), F.lit("java-agent-new"))
        .when(agent & _a("old_operation").isNotNull(), F.lit("java-agent-old"))
        .otherwise(F.lit("other"))
    )


def _columns(trace_topics: Sequence[str]) -> dict[str, Column]:
    null = {field.name: F.lit(None).cast(field.dataType) for field in NORMALISED.fields}
    is_event = F.col("a_kind").isin(*_OUR_KINDS.values())
    start, end = _ms("start_ns"), _ms("end_ns")
    plain = (
        "path",
        "line",
        "bad",
        "raw_hash",
        "trace_id",
        "span_id",
        "parent_span_id",
        "service",
        "dropped_attributes",
    )
    texts = ("topic", "region_id", "tags", "store_host", "client_host", "transaction_state")
    return {
        **null,
        **{name: F.col(name) for name in plain},
        **{name: present(_a(name)) for name in texts},
        **{name: folded_id(_a(name)) for name in ("attempt_id", "transaction_id")},
        **{name: _a(name).try_cast("int") for name in ("retry_times", "body_length")},
        "side": F.lit("otlp"),
        "kind": F.when(is_event, F.col("a_kind")),
        "msg_id": _msg_id(),
        "half": F.when(is_event, _half()),
        "scope": _scope(trace_topics, is_event),
        "offset_msg_id": folded_id(_offset_id()),
        "group_name": F.coalesce(present(_a("group_name")), _group_of_thread()),
        "keys": _keys(),
        "msg_type": F.coalesce(_a("msg_type"), _registry_type()),
        "start_ms": start,
        "end_ms": _if_ended(end),
        "cost_ms": _if_ended(F.coalesce(_a("cost_ms").try_cast("bigint"), end - start)),
        "success": _if_ended(F.coalesce(_a("success") == "true", _success())),
        "context_code": _if_ended(F.coalesce(_a("context_code"), _context_code())),
        "from_transaction_check": _a("from_transaction_check") == "true",
        "batch_size": _batch_size(),
        "links": _links(),
        "id_source": _id_source(),
        "sent_sampled": _sent_sampled(),
        "record_index": F.col("message_at"),
        "writer": F.col("a_writer"),
    }


def _ms(column: str) -> Column:
    """Whole milliseconds, cut as Java's clock cuts them; an unset time (0) is null."""
    return F.when(F.col(column) > 0, F.floor(F.expr(f"{column} div {_NS_PER_MS}")))


def _scope(trace_topics: Sequence[str], is_event: Column) -> Column:
    names = sorted({*TRACE_TOPIC_NAMES, *trace_topics})
    traffic = _a("topic").isin(*names) | _a("topic").startswith(TRACE_TOPIC_PREFIX)
    return F.when(traffic, F.lit("TRACE_TRAFFIC")).when(~is_event, F.col("a_kind"))


def _links() -> Column:
    """Return the one link of a message that has its own; else the first row of the span has them all."""
    places = F.transform("links", lambda link: F.struct(link["trace_id"], link["span_id"]))
    return F.when(_one_per_link(), F.slice(places, F.col("message_at") + 1, 1)).when(F.col("message_at") == 0, places)


def _id_source() -> Column:
    """A send that got no answer (one-way, refused) carries its id in a captured property only."""
    attributes = [F.col(column)[name] for column in ("message.attributes", "attributes") for name in _OWN_ID_NAMES]
    source = F.when(F.coalesce(*attributes).isNotNull(), F.lit("own")).otherwise(F.lit("header"))
    return F.when(_a("msg_id").isNotNull(), source)


def _sent_sampled() -> Column:
    """What this message's link says of the send it points at, where the writer's flags can be believed.

    A span that was exported was sampled: one without the bit is from a writer that never sets it (OpenTelemetry for
    Python), and its links say as little. The bit is off, not just unset, where the flags know of remoteness.
    """
    link = F.when(_one_per_link(), F.get("links", F.col("message_at"))).when(
        F.size("links") == 1, F.get("links", F.lit(0))
    )
    flags, honest = link["flags"], F.col("flags").bitwiseAND(_SAMPLED) != 0
    sampled = flags.bitwiseAND(_SAMPLED) != 0
    told = sampled | (flags.bitwiseAND(_REMOTENESS_KNOWN) != 0)
    return F.when((F.col("a_kind") == "consume") & honest & told, sampled)


def _msg_id() -> Column:
    """Return the message's id; where it has none it goes by its place, as RocketMQ's own ``getMsgId`` and we do."""
    return folded_id(F.coalesce(F.when(~_is_dotted(), _a("msg_id")), _offset_id()))


def _offset_id() -> Column:
    """Return ``topic-partition@offset`` of a Kafka message, or what the writer calls its physical id."""
    whole = (_a("partition").try_cast("int") >= 0) & (_a("kafka_offset").try_cast("bigint") >= 0)
    position = F.concat(_a("topic"), F.lit("-"), _a("partition"), F.lit("@"), _a("kafka_offset"))
    undotted = F.regexp_replace(_a("msg_id"), _DOTTED_PLACE, "-$1@$2")
    return F.coalesce(_a("offset_msg_id"), F.when(whole, position), F.when(_is_dotted(), undotted))


def _is_dotted() -> Column:
    """Is the message id ``topic.partition.offset``, as OpenTelemetry's Python instrumentations of Kafka write it?"""
    of_topic = _a("msg_id").startswith(F.concat(_a("topic"), F.lit("."))) & _a("msg_id").rlike(_DOTTED_PLACE)
    return F.coalesce((_a("system") == _KAFKA) & of_topic, F.lit(False))


def _half() -> Column:
    """Return which half of a listener call a forwarded span was made of; others are whole."""
    return F.when(_a("half").isin(_BEFORE, "after"), _a("half")).otherwise(F.lit("whole"))


def _if_ended(value: Column) -> Column:
    """Return null for a span made of the first half only: how and when the call ended, nobody has said."""
    return F.when(_half() != _BEFORE, value)


def _group_of_thread() -> Column:
    """Old names of the Java agent: the group is only in the name of the thread that ran the listener."""
    named = F.regexp_extract(_a("thread_name"), _THREAD_OF_GROUP, 1)
    return F.when((F.col("a_kind") == "consume") & (named != ""), named)


def _keys() -> Column:
    found = [
        F.from_json(F.col(column)[name], "array<string>")
        for column in ("message.attributes", "attributes")
        for name in ALIASES["keys"].arrays
    ]
    return key_set(F.coalesce(*found))


def _registry_type() -> Column:
    table = {word: kind.value for word, kind in _REGISTRY_TYPES.items()}
    return _lookup(F.lower(_a("registry_msg_type")), table)


def _context_code() -> Column:
    """Deliveries only; the agent's old names tell nothing about how a delivery ended."""
    told = F.when(_a("error_type").isin(*_TOLD_CODES), _a("error_type"))
    silent = (F.col("a_writer") != "java-agent-old") & _a("error_type").isNull() & (F.col("status") != "ERROR")
    fine = F.when(silent, F.lit(ContextCode.SUCCESS.name))
    return F.when(F.col("a_kind") == "consume", F.coalesce(told, fine))


def _success() -> Column:
    """What RocketMQ would say, as far as the span tells it; null where it does not."""
    failed = _a("error_type").isNotNull() | (F.col("status") == "ERROR")
    agent = F.col("a_writer").startswith("java-agent")
    sent = (
        F.when(_a("send_result").isNotNull(), _a("send_result") == _SEND_OK)
        .when(failed, F.lit(False))
        .when(~agent, F.lit(True))
    )
    code = _context_code()
    consumed = F.when(code.isNotNull(), code.isin(*_SUCCESSFUL_CODES)).when(failed, F.lit(False))
    return F.when(F.col("a_kind") == "publish", sent).when(F.col("a_kind") == "consume", consumed)


def _batch_size() -> Column:
    """Messages in the same call; null where the span leaves it open: a ``create`` span, or a child of an old batch."""
    here = F.when(F.col("message_count") > 1, F.col("message_count"))
    old_child = (F.col("a_writer") == "java-agent-old") & (F.col("a_kind") == "consume") & (F.size("links") > 0)
    open_ended = old_child | (F.lower(_a("operation")) == "create")
    return F.coalesce(here, _a("batch_count").try_cast("int"), F.when(~F.coalesce(open_ended, F.lit(False)), F.lit(1)))
