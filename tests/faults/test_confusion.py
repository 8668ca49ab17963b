"""Every fault is called what it is: the real job on the whole corpus, verdict by verdict against the truth.

The verdicts do not depend on the order of rows, on files, or on the engine.
"""

import json
import re
from collections import Counter
from pathlib import Path

import pytest

from spark_jobs.taxonomy import Reason, Status
from tests.faults.baselines import baselines, tables
from tests.faults.confusion import NOTHING, compared, disagreements
from tests.faults.corpora import CORPORA
from tests.faults.recording import Laid
from tests.faults.runs import reconciled
from tests.faults.tables import filled_in, proof_blocks, rivals_table, score_losses

PROOF = Path(__file__).parents[2] / "docs" / "reconciliation" / "proof.md"


@pytest.fixture(scope="module")
def corpora():
    return {name: made(0) for name, made in CORPORA.items()}


@pytest.fixture(scope="module")
def judged_corpora(corpora, tmp_path_factory):
    root = tmp_path_factory.mktemp("corpora")
    return {name: reconciled(corpus, root / name) for name, corpus in corpora.items()}


@pytest.fixture(scope="module")
def worlds(corpora, judged_corpora):
    return {name: compared(corpus.truth, judged_corpora[name].rows) for name, corpus in corpora.items()}


@pytest.mark.parametrize("name", CORPORA)
def test_fault_gets_its_true_verdict(worlds, name):
    assert disagreements(worlds[name]) == []


@pytest.mark.parametrize("name", CORPORA)
def test_malformed_and_foreign_input_is_counted_by_side_and_scope(corpora, judged_corpora, name):
    truth, result = corpora[name].truth, judged_corpora[name].result
    assert {side: getattr(result.inputs, side).malformed for side in truth.malformed} == truth.malformed
    assert {scope: result.reason_detail.get(scope, 0) for scope in truth.scopes} == truth.scopes
    assert result.conservation.holds


def test_silent_losses_have_precision_and_recall_of_one(worlds):
    score = score_losses(cell for cells in worlds.values() for cell in cells)
    assert score.true > 30
    assert (score.precision, score.recall) == (1.0, 1.0)


def test_comparison_finds_wrong_missing_and_extra_verdicts(corpora, judged_corpora):
    truth, rows = corpora["mqtrace"].truth, judged_corpora["mqtrace"].rows
    at = next(number for number, row in enumerate(rows) if row["status"] == "MATCHED_EXACT")
    stranger = {**rows[at], "msg_id": "NEVER-SENT"}
    changed = [{**rows[at], "status": "MISMATCHED"}, *rows[:at], *rows[at + 2 :], stranger]
    known = {cell for cell in compared(truth, rows) if not cell.agrees}
    cells = {cell for cell in compared(truth, changed) if not cell.agrees} - known
    assert len(cells) == 3
    assert sum(cell.expected == NOTHING for cell in cells) == 1
    assert sum(cell.got == NOTHING for cell in cells) == 1


def test_proof_page_shows_the_verdicts_of_this_run(worlds):
    """The tables in docs/reconciliation/proof.md are those of this run; `make confusion` writes them."""
    blocks = proof_blocks(worlds)
    text = PROOF.read_text(encoding="utf-8")
    assert all(f"<!-- played: {name} -->" in text for name in blocks)
    assert text == filled_in(text, blocks)


@pytest.mark.parametrize("name", CORPORA)
def test_proof_page_shows_the_rivals_results_on_the_same_events(corpora, worlds, name, tmp_path):
    pytest.importorskip("datacompy", reason="the compare extra is not installed")
    rivals = baselines(*tables(corpora[name], tmp_path), corpora[name])
    text = PROOF.read_text(encoding="utf-8")
    assert f"<!-- played: rivals-{name} -->" in text
    assert text == filled_in(text, {f"rivals-{name}": rivals_table(worlds[name], rivals)})
    assert all(score_losses(worlds[name], calls).precision < 0.5 for calls in rivals.values())


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
    on_spark, here = reconciled(corpora[name], tmp_path, engine="spark"), judged_corpora[name]
    assert verdicts(on_spark) == verdicts(here)
    results = [json.loads(judged.result.dumps()) for judged in (on_spark, here)]
    assert (results[0]["engine"], results[1]["engine"], results[1]["spark"]) == ("spark", "local", None)
    assert results[0]["spark"]["jobs"] <= 6
    shared = [{key: value for key, value in result.items() if key not in OF_THE_RUN} for result in results]
    root_of_the_other = here.result.inputs.otlp.sources[0].partition("/otlp")[0]
    assert _without_names(shared[0], tmp_path) == _without_names(shared[1], root_of_the_other)


def _without_names(result, root):
    return re.sub(r"part-\d+-[0-9a-f]+-", "part-", repr(result).replace(str(root), ""))


def test_corpora_expect_every_status_and_every_reason(corpora):
    truths = [corpus.truth for corpus in corpora.values()]
    wanted = [want for truth in truths for expected in truth.keys.values() for want in expected]
    wanted += [want for truth in truths for _, _, expected in truth.among for want in expected]
    statuses = {want.status for want in wanted} | {"MALFORMED" for truth in truths if truth.malformed}
    reasons = {want.reason for want in wanted} | {scope for truth in truths for scope in truth.scopes}
    assert statuses == {status.value for status in Status}
    assert {reason.value for reason in Reason} <= reasons
