"""Real outputs conform to the shipped JSON Schemas, which are closed."""

import json
import sys
from importlib.resources import files

import pytest
from jsonschema import Draft202012Validator

from bridge.query.details import answer_json
from otel_mqtrace.model import TransactionState
from otel_mqtrace.wire.native import decode_body, explode
from spark_jobs import inspect
from tests.support.archives import ID, T0, answer_of, consume, end, landed, pub, recall, recorded_messages
from tests.support.native_vectors import RECORDED_FILES
from tests.support.programs import run_program
from tests.support.results import result
from tests.support.source_tree import ROOT

VECTORS = ROOT / "tests" / "vectors"
DUAL = sorted((VECTORS / "dual").iterdir())
SCHEMAS = {
    "result": ("spark_jobs.report", "result.schema.json"),
    "query": ("bridge.query", "query.schema.json"),
    "inspect": ("spark_jobs", "inspect.schema.json"),
}


def validator(name):
    package, file = SCHEMAS[name]
    return Draft202012Validator(json.loads((files(package) / file).read_text(encoding="utf-8")))


def faults(name, document):
    return [f"{error.json_path}: {error.message}" for error in validator(name).iter_errors(document)]


@pytest.mark.parametrize("name", SCHEMAS)
def test_schema_is_one_of_the_2020_12_dialect_and_closed(name):
    schema = validator(name).schema
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    Draft202012Validator.check_schema(schema)
    assert schema["additionalProperties"] is False
    assert set(schema["required"]) == set(schema["properties"])


def test_result_with_every_kind_of_finding_fits():
    """With ledger, graph, history, samples and NaN; a key too many, one too few and a wrong word do not fit."""
    document = json.loads(result().dumps())
    assert faults("result", document) == []
    assert faults("result", {**document, "more": 1})
    assert faults("result", {key: value for key, value in document.items() if key != "gates"})
    assert faults("result", {**document, "verdict": "fine"})
    assert faults("result", {**document, "conservation": {**document["conservation"], "more": 1}})


@pytest.mark.parametrize("folder", DUAL, ids=lambda folder: folder.name)
def test_result_of_a_recorded_application_fits(folder, tmp_path):
    sides = ["--native", folder / "native.jsonl", "--otlp", folder / "otlp.jsonl"]
    words = ["reconcile", *sides, "--out", tmp_path, "--engine", "local", "--complete"]
    done = run_program(sys.executable, "-m", "spark_jobs", *words, cwd=ROOT)
    document = json.loads((tmp_path / "result.json").read_text(encoding="utf-8"))
    assert document["exit_code"] == done.returncode
    assert faults("result", document) == []


@pytest.mark.parametrize("stem", RECORDED_FILES)
def test_answer_about_recorded_messages_fits(stem):
    messages = recorded_messages(stem)
    contexts = [each for message in messages for each in decode_body(message.body).contexts]
    ids = {bean.msg_id for each in contexts for one in explode(each) for bean in one.beans if bean.msg_id}
    answer = json.loads(json.dumps(answer_json(answer_of(messages, *ids, limit=len(ids)))))
    assert faults("query", answer) == []
    assert len(answer["messages"]) >= len(ids) / 2  # an empty or "null" id finds nothing


def test_answer_with_sends_ends_recalls_and_bad_records_fits():
    life = (pub(), *consume("R1", T0 + 5), end(T0 + 20, TransactionState.COMMIT_MESSAGE), recall(T0 + 30))
    story = landed(*life, extra=b"Pub\x01nonsense\x02")
    answer = json.loads(json.dumps(answer_json(answer_of(story, ID))))
    (message,) = answer["messages"]
    assert all(message[name] for name in ("sends", "transaction_ends", "recalls", "groups", "timeline"))
    assert faults("query", answer) == []
    assert faults("query", json.loads(json.dumps(answer_json(answer_of(story, "NOBODY"))))) == []
    assert faults("query", {**answer, "messages": [{**message, "more": 1}]})


@pytest.mark.parametrize(
    "source",
    [*(folder / name for folder in DUAL for name in ("native.jsonl", "otlp.jsonl")), VECTORS / "otlp" / "killed"],
    ids=lambda path: f"{path.parent.name}-{path.name}",
)
def test_inventory_of_recorded_input_fits(source, capsys):
    inspect.run([str(source)], as_json=True)
    document = json.loads(capsys.readouterr().out)
    assert faults("inspect", document) == []
    assert faults("inspect", {**document, "more": 1})


def test_inventory_with_bad_pieces_fits(tmp_path, capsys):
    path = tmp_path / "bad.jsonl"
    path.write_text('{"body_base64": "UHViAW5vbnNlbnNlAg=="}\n', encoding="utf-8")
    assert inspect.run([str(path)], as_json=True) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["bad"]
    assert faults("inspect", document) == []
