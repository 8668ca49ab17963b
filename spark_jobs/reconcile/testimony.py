"""This module knows how the rest of a run is asked about its residue: questions as keys, answers added up per key.

A residue key asks under names (``process``, ``message``, ``next3``, …); every verdict of the run, and every id of the
trace topic's own traffic, tells what it knows under the keys that concern it. Both are hashes of 64 bits, so that all
questions of a run are one join: what nobody asked is dropped while it is read, the rest is added up, and the answers
come back as one map per residue key. Nothing of it depends on the order of rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F

from spark_jobs.reconcile.ids import COUNTER_VALUES, counter_of, drawn_ms, process_of
from spark_jobs.reconcile.instants import believable, plus
from spark_jobs.reconcile.profiles import BATCH_SENT
from spark_jobs.taxonomy import Kind

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["MOST_MOMENTS", "NEXT_IDS", "SLICE_MS", "answered", "heard", "last_drawn"]

NEXT_IDS: Final = 8
"""How many of the ids after a send's own are asked for."""

SLICE_MS: Final = 8_192
"""The width of the slices of time in which sends without an id and ends of transactions are looked for."""

MOST_MOMENTS: Final = 256
"""Of more moments under one key none is told, only that they are ``crowded``: each would go to every row that asks."""

_FEW_ROWS: Final = 50_000
"""Of so many rows every executor can hold the questions: 20 at most each, of 8 bytes."""

_PAIR: Final = ("key", "moment_ms")
_PLACE: Final = ("path", "line", "record_index", "raw_hash")


def answered(residue: DataFrame, verdicts: DataFrame, traffic: DataFrame, *, asking: int) -> DataFrame:
    """Return ``residue`` with ``heard``, a map from the name of a question to what the whole run says to it.

    Args:
        residue: ``VERDICT``: the keys to be explained.
        verdicts: ``VERDICT`` of the whole run, the residue among them.
        traffic: ``EVENT`` of the spans in which trace messages were sent.
        asking: how many rows ``residue`` has; where they are few, what nobody asked is dropped before any exchange.
    """
    row = F.xxhash64("kind", "msg_id", *(F.col(side)[name] for side in ("native", "otlp") for name in _PLACE))
    rows = residue.withColumn("row", row)
    questions = _with_processes(rows).select("row", F.inline(_known(_asked(), "name")))
    wanted = F.broadcast(questions.select("key")) if asking <= _FEW_ROWS else questions.select("key")
    answers = _told(verdicts, traffic).join(wanted, "key", "left_semi").groupBy("key").agg(*_sums())
    told = F.struct(*(name for name in answers.columns if name != "key")).alias("told")
    found = questions.join(answers.select("key", told).hint("shuffle_hash"), "key")
    per_row = found.groupBy("row").agg(F.map_from_entries(F.collect_list(F.struct("name", "told"))).alias("heard"))
    return rows.join(per_row.hint("shuffle_hash"), "row", "left").drop("row")


def heard(question: str, measure: str) -> Column:
    """Return one measure of one answer; null where nobody answered. The measures are those of ``_sums``."""
    return F.col("heard")[question][measure]


def last_drawn() -> Column:
    """Return how many ids a send drew after this message's own: those of the rest of its batch, null where unknown.

    A batch of the agent's old convention lists its ids in the order they were drawn; of a ``create`` span nobody knows.
    """
    size, place = F.col("otlp")["batch_size"], F.col("otlp")["record_index"]
    return F.when(size == 1, F.lit(0)).when(size > 1, size - 1 - place)


def _with_processes(verdicts: DataFrame) -> DataFrame:
    """Add ``sender`` and ``listener``, the processes of the message's id and of the request id."""
    return verdicts.withColumns(
        {"sender": process_of(F.col("msg_id")), "listener": process_of(F.col("native")["attempt_id"])}
    )


def _asked() -> dict[str, Column]:
    sent = F.when(_is(Kind.PUBLISH) & _otlp("span_id").isNotNull(), F.col("msg_id"))
    over_ms = F.coalesce(_otlp("end_ms"), _otlp("start_ms"))
    named = (F.col("kind"), _name())
    return {
        "run": _key("run"),
        "name": _key("name", *named),
        "process": _key("process", _process()),
        "sampler": _key("sampler", F.col("sender")),
        "stretch": _stretch(),
        "service": _key("service", _otlp("service")),
        "place": _key("place", _otlp("service"), *named),
        "message": _key("message", F.col("msg_id")),
        "span": _listener_span(),
        "attempt": _attempt(),
        **{f"next{step}": _id("sender", counter_of(sent), last_drawn() + step) for step in range(1, NEXT_IDS + 1)},
        **{f"idless{step}": _key("idless", _otlp("service"), _slice(over_ms, step)) for step in (0, 1)},
        **{f"end{step}": _key("end", F.col("sender"), _slice(over_ms, step)) for step in (0, 1)},
    }


def _told(verdicts: DataFrame, traffic: DataFrame) -> DataFrame:
    """Return ``key``, ``moment_ms`` and what each verdict knows, once per key that concerns it."""
    publish, idless, event_ms = _is(Kind.PUBLISH), F.col("msg_id").isNull(), believable(F.col("event_ms"))
    ended = (F.col("kind") == Kind.TRANSACTION_END.value) & F.col("native").isNotNull()
    named, timeless = (F.col("kind"), _name()), F.lit(None).cast("long")
    keys = [
        (F.when(~_otlp("sent_sampled"), _key("run")), timeless),
        (F.when(publish | _otlp("sent_sampled").isNotNull(), _key("sampler", F.col("sender"))), timeless),
        (F.when(publish, _stretch()), timeless),
        (_key("name", *named), timeless),
        (_key("process", _process()), timeless),
        (_key("service", _otlp("service")), timeless),
        (_key("place", _otlp("service"), *named), timeless),
        (_key("message", F.col("msg_id")), timeless),
        (_listener_span(), timeless),
        (_attempt(), timeless),
        *(
            (_id(process, counter_of(drawn)), drawn_ms(drawn))
            for process, drawn in (("sender", F.col("msg_id")), ("listener", _native("attempt_id")))
        ),
        (F.when(publish & idless, _key("idless", _otlp("service"), _slice(_otlp("start_ms")))), event_ms),
        (F.when(ended, _key("end", F.col("sender"), _slice(event_ms))), event_ms),
    ]
    known = {
        "on_native": F.col("native").isNotNull(),
        "on_otlp": F.col("otlp").isNotNull(),
        "event_ms": event_ms,
        "over_native_ms": believable(F.coalesce(_native("end_ms"), _native("start_ms"))),
        "over_otlp_ms": believable(F.coalesce(_otlp("end_ms"), _otlp("start_ms"))),
        "native_cost_ms": _native("cost_ms"),
        "sent_sampled": _otlp("sent_sampled"),
        "follows_send": publish | (_otlp("batch_size") == 1),
        "delivered": _is(Kind.CONSUME),
        "sent_alone": publish & _native("start_ms").isNotNull() & (F.coalesce(_native("batch_size"), F.lit(1)) == 1),
        "unrecorded": F.coalesce(F.col("reason_detail") == BATCH_SENT, F.lit(False)),
        "place": F.struct(_otlp("start_ms").alias("start_ms"), _otlp("record_index").alias("at")),
    }
    parts = {f"{name}{nth}": part for nth, pair in enumerate(keys) for name, part in zip(_PAIR, pair, strict=True)}
    rows = _with_processes(verdicts).select(*(value.alias(name) for name, value in {**parts, **known}.items()))
    pairs = [(F.col(f"key{nth}"), F.col(f"moment_ms{nth}")) for nth in range(len(keys))]
    spoken = rows.select(F.inline(_keyed(pairs)), *known).where(F.col("key").isNotNull())
    return spoken.unionByName(_told_by_traffic(traffic), allowMissingColumns=True)


def _told_by_traffic(traffic: DataFrame) -> DataFrame:
    """A trace message's id is one of its process's, and its span shows how long that process's spans went on."""
    drawn, timeless = F.col("msg_id"), F.lit(None).cast("long")
    keys = [(_id("sender", counter_of(drawn)), drawn_ms(drawn)), (_key("process", F.col("sender")), timeless)]
    over_ms = believable(F.coalesce("end_ms", "start_ms")).alias("over_otlp_ms")
    rows = traffic.withColumn("sender", process_of(drawn)).select(F.inline(_keyed(keys)), over_ms)
    return rows.where(F.col("key").isNotNull())


def _keyed(keys: list[tuple[Column, Column]]) -> Column:
    named = (zip(_PAIR, pair, strict=True) for pair in keys)
    return F.array(*(F.struct(*(part.alias(name) for name, part in pair)) for pair in named))


def _sums() -> list[Column]:
    """Add up what is told under one key; the names are the measures of ``heard``."""
    on_otlp = F.col("on_otlp")
    return [
        F.count("on_native").alias("keys"),
        F.count_if("on_native").alias("native"),
        F.count_if("on_otlp").alias("otlp"),
        F.count_if(on_otlp & F.col("follows_send")).alias("following"),  # spans that are sampled as their send was
        F.count_if("sent_alone").alias("sent"),  # sends that a sampler decided about one by one
        F.count_if(F.col("sent_alone") & ~on_otlp).alias("unseen"),
        # What only deliveries that are sampled with their send say is no sample of all sends.
        F.count_if(F.col("sent_sampled") & ~F.coalesce("follows_send", F.lit(False))).alias("linked"),
        F.count_if("sent_sampled").alias("sampled"),  # links that say how it was
        F.count_if(~F.col("sent_sampled")).alias("unsampled"),
        F.count_if(F.col("delivered") & F.col("on_native")).alias("native_deliveries"),
        F.min("event_ms").alias("first_ms"),
        F.greatest(F.max("over_native_ms"), F.max("over_otlp_ms")).alias("last_ms"),
        F.max("over_native_ms").alias("native_ms"),
        F.max("over_otlp_ms").alias("otlp_ms"),
        F.max("native_cost_ms").alias("cost_ms"),
        # Whether the last of a call was sent in a batch; where several are the last, whether all of them were.
        (~F.max(F.struct("place.start_ms", "place.at", (~F.col("unrecorded")).alias("recorded")))["recorded"]).alias(
            "closing"
        ),
        F.when(F.count("moment_ms") <= MOST_MOMENTS, F.array_sort(F.collect_list("moment_ms"))).alias("moments"),
        (F.count("moment_ms") > MOST_MOMENTS).alias("crowded"),
    ]


def _key(family: str, *parts: Column) -> Column:
    """Return the hash of a question; null as soon as a part is unknown: nobody can answer it then."""
    known = F.lit(True)
    for part in parts:
        known = known & part.isNotNull()
    return F.when(known, F.xxhash64(F.lit(family), *parts))


def _known(questions: dict[str, Column], name: str) -> Column:
    pairs = F.array(*(F.struct(F.lit(asked).alias(name), key.alias("key")) for asked, key in questions.items()))
    return F.filter(pairs, lambda pair: pair["key"].isNotNull())


def _is(kind: Kind) -> Column:
    return F.col("kind") == kind.value


def _native(name: str) -> Column:
    return F.col("native")[name]


def _otlp(name: str) -> Column:
    return F.col("otlp")[name]


def _process() -> Column:
    """Return the process that made the call: a sender's by the message's id, a consumer's by its request id."""
    return F.when(_is(Kind.CONSUME), F.col("listener")).otherwise(F.col("sender"))


def _name() -> Column:
    return F.when(_is(Kind.CONSUME), F.col("group")).when(_is(Kind.PUBLISH), F.col("topic"))


def _listener_span() -> Column:
    """Return what the spans of one listener call share: the span itself; in the old convention the parent."""
    old = _otlp("writer") == "java-agent-old"
    span_id = F.when(old, _otlp("parent_span_id")).otherwise(_otlp("span_id"))
    return F.when(_is(Kind.CONSUME), _key("span", _otlp("trace_id"), span_id))


def _attempt() -> Column:
    return F.when(_is(Kind.CONSUME), _key("attempt", _native("attempt_id")))


def _stretch() -> Column:
    """Return the key of the stretch of its process's time in which the message's id was drawn."""
    return _key("stretch", F.col("sender"), _slice(drawn_ms(F.col("msg_id"))))


def _slice(instant_ms: Column, later: int = 0) -> Column:
    return F.floor(believable(instant_ms) / SLICE_MS) + later


def _id(process: str, counter: Column, after: Column | None = None) -> Column:
    """Return the key of the id a process drew with this counter, or so many later."""
    wanted = counter if after is None else plus(counter, after)
    return _key("id", F.col(process), F.pmod(wanted, F.lit(COUNTER_VALUES).cast("long")))
