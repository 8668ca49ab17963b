"""A day of one system's messages in both formats, of any size, with known faults and badly spread keys.

Every value follows from the message's number, so two runs make the same day. Nine in ten messages are on one topic; one
message is delivered ``hot`` times and has as many copies of its send's span.

``python -m tests.proofs.bench.trace_day --messages 500000 --out DIR`` writes ``DIR/native`` (landing parquet), ``DIR/otlp``
(JSON lines, with ``--zstd`` compressed as the Collector's file exporter does) and ``DIR/truth.json``: the status counts that
a reconciliation must find.
"""

import argparse
import json
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from math import floor
from pathlib import Path
from typing import Final

import pyarrow as pa
from pyarrow import parquet

from otel_mqtrace import semconv
from otel_mqtrace.landing import landed_table

DAY_MS: Final = 86_400_000
BEGIN_MS: Final = 1_795_219_200_000  # 2026-11-21T00:00:00Z
PER_BODY, PER_LINE = 20, 50
LOST_SEND_RECORD, LOST_SEND_SPAN, LOST_DELIVERY_SPAN, LOST_DELIVERY_RECORD, DOUBLED, DIFFERENT = range(1, 7)
EVERY: Final = 1000
"""Of as many messages one has each fault, by the rest of its number."""

_FIELD, _END = "\x01", "\x02"
_PER_FILE: Final = 250_000  # messages: a row group of 110 MB, and 650 MB of JSON
_HEAD: Final = (
    '{"resourceSpans":[{"resource":{"attributes":[{"key":"service.name","value":{"stringValue":"shop"}}]},'
    '"scopeSpans":[{"scope":{"name":"otel_mqtrace"},"spans":['
)


def expected(messages: int, hot: int) -> dict[str, int]:
    """Return how many keys of each status the day holds; ``messages`` is a multiple of ``EVERY``, so is ``hot``."""
    all_of, calm = messages // EVERY, (messages - hot) // EVERY
    counts = Counter(
        NATIVE_ONLY=all_of + calm, OTLP_ONLY=all_of + calm, DUPLICATED_OTLP=all_of + (hot > 0), MISMATCHED=all_of
    )
    counts["MATCHED_EXACT"] = 2 * messages - counts.total()
    return dict(counts)


def write_day(out: Path, *, messages: int, hot: int = 0, weak: bool = False, zstd: bool = False) -> None:
    """Write both sides and the truth.

    ``weak`` leaves the id of the attempt out of the spans of deliveries, ``zstd`` compresses the spans' files.
    """
    if messages % EVERY or hot % EVERY:
        raise ValueError(f"messages and hot must be multiples of {EVERY}")
    for side in ("native", "otlp"):
        (out / side).mkdir(parents=True, exist_ok=True)
    day, most = _Day(messages, hot, weak=weak, zstd=zstd), min(_PER_FILE, -(-messages // 2 // EVERY) * EVERY)
    parts = [range(begin, min(begin + most, messages)) for begin in range(0, messages, most)]
    with ProcessPoolExecutor() as processes:
        for written in [processes.submit(day.write, out, *part) for part in enumerate(parts)]:
            written.result()
    (out / "truth.json").write_text(json.dumps({"messages": messages, "hot": hot, "status": expected(messages, hot)}))


@dataclass(frozen=True, slots=True)
class _Day:
    messages: int
    hot: int
    weak: bool
    zstd: bool = False

    def write(self, out: Path, part: int, numbers: range) -> None:
        """Write the messages with these numbers, to a file of each side."""
        starts = range(numbers.start, numbers.stop, PER_BODY)
        bodies = pa.array([self._body(range(start, start + PER_BODY)) for start in starts], pa.binary())
        columns = {
            "source": ["mqtrace"] * len(starts),
            "partition": [0] * len(starts),
            "offset": [start // PER_BODY for start in starts],
            "arrival_ms": [self._start_ms(start) + 5_000 for start in starts],
            "keys": pa.nulls(len(starts), pa.string()),
            "body": bodies,
        }
        parquet.write_table(
            pa.table(columns, schema=landed_table(()).schema), out / "native" / f"part-{part:05d}.parquet"
        )
        spans = out / "otlp" / f"part-{part:05d}.json{'.zst' if self.zstd else ''}"
        with pa.output_stream(str(spans), compression="zstd" if self.zstd else None) as file:
            for start in range(numbers.start, numbers.stop, PER_LINE):
                file.write(f"{_HEAD}{','.join(self._spans(range(start, start + PER_LINE)))}]}}]}}]}}\n".encode())

    def _body(self, numbers: range) -> bytes:
        sends = (self._send(number) for number in numbers if number % EVERY != LOST_SEND_RECORD)
        deliveries = (self._delivery(number) for number in numbers if not self._loses(number, LOST_DELIVERY_RECORD))
        return "".join((*sends, *deliveries)).encode()

    def _send(self, number: int) -> str:
        fields = ("Pub", self._start_ms(number), "R", "shop", _topic(number), _id(number), "t", f"order-{number}")
        return _record(*fields, "10.0.0.1:9092", 200, 3, 0, _offset(number), "true")

    def _delivery(self, number: int) -> str:
        start_ms, attempt, msg_id = self._delivered_ms(number), _attempt(number), self._delivered_id(number)
        before = _record("SubBefore", start_ms, "R", "billing", attempt, msg_id, 0, f"order-{number}")
        after = ("SubAfter", attempt, msg_id, 7, "true", f"order-{number}", 0, start_ms + 7, "billing")
        return before + _record(*after)

    def _spans(self, numbers: range) -> Iterator[str]:
        """Yield the spans of an export: sends, copies of sends, copies of the hot message's send, deliveries."""
        for number in numbers:
            if number % EVERY != LOST_SEND_SPAN:
                yield self._publish_span(number, 201 if number % EVERY == DIFFERENT else 200)
        for number in numbers:
            if number % EVERY == DOUBLED:
                yield self._publish_span(number, 200)
        for number in numbers:
            if number < self.hot:
                yield self._publish_span(0, 200)
        for number in numbers:
            if not self._loses(number, LOST_DELIVERY_SPAN):
                yield self._delivery_span(number)

    def _publish_span(self, number: int, size: int) -> str:
        attributes = (
            (semconv.MQTRACE_TRACE_TYPE, "Pub"),
            (semconv.MESSAGING_SYSTEM, "kafka"),
            (semconv.MESSAGING_OPERATION_TYPE, "send"),
            (semconv.MESSAGING_DESTINATION_NAME, _topic(number)),
            (semconv.MESSAGING_MESSAGE_ID, _id(number)),
            (semconv.MESSAGING_MESSAGE_BODY_SIZE, size),
            (semconv.MQTRACE_GROUP_NAME, "shop"),
            (semconv.MQTRACE_REGION_ID, "R"),
            (semconv.MQTRACE_TAGS, "t"),
            (semconv.MQTRACE_STORE_HOST, "10.0.0.1:9092"),
            (semconv.MQTRACE_OFFSET_MSG_ID, _offset(number)),
            (semconv.MQTRACE_MSG_TYPE, "Normal_Msg"),
            (semconv.MQTRACE_SUCCESS, "true"),
            (semconv.MQTRACE_COST_TIME, 3),
        )
        return _span("a", number, 4, self._start_ms(number), 3, attributes)

    def _delivery_span(self, number: int) -> str:
        attributes = (
            (semconv.MQTRACE_TRACE_TYPE, "Sub"),
            (semconv.MESSAGING_SYSTEM, "kafka"),
            (semconv.MESSAGING_OPERATION_TYPE, "process"),
            (semconv.MESSAGING_DESTINATION_NAME, _topic(number)),
            (semconv.MESSAGING_MESSAGE_ID, self._delivered_id(number)),
            (semconv.MQTRACE_GROUP_NAME, "billing"),
            (semconv.MQTRACE_REGION_ID, "R"),
            (semconv.MQTRACE_RETRY_TIMES, 0),
            (semconv.MQTRACE_SUCCESS, "true"),
            (semconv.MQTRACE_CONTEXT_CODE, "SUCCESS"),
            (semconv.MQTRACE_COST_TIME, 7),
            *(() if self.weak else ((semconv.MQTRACE_REQUEST_ID, _attempt(number)),)),
        )
        return _span("c", number, 5, self._delivered_ms(number), 7, attributes)

    def _loses(self, number: int, fault: int) -> bool:
        return number % EVERY == fault and number < self.messages - self.hot

    def _delivered_id(self, number: int) -> str:
        return _id(0 if number >= self.messages - self.hot else number)

    def _delivered_ms(self, number: int) -> int:
        return self._start_ms(number) + 100

    def _start_ms(self, number: int) -> int:
        return BEGIN_MS + floor(number * DAY_MS / self.messages)


def _id(number: int) -> str:
    return f"{number:032X}"


def _attempt(number: int) -> str:
    return f"A{number:015X}"


def _offset(number: int) -> str:
    return f"{_topic(number)}-0@{number}"


def _topic(number: int) -> str:
    return "orders" if number % 10 else f"topic-{number % 500}"


def _record(*fields: object) -> str:
    return _FIELD.join(map(str, fields)) + _END


def _span(
    prefix: str, number: int, kind: int, start_ms: int, took_ms: int, attributes: tuple[tuple[str, object], ...]
) -> str:
    text = ",".join(f'{{"key":"{key}","value":{{"stringValue":"{value}"}}}}' for key, value in attributes)
    return (
        f'{{"traceId":"{number:032X}","spanId":"{prefix}{number:015X}","name":"n","kind":{kind},'
        f'"startTimeUnixNano":"{start_ms}000000","endTimeUnixNano":"{start_ms + took_ms}000000","attributes":[{text},'
        f'{{"key":"{semconv.MQTRACE_KEYS}","value":{{"arrayValue":{{"values":[{{"stringValue":"order-{number}"}}]}}}}}}]}}'
    )


def main() -> None:
    """Read the arguments and write the day."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--messages", type=int, default=500_000)
    parser.add_argument("--hot", type=int, default=0, help="deliveries of one message")
    parser.add_argument("--weak", action="store_true", help="spans of deliveries carry no attempt id")
    parser.add_argument("--zstd", action="store_true", help="compress the files of spans")
    parser.add_argument("--out", type=Path, required=True)
    chosen = parser.parse_args()
    write_day(chosen.out.absolute(), messages=chosen.messages, hot=chosen.hot, weak=chosen.weak, zstd=chosen.zstd)


if __name__ == "__main__":
    main()
