"""What must not matter does not: row order, files, engines. The same verdicts, row for row, and the same result."""

import json
import re
from collections import Counter

import pytest

from tests.faults.corpora import CORPORA
from tests.faults.recording import Laid
from tests.faults.runs import reconciled

PLACES = {"path", "line", "record_index"}
WAYS = {
    "shuffled, in five files of two formats": ("mqtrace", Laid(shuffle=1, files=5, landing=("jsonl", "parquet"))),
    "shuffled, parquet": ("java-agent", Laid(shuffle=3, landing=("parquet",))),
}
OF_THE_RUN = {"engine", "spark", "versions", "wall_seconds", "inputs", "slowest"}


def placeless(value):
    """Return a verdict without the places of its evidence, which files decide."""
    if isinstance(value, dict):
        return tuple((name, placeless(inner)) for name, inner in sorted(value.items()) if name not in PLACES)
    return tuple(value) if isinstance(value, list) else value


def verdicts(judged):
    return Counter(placeless(row) for row in judged.rows)


@pytest.mark.parametrize("way", WAYS)
def test_verdicts_do_not_depend_on_order_or_files(corpora, judged_corpora, tmp_path, way):
    name, laid = WAYS[way]
    again = reconciled(corpora[name], tmp_path, laid=laid)
    assert verdicts(again) == verdicts(judged_corpora[name])
    assert again.result.status == judged_corpora[name].result.status
    assert again.result.reason == judged_corpora[name].result.reason
    assert again.result.conservation == judged_corpora[name].result.conservation


@pytest.mark.spark
@pytest.mark.parametrize("name", CORPORA)
def test_both_engines_give_the_same_verdicts_and_the_same_result(spark, corpora, judged_corpora, tmp_path, name):
    on_spark, here = reconciled(corpora[name], tmp_path, spark=spark), judged_corpora[name]
    assert verdicts(on_spark) == verdicts(here)
    results = [json.loads(judged.result.dumps()) for judged in (on_spark, here)]
    assert (results[0]["engine"], results[1]["engine"], results[1]["spark"]) == ("spark", "local", None)
    shared = [{key: value for key, value in result.items() if key not in OF_THE_RUN} for result in results]
    assert _without_names(shared[0], tmp_path) == _without_names(shared[1], _root(here))


def _without_names(result, root):
    """Return a result as text, without what another directory and another landing are called."""
    return re.sub(r"part-\d+-[0-9a-f]+-", "part-", repr(result).replace(str(root), ""))


def _root(judged):
    source = judged.result.inputs.otlp.sources[0]
    return source[: source.index("/otlp")]
