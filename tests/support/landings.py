"""Reading a landing back, as plainly as possible."""

import json


def landed_lines(root):
    parts = sorted((root / "native").glob("date=*/part-*.jsonl"), key=lambda part: part.name)
    return [json.loads(line) for part in parts for line in part.read_text(encoding="utf-8").splitlines()]
