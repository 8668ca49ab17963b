"""Blocks of code in the documents are carried out, in a world made as they describe it.

Commands of README, quick start and the how-to guides are those of ``make test-install``; here the other pages' run.
"""

import inspect
import shutil
import signal

import pytest
from confluent_kafka import Consumer, Producer
from opentelemetry.sdk.trace import TracerProvider

import otel_mqtrace
from spark_jobs.policy.policy import read_policy
from tests.support.consuming import poll
from tests.support.documented_world import application_run, documented_world
from tests.support.documents import INSTALLED, blocks

# A page of the command line's own help: the same commands stand in the guides.
GUIDES = [block for block in blocks() if block.page != "docs/reference/command-line.md"]


def _in(language):
    return [block for block in GUIDES if block.language == language]


@pytest.fixture(scope="session")
def left(tmp_path_factory):
    return application_run(tmp_path_factory.mktemp("application"))


@pytest.fixture
def world(left):
    with documented_world(left) as made:
        yield made


@pytest.fixture
def home(left, tmp_path):
    return shutil.copytree(left.home, tmp_path / "home", symlinks=True)


def test_every_block_has_a_language():
    assert [str(block) for block in GUIDES if block.language not in {"sh", "python", "toml", "yaml", "text"}] == []


@pytest.mark.parametrize("block", _in("text"), ids=str)
def test_block_of_text_has_no_command(block):
    assert not [
        line for line in block.text.splitlines() if line.startswith(("mqtrace ", "make ", "python ", "import "))
    ]


@pytest.mark.parametrize("block", [each for each in _in("sh") if not each.page.startswith(INSTALLED)], ids=str)
def test_commands_of_a_page_work(world, home, block):
    if "forward" in block.text and "files:" not in block.text:
        shutil.rmtree(home / "landing")  # the block makes it
    world.run(world.placed(block.text), home, on_spark=False)


def test_source_that_is_not_there_fails_a_block_that_only_looks_it_up(world, home):
    with pytest.raises(AssertionError, match=r"nowhere\.jsonl"):
        world.run("mqtrace reconcile --native landing --otlp nowhere.jsonl --out o", home, on_spark=False)


class _EnoughError(Exception):
    pass


@pytest.fixture
def namespace(world):
    """What the pages' Python speaks of without making it: a message, a consumer, a handler."""
    tracing = otel_mqtrace.MqTraceInstrumentor()
    tracing.instrument(tracer_provider=TracerProvider(), exporters=[])
    servers = {"bootstrap.servers": world.kafka.bootstrap_servers}
    producer = Producer(servers)
    for _ in range(2):  # one for the page, one for its functions
        producer.produce("orders", "paid")
    assert producer.flush(20) == 0
    consumer = Consumer({**servers, "group.id": f"documents-{id(producer)}", "auto.offset.reset": "earliest"})
    consumer.subscribe(["orders"])
    message = poll(consumer)
    before = signal.getsignal(signal.SIGTERM)
    yield {
        "message": message,
        "consumer": consumer,
        "current_tenant": lambda: "shop",
        "MqTraceInstrumentor": otel_mqtrace.MqTraceInstrumentor,
    }
    signal.signal(signal.SIGTERM, before)
    consumer.close()
    for each in (tracing, otel_mqtrace.AioKafkaInstrumentor(), otel_mqtrace.RocketMqInstrumentor()):
        if each.is_instrumented_by_opentelemetry:
            each.uninstrument()


@pytest.mark.parametrize("block", _in("python"), ids=str)
def test_python_runs(world, home, namespace, monkeypatch, block):
    monkeypatch.chdir(home)
    handled = []

    def handle(message):
        handled.append(message)
        raise _EnoughError

    known = {**namespace, "handle": handle, "out": None, "span": None, "call": None}
    given = dict(known)
    exec(compile(world.placed(block.text), str(block), "exec"), given)
    defined = [value for name, value in given.items() if inspect.isfunction(value) and known.get(name) is not value]
    for function in defined:
        parameters = list(inspect.signature(function).parameters)
        if "consumer" in parameters:
            with pytest.raises(_EnoughError):
                function(*(given[name] for name in parameters))
            assert handled


@pytest.mark.parametrize("block", _in("toml"), ids=str)
def test_policy_block_is_read(tmp_path, block):
    (tmp_path / "policy.toml").write_text(block.text, encoding="utf-8")
    assert read_policy(tmp_path / "policy.toml")


@pytest.mark.parametrize("block", _in("yaml"), ids=str)
def test_a_declarative_configuration_starts_an_application(world, home, block):
    assert "tracecontext" in block.text, "without a propagator no message carries its trace, and nothing warns of it"
    (home / "otel.yaml").write_text(block.text, encoding="utf-8")
    shutil.rmtree(home / "landing")
    world.run("opentelemetry-instrument python app.py", home, OTEL_CONFIG_FILE="otel.yaml")
    assert list((home / "landing").rglob("part-*.jsonl"))
