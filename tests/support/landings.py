"""Landings written and read back, as plainly as possible."""

import base64
import json

from otel_mqtrace.wire.native import decode_body


def body_line(body, **fields):
    return json.dumps({**fields, "body_base64": base64.b64encode(body).decode()}).encode() + b"\n"


def write_landing(path, *bodies, **fields):
    path.write_bytes(b"".join(body_line(body, **fields) for body in bodies))
    return path


def landed_lines(root):
    parts = sorted((root / "native").glob("date=*/part-*.jsonl"), key=lambda part: part.name)
    return [json.loads(line) for part in parts for line in part.read_text(encoding="utf-8").splitlines()]


def landed_bodies(root):
    return [base64.b64decode(line["body_base64"]) for line in landed_lines(root)]


def records_of(bodies):
    decoded = [decode_body(body) for body in bodies]
    assert not any(each.errors for each in decoded)
    return [record for each in decoded for record in each.contexts]


def drain_records(source):
    messages = [message for batch in source.drain() for message in batch]
    return messages, records_of(message.body for message in messages)
