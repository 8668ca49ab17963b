"""Trace contexts: made of fields, of golden vectors, and recorded with what RocketMQ's own reader made of them."""

import base64
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from otel_mqtrace import model

VECTORS = Path(__file__).resolve().parents[1] / "vectors" / "native"
RECORDED = VECTORS / "recorded"
RECORDED_FILES = sorted(path.stem for path in RECORDED.glob("*.jsonl"))


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedBody:
    """One message of a trace topic; ``reference`` is the writer's own decode, ``newest`` that of client 5.5.0."""

    line: int
    version: str
    scenario: str | None
    body: bytes
    reference: dict[str, Any]
    newest: dict[str, Any]

    @property
    def msg_type_map(self) -> str:
        return "b" if self.version in {"5.0.0", "5.1.0"} else "a"


def json_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def recorded(stem: str) -> Iterator[RecordedBody]:
    for line, item in enumerate(json_lines(RECORDED / f"{stem}.jsonl"), start=1):
        yield RecordedBody(
            line=line,
            version=item["version"],
            scenario=item["scenario"],
            body=base64.b64decode(item["body_base64"]),
            reference=item["reference_decode"],
            newest=item.get("reference_decode_newest", item["reference_decode"]),
        )


def context(trace_type: model.TraceType, at_ms: int | None, **fields: Any) -> model.TraceContext:
    """Return a context of one message; ``fields`` go to the bean or the context, wherever they belong."""
    bean = {name: fields.pop(name) for name in list(fields) if name in model.TraceBean._fields}
    return model.TraceContext(trace_type=trace_type, timestamp_ms=at_ms, beans=(model.TraceBean(**bean),), **fields)


def trace_context(item: dict[str, Any]) -> model.TraceContext:
    """Build the context that a golden vector describes; enums stand by name in it."""
    by_name: dict[str, Any] = {
        "trace_type": model.TraceType,
        "msg_type": model.MessageType,
        "context_code": model.ContextCode.__getitem__,
        "transaction_state": model.TransactionState,
        "access_channel": model.AccessChannel,
    }

    def typed(fields: dict[str, Any]) -> dict[str, Any]:
        return {
            name: by_name[name](value) if name in by_name and value is not None else value
            for name, value in fields.items()
            if name != "beans"
        }

    return model.TraceContext(**typed(item), beans=tuple(model.TraceBean(**typed(bean)) for bean in item["beans"]))
