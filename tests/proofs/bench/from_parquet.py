"""Reconcile from normalised parquet: what reading leaves is there already. Users have no such door.

``python -m tests.proofs.bench.from_parquet prepare DAY TABLES`` reads both sides of a day into ``TABLES``; ``… spark TABLES OUT``
and ``… local TABLES OUT`` start there: they judge, write the verdicts and every report, and print one JSON object.
"""

import gc
import json
import sys
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any, Final

from bridge.otlp.detect import Side
from otel_mqtrace._program import YOUNG_OBJECTS
from spark_jobs.exchange.engine import leave_pandas_out
from spark_jobs.exchange.local import LocalEngine
from spark_jobs.exchange.workers import started_early
from spark_jobs.jobs.batch import conclude, reconcile
from spark_jobs.jobs.options import ReconcileOptions, check_options, no_progress
from spark_jobs.jobs.reading import EventSide, ReadOptions, read_sides
from spark_jobs.jobs.workspace import open_engine, open_workspace
from spark_jobs.report.files import render_reports
from spark_jobs.sources.files import find_inputs
from tests.proofs.bench.rivals import MASTER, MEMORY, acted

_SIDES: Final = ("native", "otlp")


def _options(day: Path, out: Path, engine: str) -> ReconcileOptions:
    sides = {side: (str(day / side),) for side in _SIDES}
    where = {"master": MASTER, "driver_memory": MEMORY} if engine == "spark" else {}
    return ReconcileOptions(**sides, **where, engine=engine, out=out, history=out / "history", grace_ms=0)


def _prepare(day: Path, tables: Path) -> dict[str, Any]:
    tables.mkdir(parents=True)
    with LocalEngine() as engine:
        inputs = (find_inputs(Side(side), [str(day / side)], {}) for side in _SIDES)
        sides = read_sides(engine, *inputs, tables.absolute(), options=ReadOptions(), progress=no_progress)
    (tables / "sides.json").write_text(json.dumps([side.to_plain() for side in sides]), encoding="utf-8")
    (tables / "day").write_text(str(day), encoding="utf-8")
    return {}


def _reconcile(engine: str, tables: Path, out: Path) -> dict[str, Any]:
    if engine == "local":
        leave_pandas_out()  # as the command does; its second process imports meanwhile
    options = _options(Path((tables / "day").read_text(encoding="utf-8")), out, engine)
    chosen = check_options(options)
    opener = partial(open_engine, chosen.engine, options, progress=no_progress)
    early = (*options.native, *options.otlp) if engine == "local" else ()
    with started_early(early, "spark_jobs.jobs.batch"), open_workspace(out, options.history, opener) as place:
        native, otlp = map(EventSide.from_plain, json.loads((tables / "sides.json").read_text(encoding="utf-8")))
        result = reconcile(place, (native, otlp), chosen.policy, progress=no_progress)
        result = conclude(place, result, lambda ended: nullcontext(render_reports(ended)), out=out)
    jobs = result.spark.jobs if result.spark else 0
    return {"status": result.status, "jobs": jobs, "holds": result.conservation.holds}


if __name__ == "__main__":
    gc.set_threshold(YOUNG_OBJECTS)  # as the program mqtrace does
    doors = {"prepare": _prepare, **{name: partial(_reconcile, name) for name in ("spark", "local")}}
    raise SystemExit(acted(doors, *sys.argv[1:]))
