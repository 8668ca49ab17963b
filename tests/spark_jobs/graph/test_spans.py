"""Spans that point at each other: whose message a span is about, against a plain reading of them."""

import tempfile
from collections import Counter, defaultdict
from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from spark_jobs.jobs.naming import tie_spans
from spark_jobs.schemas import NORMALISED
from tests.support.reading import PlainEngine, rows_in

Row = dict[str, Any]
_ids = st.sampled_from(["a", "b", "c", None])
_rows = st.fixed_dictionaries(
    {
        "side": st.just("otlp"),
        "kind": st.sampled_from(["publish", "publish", "consume", "consume", "recall", None]),
        "scope": st.sampled_from([None, None, None, "POLL"]),
        "msg_id": st.sampled_from(["M1", "M2", None, None]),
        "offset_msg_id": st.sampled_from(["t-0@1", None, None, None]),
        "trace_id": _ids,
        "span_id": _ids,
        "parent_span_id": _ids,
        "start_ms": st.sampled_from([1, 5, 9, None]),
        "links": st.none() | st.lists(st.fixed_dictionaries({"trace_id": _ids, "span_id": _ids}), max_size=3),
    }
)


def place_of(trace_id: str | None, span_id: str | None) -> str | None:
    return f"{trace_id}/{span_id}" if trace_id and span_id else None


def pointed_at(row: Row) -> list[str | None]:
    if row["links"]:
        return [*dict.fromkeys(place_of(**link) for link in row["links"])]
    return [place_of(row["trace_id"], row["parent_span_id"])] if row["parent_span_id"] else []


def tie_plainly(rows: list[Row]) -> list[Row]:
    rows = [{**row, "msg_id": row["msg_id"] or row["offset_msg_id"]} for row in rows]
    inside = [row for row in rows if row["scope"] is None]
    named_by: defaultdict[str | None, list[str | None]] = defaultdict(list)
    for row in inside:
        for place in pointed_at(row) if row["kind"] == "consume" else ():
            named_by[place].append(row["msg_id"])
    sent: defaultdict[str | None, list[str]] = defaultdict(list)
    for row in (row for row in inside if row["kind"] == "publish"):
        place = place_of(row["trace_id"], row["span_id"])
        if row["msg_id"] is None and place and place in named_by:
            row["msg_id"] = min((name for name in named_by[place] if name), default=f"span:{place}")
        if row["msg_id"] and place:
            sent[place].append(row["msg_id"])
    tied = []
    for row in rows:
        if row["kind"] == "consume" and row["scope"] is None and row["msg_id"] is None:
            places = pointed_at(row) or [None]
            tied += [{**row, "msg_id": min(sent[place]) if place in sent else None} for place in places]
        else:
            tied.append(row)
    return tied


def files_of(directory: str, rows: list[Row]) -> list[str]:
    paths = [f"{directory}/{name}.parquet" for name in ("one", "two")]
    for path, some in zip(paths, (rows[::2], rows[1::2]), strict=True):
        parquet.write_table(pa.Table.from_pylist(some, schema=NORMALISED), path, row_group_size=3)
    return paths


def plain(rows: list[Row]) -> Counter[str]:
    names = ("kind", "scope", "msg_id", "trace_id", "span_id", "start_ms")
    return Counter(repr([row[name] for name in names]) for row in rows)


@settings(max_examples=40)
@given(rows=st.lists(_rows, max_size=14))
def test_tied_spans_agree_with_plain_python(rows):
    with tempfile.TemporaryDirectory() as directory:
        tied = tie_spans(PlainEngine(), files_of(directory, rows), f"{directory}/tied", bucket_rows=3)
        assert plain(rows_in(tied)) == plain(tie_plainly(rows))


def test_malformed_rows_are_kept_beside_tied_spans(tmp_path):
    bad = {"field": "f", "reason": "r", "text": "t", "mentions": ["M9"]}
    named = {"side": "otlp", "trace_id": "t", "span_id": "s"}
    files = files_of(str(tmp_path), [{"side": "otlp", "kind": "consume"}, {**named, "bad": bad}])
    tied = rows_in(tie_spans(PlainEngine(), files, str(tmp_path / "tied")))
    assert [row["bad"] for row in tied if row["bad"]] == [bad]
