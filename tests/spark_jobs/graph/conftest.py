"""One made-up system, drawn once from files by the command itself, and the two recorded ones."""

from __future__ import annotations

import io
import json
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

from otel_mqtrace.cli import main
from spark_jobs.jobs.graph import GraphOptions, run
from tests.support.graph_world import world

DUAL = Path(__file__).parents[2] / "vectors" / "dual"


@pytest.fixture(scope="package")
def shop(tmp_path_factory):
    """Return the directory that `mqtrace graph` filled from the spans of the made-up system."""
    place = tmp_path_factory.mktemp("shop")
    (place / "spans.jsonl").write_text(json.dumps(world()) + "\n")
    told = io.StringIO()
    with redirect_stderr(told), redirect_stdout(told):
        code = main(["graph", "--otlp", str(place / "spans.jsonl"), "--out", str(place / "out"), "--grace", "1s"])
    assert code == 0, told.getvalue()
    (place / "printed.txt").write_text(told.getvalue())
    return place / "out"


@pytest.fixture(scope="package")
def recorded(tmp_path_factory):
    """Return the graph of a recording, by its folder and the sides that are read; each is drawn once."""
    drawn = {}

    def graph(folder: str, *sides: str):
        if (folder, sides) not in drawn:
            sources = {side: (str(DUAL / folder / f"{side}.jsonl"),) for side in sides}
            out = tmp_path_factory.mktemp("recorded")
            drawn[folder, sides] = run(GraphOptions(**sources, out=out, grace_ms=0))
        return drawn[folder, sides]

    return graph
