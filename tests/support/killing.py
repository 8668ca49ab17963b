"""Kill a forwarder at any moment while records keep coming, and count afterwards."""

import contextlib
import random
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

from bridge.forwarder.pairing import Pairing
from bridge.forwarder.span_fields import SpanRules
from otel_mqtrace.model import TraceContext
from tests.support.forwarded_spans import record_of, span_of
from tests.support.otlp_receiver import OtlpReceiver
from tests.support.trace_stories import START_MS, after, before, body_of, pub

FORWARD = [sys.executable, "-c", "import sys; from otel_mqtrace._program import start; sys.exit(start())", "forward"]
_WATCHDOG_S = 240  # reached by none but one that hangs, however busy the machine


@contextlib.contextmanager
def running_forward(*options: str) -> Iterator[subprocess.Popen[str]]:
    """Start a forwarder; kill it after the block, or when minutes have passed."""
    process = subprocess.Popen([*FORWARD, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    watchdog = threading.Timer(_WATCHDOG_S, process.kill)
    watchdog.start()
    try:
        yield process
    finally:
        watchdog.cancel()
        process.kill()


def forwarded_under_fire(
    source: str, send: Callable[..., object], landing: Path, *, kills: int, seed: int
) -> SimpleNamespace:
    """Send records in lots, killing a real forwarder in each lot at a random moment of its work; then let one finish.

    ``send`` puts trace messages on the topic that ``source`` names, spread over its partitions. Returned are how many
    were killed at work, and the outcomes of the spans; ``contradicted`` are ids with two different contents.
    """
    chance = random.Random(seed)
    lots = _lots(kills, chance)
    with OtlpReceiver() as receiver:
        options = ["--source", source, "--otlp-endpoint", receiver.endpoint]
        options += ["--landing", str(landing), "--landing-format", "jsonl"]
        at_work = 0
        for lot in lots[:-1]:
            send(*(body_of(*body) for body in lot))
            at_work += _kill_one(options, receiver, chance)
        send(*(body_of(*body) for body in lots[-1]))
        done = subprocess.run([*FORWARD, *options, "--once"], capture_output=True, timeout=_WATCHDOG_S, check=False)
        assert (done.returncode, done.stderr) == (0, b"")
        records = [record_of(each) for lot in lots for body in lot for each in body]
        pairing = Pairing(max_pending=len(records) + 1)
        contexts = [span_of(event, SpanRules()).context for event in pairing.add(records) + pairing.flush()]
        expected = {(f"{each.trace_id:032x}", f"{each.span_id:016x}") for each in contexts}
        contents = receiver.contents()
    return SimpleNamespace(
        at_work=at_work,
        spans=len(expected),
        lost=len(expected - contents.keys()),
        unexpected=len(contents.keys() - expected),
        contradicted=sum(len(copies) > 1 for copies in contents.values()),
    )


def _kill_one(options: list[str], receiver: OtlpReceiver, chance: random.Random) -> bool:
    """Start a forwarder and kill it: before a request is kept, before it is answered, or some time after that.

    Return whether it came so far; one that makes no request dies in its sleep.
    """
    moment, fatal = chance.choice(["before", "kept", "answered"]), receiver.requests + 1
    delay_s = chance.uniform(0, 0.3) if moment == "answered" else 0.0
    process = subprocess.Popen([*FORWARD, *options], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    reached = threading.Event()

    def fire(number: int, now: str) -> bool:
        if number < fatal or reached.is_set():
            return False
        if now == moment:
            process.kill()
        if now in {moment, "kept"}:
            reached.set()
        return now == moment == "before"

    receiver.on_request = fire
    try:
        reached.wait(120)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(delay_s)
    finally:
        receiver.on_request = None
        process.kill()
        process.wait()
    return reached.is_set()


def _lots(kills: int, chance: random.Random) -> list[list[tuple[TraceContext, ...]]]:
    """Lives of messages, cut into trace messages; halves of one call are often in different lots."""
    lots: list[list[TraceContext]] = [[] for _ in range(kills + 1)]
    for number in range(kills * 20):
        msg_id, at = f"AC14{number:028X}", chance.randrange(kills + 1)
        lots[at].append(pub(msg_id, stamp_ms=START_MS + number))
        for call in range(chance.randint(0, 2)):
            request_id = f"{msg_id}-{call}"
            halves = [before(msg_id, request_id, retry_times=call), after(msg_id, request_id)]
            for half in halves[: 1 if chance.random() < 0.05 else 2]:
                lots[min(at + chance.choice([0, 0, 0, 1]), kills)].append(half)
    return [_cut(records, chance) for records in lots]


def _cut(records: list[TraceContext], chance: random.Random) -> list[tuple[TraceContext, ...]]:
    chance.shuffle(records)
    bodies = []
    while records:
        size = chance.randint(1, 4)
        bodies.append(tuple(records[:size]))
        records = records[size:]
    return bodies
