"""Spans made for a test: rows of ``SPAN`` as an Arrow batch, and the events made of them."""

import pyarrow as pa

from spark_jobs.normalise.spans import event_batches
from spark_jobs.schemas import SPAN

_PLAIN = {"trace_id": "ab" * 16, "span_id": "cd" * 8, "parent_span_id": None, "name": "x", "kind": "PRODUCER"}
_PLAIN |= {"start_ns": 5_000_000_999, "end_ns": 7_000_000_000, "status": "UNSET", "service": "svc", "scope": "lib"}
_PLAIN |= {"flags": 0, "dropped_attributes": 0, "dropped_links": 0, "path": "made", "line": 1}
BAD_ROW = {"path": "made", "line": 2, "bad": {"field": None, "reason": "torn", "text": "{", "mentions": []}}


def span(attributes=(), *, links=(), **columns):
    """Return a row of ``SPAN``; each of ``links`` is a mapping of attributes, or a pair of that and its flags."""
    pairs = [link if isinstance(link, tuple) else (link, 0) for link in links]
    made = [
        {"trace_id": "ef" * 16, "span_id": f"{at + 1:016x}", "flags": flags, "attributes": list(link.items())}
        for at, (link, flags) in enumerate(pairs)
    ]
    return {**_PLAIN, "attributes": list(dict(attributes).items()), "links": made, **columns}


def batch(*rows):
    return pa.RecordBatch.from_pylist(list(rows), schema=SPAN)


def events(*rows, **options):
    return [event for made in event_batches([batch(*rows)], **options) for event in made.to_pylist()]
