"""What two writers leave of a corpus, and the files that they write."""

import json
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from otel_mqtrace.landing import LandedMessage
from otel_mqtrace.model import TraceType
from otel_mqtrace.wire.native import encode_context
from tests.faults.calls import Record
from tests.support.archives import TOPIC, land


@dataclass(frozen=True, kw_only=True)
class Laid:
    """How files are laid down: rows in their own or in a shuffled order, one file per side or several."""

    shuffle: int | None = None
    files: int = 1
    landing: tuple[str, ...] = ("jsonl",)


@dataclass
class Recording:
    """Bodies of trace messages (``arrival_ms, records``), whole lines of an OTLP file, and what was counted as lost."""

    dialect: str = "5.5.0"
    bodies: list[tuple[int, bytes]] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    ledgers: list[dict[str, Any]] = field(default_factory=list)  # documents of our own ledger
    prometheus: list[str] = field(default_factory=list)

    def land(self, record: Record) -> None:
        encoded = encode_context(record.context, self.dialect, access_channel=record.channel)
        body = encoded.body if record.damage is None else record.damage(encoded.body)
        context = record.context
        ended_ms = (context.timestamp_ms or 0) + (context.cost_ms or 0) * (context.trace_type is TraceType.PUB)
        self.bodies.append((ended_ms + record.late_ms, body))

    def lay_down(self, root: Path, laid: Laid) -> dict[str, tuple[str, ...]]:
        """Write everything under ``root``; return the sources by the options of ``mqtrace reconcile``."""
        bodies, lines = list(self.bodies), list(self.lines)
        if laid.shuffle is not None:
            random.Random(laid.shuffle).shuffle(bodies)
            random.Random(laid.shuffle + 1).shuffle(lines)
        for number in range(laid.files):
            landed = [
                LandedMessage(source=TOPIC, arrival_ms=arrival_ms, body=body, partition=0, offset=offset)
                for offset, (arrival_ms, body) in enumerate(bodies[number :: laid.files])
            ]
            land(root / "landing", landed, suffix=laid.landing[number % len(laid.landing)])
            _write(root / "otlp" / f"traces-{number}.jsonl", lines[number :: laid.files])
        counted = {f"ledger-{number}.json": json.dumps(document) for number, document in enumerate(self.ledgers)}
        counted |= {f"collector-{number}.txt": text for number, text in enumerate(self.prometheus)}
        for name, text in counted.items():
            _write(root / "ledger" / name, [text])
        ledger = tuple(str(root / "ledger" / name) for name in counted)
        return {"native": (str(root / "landing"),), "otlp": (str(root / "otlp"),), "ledger": ledger}


def _write(path: Path, lines: list[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(lines), encoding="utf-8")
