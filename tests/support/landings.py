"""Landings written and read back, as plainly as possible."""

import base64
import json


def write_landing(path, *bodies, **fields):
    """Write trace messages as a file of a landing, one a line."""
    lines = ({**fields, "body_base64": base64.b64encode(body).decode()} for body in bodies)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


def landed_lines(root):
    parts = sorted((root / "native").glob("date=*/part-*.jsonl"), key=lambda part: part.name)
    return [json.loads(line) for part in parts for line in part.read_text(encoding="utf-8").splitlines()]
