"""Names and signatures that are promised and that no behaviour shows."""

import inspect
import re
import sys
from importlib.metadata import entry_points

import pytest
from opentelemetry.sdk.trace import SpanProcessor

import otel_mqtrace
from otel_mqtrace import MqTraceInstrumentor, MqTraceSpanProcessor
from tests.support.programs import run_program


def test_public_names():
    for name in ("MqTraceInstrumentor", "MqTraceSpanProcessor", "process", "SendHook", "ConsumeHook"):
        assert name in otel_mqtrace.__all__
        assert getattr(otel_mqtrace, name) is not None


def test_entry_point_of_the_instrumentor():
    """Another name than the incumbent's, so that disabling one does not disable the other."""
    (point,) = entry_points(group="opentelemetry_instrumentor", name="mqtrace_confluent_kafka")
    assert point.load() is MqTraceInstrumentor


def test_processor_signature():
    assert issubclass(MqTraceSpanProcessor, SpanProcessor)
    for method in ("on_start", "_on_ending", "on_end", "shutdown", "force_flush"):
        theirs = list(inspect.signature(getattr(SpanProcessor, method)).parameters)
        assert list(inspect.signature(getattr(MqTraceSpanProcessor, method)).parameters)[: len(theirs)] == theirs
    named = inspect.signature(MqTraceSpanProcessor).parameters
    assert {"drop_policy", "meter_provider", "clock", "export_timeout_millis", "shutdown_timeout_millis"} <= set(named)
    assert inspect.signature(MqTraceSpanProcessor.force_flush).parameters["timeout_millis"].default == 30_000


@pytest.mark.parametrize("name", ["mqtrace_native", "mqtrace_native_file", "mqtrace_native_rocketmq"])
def test_exporters_are_entry_points_with_plain_keywords(name):
    """Declarative configuration calls them with the YAML mapping."""
    (point,) = entry_points(group="opentelemetry_traces_exporter", name=name)
    parameters = inspect.signature(point.load()).parameters.values()
    assert {each.kind for each in parameters} == {inspect.Parameter.KEYWORD_ONLY}
    assert all(each.default is not inspect.Parameter.empty for each in parameters)


APPLICATION = """
from otel_mqtrace import process

@process
def handle(message: object, attempt: int = 1) -> str: return ""

@process(consumer=None)
async def handle_later(message: object) -> int: return 1

def poll(message: object) -> None:
    with process(message) as handling:
        reveal_type(handling)

reveal_type(handle)
reveal_type(handle_later)
"""


def test_type_checker_sees_what_process_returns(tmp_path, pytestconfig):
    """A decorator without types would make every handler of a strict application untyped."""
    (tmp_path / "application.py").write_text(APPLICATION)
    options = "--strict", "--follow-imports=silent", f"--cache-dir={pytestconfig.cache.mkdir('mypy')}"
    done = run_program(sys.executable, "-m", "mypy", *options, tmp_path / "application.py")
    assert done.returncode == 0, done.stdout
    assert re.findall(r'Revealed type is "(.*)"', done.stdout) == [
        "otel_mqtrace.hooks.outcome.Handling",
        "def (message: object, attempt: int =) -> str",
        "def (message: object) -> typing.Coroutine[Any, Any, int]",
    ]
