"""What two usual ways of comparing tables call the same events: a full outer join, and datacompy.

Both are given more than a user would have: records and spans that our own readers parsed, halves of deliveries merged,
the columns that both sides carry for that kind of event. datacompy gets the profile's tolerance for times, too.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet

from bridge.otlp.detect import Side
from spark_jobs.exchange.local import LocalEngine
from spark_jobs.jobs.reading import EventSide, ReadOptions
from spark_jobs.schemas import COMPARED_FIELDS
from tests.faults.corpora import Corpus
from tests.faults.recording import Laid
from tests.faults.truth import Event
from tests.support.reading import read_sources

EQUAL, DIFFERS, LOST_OTLP, LOST_NATIVE = "equal", "differs", "native only", "span only"
Calls = Mapping[Event, Counter[str]]
_EVENT = ("kind", "msg_id", "consumer")
_COPY = "copy"


def tables(corpus: Corpus, root: Path) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the events of both sides as the two tables that are compared."""
    sources = corpus.recording.lay_down(root, Laid())
    work = root / "normalised"
    work.mkdir()
    options = ReadOptions(native_writer=corpus.options["native_writer"])
    with LocalEngine(1) as engine:
        native = read_sources(engine, Side.NATIVE, sources["native"], work / "native", options)
        otlp = read_sources(engine, Side.OTLP, sources["otlp"], work / "otlp", options)
    sides = _merged_halves(_plain(native)), _plain(otlp).drop(columns="half")
    wanted = list(dict.fromkeys((*corpus.join, *_EVENT, *COMPARED_FIELDS)))
    one, other = (side[wanted].reset_index(drop=True) for side in sides)
    for kind in one["kind"].unique():
        rows = one["kind"] == kind, other["kind"] == kind
        for name in COMPARED_FIELDS:
            if one.loc[rows[0], name].isna().all() or other.loc[rows[1], name].isna().all():
                one.loc[rows[0], name] = other.loc[rows[1], name] = None
    return one, other


def _plain(side: EventSide) -> pd.DataFrame:
    """Return the events in scope with keys as one text and nothing missing in what may be joined by."""
    names = ("kind", "half", "msg_id", "span_id", "attempt_id", *COMPARED_FIELDS)
    rows = pa.concat_tables([parquet.read_table(path, columns=[*names, "scope", "bad"]) for path in side.files])
    inside = rows.filter(pc.and_(pc.is_null(rows["scope"]), pc.is_null(rows["bad"])))
    frame = inside.select(names).to_pandas(types_mapper={pa.int64(): pd.Int64Dtype(), pa.int32(): pd.Int32Dtype()}.get)
    frame = frame.astype(object).where(frame.notna(), None)
    frame["keys"] = frame["keys"].map(lambda keys: None if keys is None else " ".join(keys))
    frame["msg_id"] = frame["msg_id"].fillna(frame["span_id"])
    frame["consumer"] = frame["group_name"].where(frame["kind"] == "consume").fillna("")
    for name in ("attempt_id", "transaction_state"):
        frame[name] = frame[name].fillna("")
    return frame.drop(columns="span_id")


def _merged_halves(native: pd.DataFrame) -> pd.DataFrame:
    """Return one row per whole record and per delivery: the first SubBefore with the first SubAfter, and so on."""
    halves = native[native["kind"] == "consume"].copy()
    call = ["msg_id", "attempt_id"]
    halves[_COPY] = halves.groupby([*call, "half"], dropna=False).cumcount()
    merged = halves.sort_values("half", ascending=False).groupby([*call, _COPY], as_index=False, dropna=False).first()
    merged["consumer"] = merged["group_name"].fillna("")
    whole = native[native["kind"] != "consume"]
    return pd.concat([whole, merged], ignore_index=True).drop(columns=["half", _COPY])


def baselines(native: pd.DataFrame, otlp: pd.DataFrame, corpus: Corpus) -> dict[str, Calls]:
    """Return what each way calls each event; only the outer join where datacompy is not installed."""
    join, tolerance_ms = list(corpus.join), corpus.tolerance_ms
    verdicts = {"outer join": _outer_join(native, otlp, join)}
    try:
        from datacompy import PandasCompare  # noqa: PLC0415 - an extra of its own
    except ImportError:
        return verdicts
    tolerances = dict.fromkeys(("start_ms", "end_ms", "cost_ms"), tolerance_ms)
    comparison = PandasCompare(native, otlp, join_columns=join, abs_tol=tolerances)
    fields = [name for name in native.columns if name not in {*join, *_EVENT}]
    calls: dict[Event, Counter[str]] = defaultdict(Counter)
    for row in comparison.intersect_rows.to_dict("records"):
        matched = all(row[f"{name}_match"] for name in fields if f"{name}_match" in row)
        calls[_event(row)][EQUAL if matched else DIFFERS] += 1
    for frame, word in ((comparison.df1_unq_rows, LOST_OTLP), (comparison.df2_unq_rows, LOST_NATIVE)):
        for row in frame.to_dict("records"):
            calls[_event(row)][word] += 1
    return {**verdicts, "datacompy": calls}


def _outer_join(native: pd.DataFrame, otlp: pd.DataFrame, join: list[str]) -> Calls:
    fields = [name for name in native.columns if name not in {*join, *_EVENT}]
    joined = native.merge(otlp, on=join, how="outer", suffixes=("_df1", "_df2"), indicator=True)
    calls: dict[Event, Counter[str]] = defaultdict(Counter)
    words = {"left_only": LOST_OTLP, "right_only": LOST_NATIVE}
    for row in joined.to_dict("records"):
        pairs = ((row[f"{name}_df1"], row[f"{name}_df2"]) for name in fields)
        same = all(one == other or (pd.isna(one) and pd.isna(other)) for one, other in pairs)
        calls[_event(row)][words.get(row["_merge"], EQUAL if same else DIFFERS)] += 1
    return calls


def _event(row: Mapping[str, object]) -> Event:
    def field(name: str) -> str:
        values = (row.get(f"{name}{suffix}") for suffix in ("", "_df1", "_df2"))
        return next((str(value) for value in values if isinstance(value, str) and value), "")

    return Event(field("kind"), field("msg_id"), field("consumer") or None)
