"""The rows of the scoreboard: a requirement, its probe, and the known verdict of the incumbent.

``F`` rows require the opposite of a defect of the incumbent; ``T`` rows are features. Ours must be ``yes`` everywhere.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from tests.proofs.scoreboard.probes import classes, conventions, receiving, sending, switching
from tests.proofs.scoreboard.stage import Seen, Stage

MEASURED_INCUMBENT: Final = "0.66b1"
"""The version of the ``incumbent`` column."""


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the scoreboard. ``probe`` is ``None`` for costs, which `make bench` measures."""

    number: str
    requirement: str
    probe: Callable[[Stage], Seen] | None
    incumbent: str = "no"


ROWS: Final = (
    Row("F1", "`from confluent_kafka import Producer` before `instrument()` is traced", switching.imported_first),
    Row("F2", "`SerializingProducer` and `DeserializingConsumer` are traced", classes.serialising),
    Row("F3", "`produce_batch` and `AIOProducer` are traced", classes.batches),
    Row("F4", "`AIOConsumer`: the span is current in the coroutine, and nowhere else", classes.asyncio_consumer),
    Row("F5", "headers and timestamp given by position keep propagation", sending.positional_headers),
    Row("F6", "the caller's headers are not changed; a list used twice gives two contexts", sending.reused_headers),
    Row("F7", "a message that is not delivered leaves a failed span", sending.failure_recorded),
    Row("F8", "errors and ends of partitions are not messages", receiving.pseudo_messages),
    Row("F9", "sender and consumer are one trace", receiving.same_trace),
    Row("F10", "leaving the loop leaks no context, and the span ends", classes.left_loop),
    Row("F11", "`close()` in another thread leaks no context and logs no error", classes.closed_elsewhere),
    Row("F12", "instrumented twice: one span a message", switching.switched_twice),
    Row("F13", "a client traced by hand keeps all its methods", classes.other_methods),
    Row("F14", "`suppress_instrumentation` is honoured", sending.suppressed),
    Row("F15", "metrics; consumer group and batch count", conventions.metrics_and_identities),
    Row("F16", "commit, transactions and share consumer leave spans", classes.surroundings),
    Row("F17", "cost on the calling thread, recording: at most half the incumbent's", None),
    Row("T1", "producer span", sending.producer_span, "yes"),
    Row("T2", "producer span ends at delivery, with partition and offset", sending.ends_at_delivery),
    Row("T3", "delivery callback runs in the producing context", sending.callback_context),
    Row("T4", "default delivery callback of the configuration is kept", sending.default_callback, "yes"),
    Row("T5", "a single message consumed", receiving.consume_single, "yes"),
    Row("T6", "a batch consumed: one link per message, and the batch count", receiving.consume_batch, "partly"),
    Row("T7", "attributes of each message on its link", receiving.link_attributes),
    Row("T8", "receive span with the poll's true start (option)", receiving.receive_span),
    Row("T9", "process span covers the handler", receiving.covers_the_handler, "partly"),
    Row("T10", "parent or link, by option", receiving.parent_or_link),
    Row("T11", "baggage restored for the handler", receiving.baggage_restored),
    Row("T12", "safe across threads and asyncio", classes.threads_and_tasks),
    Row("T13", "serialising and deserialising clients", classes.serialising),
    Row("T14", "`produce_batch`: both sides have the same message id", classes.batch_meets_consumer),
    Row("T15", "`AIOProducer`, `AIOConsumer`", classes.asyncio_clients, "partly"),
    Row("T16", "`ShareConsumer`: acknowledgement becomes the outcome", classes.share_consumer),
    Row("T17", "commit becomes a settle span (option)", classes.settlements),
    Row("T18", "transactions: commit and abort of each message", sending.transactions),
    Row("T19", "error and end-of-partition messages ignored", receiving.pseudo_messages),
    Row("T20", "no span for empty polls", receiving.empty_polls, "yes"),
    Row("T21", "headers: duplicates kept, one trace header, nothing mutated", sending.carrier_kept),
    Row("T22", "a creation context in the message is respected (option)", sending.creation_context),
    Row("T23", "header capture by pattern, with redaction", sending.header_capture),
    Row("T24", "hooks for users", sending.user_hooks),
    Row("T25", "topic filter and sampling by topic", sending.topic_filter),
    Row("T26", "propagation can be switched off", sending.propagation_toggle),
    Row("T27", "`suppress_instrumentation` honoured", sending.suppressed),
    Row("T28", "semantic conventions 1.44, old names on request", conventions.current_names),
    Row("T29", "consumer group, client id, key, tombstone, cluster id", conventions.identities),
    Row("T30", "RocketMQ attributes: tags, keys, store host, type", sending.rocketmq_attributes),
    Row("T31", "queue time", receiving.queue_time),
    Row("T32", "the four messaging metrics", conventions.messaging_metrics),
    Row("T33", "client statistics and lag (option)", conventions.client_statistics),
    Row("T34", "works when the client was imported first", switching.imported_first),
    Row("T35", "`uninstrument` is complete, ten times", switching.restored),
    Row("T36", "RocketMQ's native trace records", switching.native_output),
    Row("T37", "processor: exact drop count, bounded flush, safe across `fork`", switching.honest_processor, "partly"),
    Row("T38", "users can test without a broker", switching.without_a_broker),
    Row("T39", "cost on the calling thread, not sampled: at most a quarter of the incumbent's", None),
)
"""Every line, in the order of the page."""

PROBES: Final = {probe.__name__: probe for probe in dict.fromkeys(row.probe for row in ROWS) if probe is not None}
"""Each probe once, by name."""
