"""A message queue that no instrumentation knows, traced by hand through SendHook, ConsumeHook and SettleHook.

::

    python docs/examples/own_client.py build/own-client
    mqtrace decode build/own-client/native/*/part-*.jsonl      # what RocketMQ's own tools would read
    mqtrace inspect build/own-client/spans.jsonl               # the same messages as OpenTelemetry spans

The first part is the client: a queue in a SQLite file, as many programs have one. It knows nothing of tracing. The
second part is the adapter, all that has to be written: when is a message sent, handed over, done with. The third part
is an application that uses the one through the other.
"""

from __future__ import annotations

import json
import sqlite3
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from opentelemetry import context, trace
from opentelemetry.exporter.otlp.json.file import FileSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider

from otel_mqtrace import (
    ConsumeHook,
    ContextCode,
    IncomingMessage,
    MqTraceSpanProcessor,
    SendHook,
    SettledOffset,
    SettleHook,
)
from otel_mqtrace.exporters.native_file import NativeFileSpanExporter

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


# -- the client ----------------------------------------------------------------------------------------------------
class QueueFullError(Exception):
    """The queue holds as many jobs as it may."""


@dataclass(frozen=True)
class Job:
    """A message as the queue hands it over; ``attempt`` counts from 1."""

    number: int
    topic: str
    body: bytes
    headers: dict[str, str]
    attempt: int


class SqliteQueue:
    """Jobs in a SQLite file: put, get, then done, or again for another attempt. Processes may share the file."""

    def __init__(self, path: Path, *, max_jobs: int = 100) -> None:
        self._max_jobs = max_jobs
        self._file = sqlite3.connect(path, isolation_level=None)
        self._file.execute(
            "CREATE TABLE IF NOT EXISTS jobs (number INTEGER PRIMARY KEY AUTOINCREMENT, topic TEXT NOT NULL, "
            "body BLOB NOT NULL, headers TEXT NOT NULL, attempt INTEGER NOT NULL DEFAULT 0, taken INTEGER DEFAULT 0)"
        )

    def put(self, topic: str, body: bytes, *, headers: Mapping[str, str] | None = None) -> int:
        """Add a job and return its number; raises ``QueueFullError``."""
        (waiting,) = self._file.execute("SELECT count(*) FROM jobs").fetchone()
        if waiting >= self._max_jobs:
            raise QueueFullError(f"{waiting} jobs are waiting")
        row = (topic, body, json.dumps(dict(headers or {})))
        return self._file.execute("INSERT INTO jobs (topic, body, headers) VALUES (?, ?, ?)", row).lastrowid or 0

    def get(self, topic: str) -> Job | None:
        """Take the oldest job that nobody has; ``None`` when there is none."""
        row = self._file.execute(
            "UPDATE jobs SET taken = 1, attempt = attempt + 1 WHERE number = "
            "(SELECT min(number) FROM jobs WHERE topic = ? AND NOT taken) RETURNING number, body, headers, attempt",
            (topic,),
        ).fetchone()
        return None if row is None else Job(row[0], topic, row[1], json.loads(row[2]), row[3])

    def done(self, job: Job) -> None:
        """Remove a job."""
        self._file.execute("DELETE FROM jobs WHERE number = ?", (job.number,))

    def again(self, job: Job) -> None:
        """Give a job back, to be taken once more."""
        self._file.execute("UPDATE jobs SET taken = 0 WHERE number = ?", (job.number,))

    def close(self) -> None:
        """Close the file."""
        self._file.close()


# -- the adapter ---------------------------------------------------------------------------------------------------
class TracedQueue:
    """The queue's own methods, each with what the hooks need to know around it."""

    def __init__(self, queue: SqliteQueue, *, group: str) -> None:
        self._queue = queue
        self._send = SendHook(system="sqlite_queue", group_name=group, client_id=group)
        self._consume = ConsumeHook(system="sqlite_queue", group_name=group, client_id=group)
        self._settle = SettleHook(system="sqlite_queue", group_name=group, client_id=group)

    def put(self, topic: str, body: bytes, *, headers: Mapping[str, str] | None = None) -> int:
        """Open the span, send the headers it wrote, end the span with the queue's answer or its refusal."""
        call = self._send.before(topic, body=body, headers=headers)
        sent = headers if call is None or call.headers is None else _as_text(call.headers)
        try:
            number = self._queue.put(topic, body, headers=sent)
        except QueueFullError as full:
            self._send.after(call, error="QUEUE_FULL", description=str(full), exception=full)
            raise
        self._send.after(call, partition=0, offset=number)
        return number

    @contextmanager
    def handling(self, topic: str) -> Iterator[Job | None]:
        """Hand the next job over for the time of a block; a block that raises gets the job again."""
        start_ns = self._consume.now_ns()
        job = self._queue.get(topic)
        if job is None:
            self._consume.empty(start_ns=start_ns)
            yield None
            return
        message = _message(job)
        self._consume.received([message], start_ns=start_ns)
        calls = self._consume.before([message])  # none where the topic is not traced
        token = context.attach(calls[0].otel_ctx) if calls else None
        code, exception = ContextCode.SUCCESS, None
        try:
            yield job
            self._finish(job)
        except Exception as problem:  # noqa: BLE001 - whatever a handler raises, the job comes again
            code, exception = ContextCode.EXCEPTION, problem
            self._queue.again(job)
        finally:
            if token is not None:
                context.detach(token)
            for call in calls:
                self._consume.after(call, code=code, exception=exception)

    def _finish(self, job: Job) -> None:
        call = self._settle.before("ack")  # None unless MQTRACE_SETTLE_SPANS asks for it
        self._queue.done(job)
        self._settle.after(call, [SettledOffset(job.topic, partition=0, offset=job.number)])


def _message(job: Job) -> IncomingMessage:
    return IncomingMessage(
        topic=job.topic,
        partition=0,
        offset=job.number,
        body_length=len(job.body),
        headers=job.headers,
        retry_times=job.attempt - 1,
    )


def _as_text(headers: list[tuple[str, bytes | str | None]]) -> dict[str, str]:
    """The queue keeps headers as text; the hooks write them as bytes and read both."""
    return {name: value.decode() if isinstance(value, bytes) else value for name, value in headers if value is not None}


# -- an application ------------------------------------------------------------------------------------------------
def sell(queue: TracedQueue) -> None:
    """Send five orders, and one more than the queue holds."""
    tracer = trace.get_tracer("shop")
    for number in range(1, 6):
        with tracer.start_as_current_span("checkout"):
            queue.put("orders", f"order {number}".encode(), headers={"KEYS": f"order-{number}", "TAGS": "paid"})
    try:
        queue.put("orders", b"one too many")
    except QueueFullError as full:
        print(f"refused: {full}")


def bill(queue: TracedQueue) -> None:
    """Handle every order; the third one fails the first time."""
    tracer = trace.get_tracer("billing")
    job: Job | None
    while True:
        with queue.handling("orders") as job:
            if job is None:
                return
            with tracer.start_as_current_span("charge"):
                if job.number == 3 and job.attempt == 1:  # noqa: PLR2004 - the third order
                    raise ConnectionError("the bank does not answer")
            print(f"billed: {job.body.decode()}, attempt {job.attempt}")


def main(directory: Path) -> None:
    """Trace both ends of one queue into ``directory``: native records below ``native``, spans in ``spans.jsonl``."""
    directory.mkdir(parents=True, exist_ok=True)
    processor = MqTraceSpanProcessor(
        NativeFileSpanExporter(directory=directory), FileSpanExporter(str(directory / "spans.jsonl"))
    )
    provider = TracerProvider(resource=Resource.create({"service.name": "own-client"}))
    provider.add_span_processor(processor)
    trace.set_tracer_provider(provider)
    queue = SqliteQueue(directory / "queue.sqlite", max_jobs=5)
    sell(TracedQueue(queue, group="shop"))
    bill(TracedQueue(queue, group="billing"))
    queue.close()
    provider.shutdown()
    for name, lane in processor.stats().items():
        print(name, "exported", lane["exported"])


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "build/own-client"))
