"""What must not matter does not: row order, files, partitions, ANSI mode, time zone, compiled or not. The same verdicts, row for row."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.faults.recording import Laid
from tests.faults.runs import reconciled
from tests.support.settings import configured

pytestmark = pytest.mark.spark

PLACES = {"path", "line", "record_index"}
WAYS = {
    "shuffled, in five files of two formats, 16 partitions, not ANSI, New York": (
        "mqtrace",
        Laid(shuffle=1, files=5, landing=("jsonl", "parquet")),
        {
            "spark.sql.shuffle.partitions": "16",
            "spark.sql.adaptive.coalescePartitions.enabled": "false",
            "spark.sql.ansi.enabled": "false",
            "spark.sql.session.timeZone": "America/New_York",
        },
    ),
    "shuffled, parquet, one partition, no adaptive plans, expressions compiled": (
        "java-agent",
        Laid(shuffle=3, landing=("parquet",)),
        {
            "spark.sql.shuffle.partitions": "1",
            "spark.sql.adaptive.enabled": "false",
            "spark.sql.codegen.wholeStage": "true",
            "spark.sql.codegen.factoryMode": "FALLBACK",
        },
    ),
}


def placeless(value):
    """A verdict without the places of its evidence, which files decide."""
    if isinstance(value, dict):
        return tuple((name, placeless(inner)) for name, inner in sorted(value.items()) if name not in PLACES)
    return tuple(value) if isinstance(value, list) else value


def verdicts(judged):
    return Counter(placeless(row) for row in judged.rows)


@pytest.mark.parametrize("way", WAYS)
def test_the_verdicts_are_the_same(spark, corpora, judged_corpora, tmp_path, way):
    """Every column of every verdict but where its evidence lies, and the counts of the result."""
    name, laid, settings = WAYS[way]
    with configured(spark, settings):
        again = reconciled(spark, corpora[name], tmp_path, laid=laid)
    assert verdicts(again) == verdicts(judged_corpora[name])
    assert again.result.status == judged_corpora[name].result.status
    assert again.result.reason == judged_corpora[name].result.reason
    assert again.result.conservation == judged_corpora[name].result.conservation
