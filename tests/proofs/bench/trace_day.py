"""A day of one system's messages in both formats, of any size, with known faults and badly spread keys.

Every value follows from the message's number, so two runs make the same day. Nine in ten messages are on one topic; one
message is delivered ``hot`` times and has as many copies of its send's span.

``python -m tests.proofs.bench.trace_day --messages 500000 --out DIR`` writes ``DIR/native`` (landing parquet), ``DIR/otlp``
(JSON lines) and ``DIR/truth.json``: the status counts that a reconciliation must find.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from otel_mqtrace import semconv
from spark_jobs.session import build_session

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

DAY_MS = 86_400_000
BEGIN_MS = 1_795_219_200_000  # 2026-11-21T00:00:00Z
PER_BODY, PER_LINE = 20, 50
LOST_SEND_RECORD, LOST_SEND_SPAN, LOST_DELIVERY_SPAN, LOST_DELIVERY_RECORD, DOUBLED, DIFFERENT = range(1, 7)
EVERY = 1000
"""Of as many messages one has each fault, by the rest of its number."""

FIELD, END = "\x01", "\x02"


def expected(messages: int, hot: int) -> dict[str, int]:
    """Return how many keys of each status the day holds; ``messages`` is a multiple of ``EVERY``, so is ``hot``."""
    all_of, calm = messages // EVERY, (messages - hot) // EVERY
    counts = Counter(
        NATIVE_ONLY=all_of + calm,
        OTLP_ONLY=all_of + calm,
        DUPLICATED_OTLP=all_of + (hot > 0),
        MISMATCHED=all_of,
    )
    counts["MATCHED_EXACT"] = 2 * messages - counts.total()
    return dict(counts)


def write_day(spark: SparkSession, out: Path, *, messages: int, hot: int, weak: bool) -> None:
    """Write both sides and the truth; ``weak`` leaves the id of the attempt out of the spans of deliveries."""
    if messages % EVERY or hot % EVERY:
        raise ValueError(f"messages and hot must be multiples of {EVERY}")
    day = _Day(messages, hot, weak=weak)
    day.bodies(spark).write.mode("overwrite").parquet(str(out / "native"))
    day.lines(spark).write.mode("overwrite").text(str(out / "otlp"))
    (out / "truth.json").write_text(json.dumps({"messages": messages, "hot": hot, "status": expected(messages, hot)}))


class _Day:
    def __init__(self, messages: int, hot: int, *, weak: bool) -> None:
        self._messages, self._hot, self._weak = messages, hot, weak

    def bodies(self, spark: SparkSession) -> DataFrame:
        """One row per trace message of ``PER_BODY`` sends and deliveries."""
        texts = F.concat(*(self._each(PER_BODY, record) for record in (self._send, self._delivery)))
        frame = spark.range(self._messages // PER_BODY)
        return frame.select(
            F.lit("mqtrace").alias("source"),
            F.lit(0).alias("partition"),
            F.col("id").alias("offset"),
            (BEGIN_MS + F.col("id") * PER_BODY * DAY_MS / self._messages + 5_000).cast("bigint").alias("arrival_ms"),
            F.lit(None).cast("string").alias("keys"),
            F.array_join(texts, "").cast("binary").alias("body"),
        )

    def lines(self, spark: SparkSession) -> DataFrame:
        """One export of ``PER_LINE`` messages' spans per line."""
        makers = (self._send_span, self._copy_of_send_span, self._hot_copy, self._delivery_span)
        spans = F.array_join(F.concat(*(self._each(PER_LINE, maker) for maker in makers)), ",")
        head = (
            '{"resourceSpans":[{"resource":{"attributes":[{"key":"service.name","value":{"stringValue":"shop"}}]},'
            '"scopeSpans":[{"scope":{"name":"otel_mqtrace"},"spans":['
        )
        return spark.range(self._messages // PER_LINE).select(F.concat(F.lit(head), spans, F.lit("]}]}]}")))

    def _each(self, count: int, make) -> Column:
        numbers = F.sequence(F.col("id") * count, F.col("id") * count + count - 1)
        return F.filter(F.transform(numbers, make), lambda text: text.isNotNull())

    # -- the records
    def _send(self, number: Column) -> Column:
        fields = ("Pub", _start(self, number), "R", "shop", _topic(number), _id(number), "t", _key(number))
        rest = ("10.0.0.1:9092", F.lit("200"), F.lit("3"), F.lit("0"), _offset(number), F.lit("true"))
        return F.when(_rest(number) != LOST_SEND_RECORD, _record(*fields, *rest))

    def _delivery(self, number: Column) -> Column:
        start, attempt, msg_id = self._delivered_ms(number), _attempt(number), self._delivered_id(number)
        before = _record("SubBefore", start, "R", "billing", attempt, msg_id, "0", _key(number))
        after = _record(
            *("SubAfter", attempt, msg_id, "7", "true", _key(number), "0"), _text(start.cast("bigint") + 7), "billing"
        )
        return F.when(~self._loses(number, LOST_DELIVERY_RECORD), F.concat(before, after))

    # -- the spans
    def _send_span(self, number: Column) -> Column:
        size = F.when(_rest(number) == DIFFERENT, F.lit("201")).otherwise(F.lit("200"))
        return F.when(_rest(number) != LOST_SEND_SPAN, self._publish_span(number, size))

    def _copy_of_send_span(self, number: Column) -> Column:
        return F.when(_rest(number) == DOUBLED, self._publish_span(number, F.lit("200")))

    def _hot_copy(self, number: Column) -> Column:
        return F.when(number < self._hot, self._publish_span(F.lit(0).cast("bigint"), F.lit("200")))

    def _publish_span(self, number: Column, size: Column) -> Column:
        attributes = {
            semconv.MQTRACE_TRACE_TYPE: "Pub",
            semconv.MESSAGING_SYSTEM: "kafka",
            semconv.MESSAGING_OPERATION_TYPE: "send",
            semconv.MESSAGING_DESTINATION_NAME: _topic(number),
            semconv.MESSAGING_MESSAGE_ID: _id(number),
            semconv.MESSAGING_MESSAGE_BODY_SIZE: size,
            semconv.MQTRACE_GROUP_NAME: "shop",
            semconv.MQTRACE_REGION_ID: "R",
            semconv.MQTRACE_TAGS: "t",
            semconv.MQTRACE_STORE_HOST: "10.0.0.1:9092",
            semconv.MQTRACE_OFFSET_MSG_ID: _offset(number),
            semconv.MQTRACE_MSG_TYPE: "Normal_Msg",
            semconv.MQTRACE_SUCCESS: "true",
            semconv.MQTRACE_COST_TIME: "3",
        }
        return _span("a", number, 4, _start(self, number), 3, attributes)

    def _delivery_span(self, number: Column) -> Column:
        attributes = {
            semconv.MQTRACE_TRACE_TYPE: "Sub",
            semconv.MESSAGING_SYSTEM: "kafka",
            semconv.MESSAGING_OPERATION_TYPE: "process",
            semconv.MESSAGING_DESTINATION_NAME: _topic(number),
            semconv.MESSAGING_MESSAGE_ID: self._delivered_id(number),
            semconv.MQTRACE_GROUP_NAME: "billing",
            semconv.MQTRACE_REGION_ID: "R",
            semconv.MQTRACE_RETRY_TIMES: "0",
            semconv.MQTRACE_SUCCESS: "true",
            semconv.MQTRACE_CONTEXT_CODE: "SUCCESS",
            semconv.MQTRACE_COST_TIME: "7",
        }
        if not self._weak:
            attributes[semconv.MQTRACE_REQUEST_ID] = _attempt(number)
        span = _span("c", number, 5, self._delivered_ms(number), 7, attributes)
        return F.when(~self._loses(number, LOST_DELIVERY_SPAN), span)

    # -- what both say
    def _loses(self, number: Column, fault: int) -> Column:
        return (_rest(number) == fault) & (number < self._messages - self._hot)

    def _delivered_id(self, number: Column) -> Column:
        return F.when(number >= self._messages - self._hot, _id(F.lit(0).cast("bigint"))).otherwise(_id(number))

    def _delivered_ms(self, number: Column) -> Column:
        return _text(_start(self, number).cast("bigint") + 100)

    def start_ms(self, number: Column) -> Column:
        return F.lit(BEGIN_MS) + F.floor(number * DAY_MS / self._messages)


def _rest(number: Column) -> Column:
    return F.pmod(number, F.lit(EVERY))


def _start(day: _Day, number: Column) -> Column:
    return _text(day.start_ms(number))


def _text(number: Column) -> Column:
    return number.cast("string")


def _hex(number: Column, digits: int) -> Column:
    return F.lpad(F.hex(number), digits, "0")


def _id(number: Column) -> Column:
    return _hex(number, 32)


def _attempt(number: Column) -> Column:
    return F.concat(F.lit("A"), _hex(number, 15))


def _key(number: Column) -> Column:
    return F.concat(F.lit("order-"), _text(number))


def _offset(number: Column) -> Column:
    return F.concat(_topic(number), F.lit("-0@"), _text(number))


def _topic(number: Column) -> Column:
    rare = F.concat(F.lit("topic-"), _text(F.pmod(number, F.lit(500))))
    return F.when(F.pmod(number, F.lit(10)) != 0, F.lit("orders")).otherwise(rare)


def _record(*fields: Column | str) -> Column:
    columns = [F.lit(field) if isinstance(field, str) else field for field in fields]
    return F.concat(F.concat_ws(FIELD, *columns), F.lit(END))


def _span(prefix: str, number: Column, kind: int, start: Column, took_ms: int, attributes: dict) -> Column:
    pieces: list[Column] = []
    for key, value in attributes.items():
        text = F.lit(value) if isinstance(value, str) else value
        pieces += [F.lit(("," if pieces else "") + f'{{"key":"{key}","value":{{"stringValue":"'), text, F.lit('"}}')]
    own = {
        '{"traceId":"': _hex(number, 32),
        '","spanId":"': F.concat(F.lit(prefix), _hex(number, 15)),
        f'","name":"n","kind":{kind},"startTimeUnixNano":"': F.concat(start, F.lit("000000")),
        '","endTimeUnixNano":"': F.concat(_text(start.cast("bigint") + took_ms), F.lit("000000")),
    }
    named = [column for key, value in own.items() for column in (F.lit(key), value)]
    keys = F.concat(
        F.lit(f',{{"key":"{semconv.MQTRACE_KEYS}","value":{{"arrayValue":{{"values":[{{"stringValue":"'),
        _key(number),
        F.lit('"}]}}}'),
    )
    return F.concat(*named, F.lit('","attributes":['), *pieces, keys, F.lit("]}"))


def main() -> None:
    """Read the arguments and write the day."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--messages", type=int, default=500_000)
    parser.add_argument("--hot", type=int, default=0, help="deliveries of one message")
    parser.add_argument("--weak", action="store_true", help="spans of deliveries carry no attempt id")
    parser.add_argument("--out", type=Path, required=True)
    chosen = parser.parse_args()
    spark = build_session(master="local[2]", driver_memory="2g")
    write_day(spark, chosen.out.absolute(), messages=chosen.messages, hot=chosen.hot, weak=chosen.weak)
    spark.stop()


if __name__ == "__main__":
    main()
