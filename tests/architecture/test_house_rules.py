"""The rules of the house: layers, clocks, names, sizes, docstrings and declared exports."""

import ast
import importlib
import pkgutil
import re
from functools import cache
from pathlib import Path
from statistics import median, quantiles
from unittest.mock import Mock, call

import pytest
from opentelemetry.metrics import Meter
from opentelemetry.semconv import _incubating, attributes

from otel_mqtrace import semconv
from otel_mqtrace.hooks.metrics import MessagingMetrics
from tests.support.programs import run_python
from tests.support.source_tree import PACKAGES, ROOT, all_files, line_count, name_of, shipped, tree_of

TIME_AND_THREADS = {
    "time": re.compile(r"otel_mqtrace/_clock\.py:"),
    "threading": re.compile(
        r"(otel_mqtrace/(spans|clients|hooks|exporters|rocketmq|testing)/.*"
        r"|otel_mqtrace/_workers\.py|bridge/(forwarder|demo)/.*|bridge/storage/locks\.py|spark_jobs/(terminal|exchange/(local|workers))\.py):"
    ),
}
NAMELESS = re.compile(r"^(utils?|helpers?|common|misc|.*_(utils?|helpers?|common))$")
HOLLOW_CLASS = re.compile(r"(Manager|Helper|Impl|Util|Utils)$|^Base[A-Z]")
MACHINE_WORDS = re.compile(
    r"""
    /(?:work|root|tmp|home/[a-z][^/]*)/              # a local disk
    | index[-_]url | find[-_]links | extra[-_]index   # a private package index
    | https?://[^\s'"<>)]*(/simple\b|/repository/|\.maven\.)
    """,
    re.VERBOSE,
)
TEXT = re.compile(r"(\.(py|md|toml|txt|xml|yml|yaml|cfg|sh|properties|j2|html|css))?")


def _nodes(kind, folder=""):
    for path in shipped():
        if path.is_relative_to(ROOT / folder):
            yield from (
                (f"{name_of(path)}:{node.lineno}", node) for node in ast.walk(tree_of(path)) if isinstance(node, kind)
            )


def _imports(folder=""):
    for where, node in _nodes((ast.Import, ast.ImportFrom), folder):
        if isinstance(node, ast.Import):
            yield from ((where, alias.name) for alias in node.names)
        elif node.module and not node.level:
            yield where, node.module


@pytest.mark.parametrize("module", TIME_AND_THREADS)
def test_only_the_clock_imports_time_and_only_workers_import_threading(module):
    """Time is injected everywhere else, so that tests need not wait."""
    strays = [where for where, name in _imports() if name == module and not TIME_AND_THREADS[module].match(where)]
    assert strays == []


def test_no_test_sleeps():
    calls = [
        f"{name_of(path)}:{node.lineno}"
        for path in ROOT.glob("tests/**/*.py")
        if "sleep" in path.read_text(encoding="utf-8")
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in {"time.sleep", "sleep", "asyncio.sleep"}
    ]
    assert calls == []


def test_spark_jobs_read_spans_as_data_and_never_run_the_sdk():
    """Of OpenTelemetry they know the wire format only; the SDK stays in the process that is observed."""
    names = [(where, name) for where, name in _imports("spark_jobs") if name.startswith("opentelemetry.")]
    assert [(where, name) for where, name in names if not name.startswith("opentelemetry.proto")] == []


def test_files_and_classes_have_no_generic_names():
    drawers = [name_of(path) for path in shipped() if NAMELESS.match(path.stem)]
    hollow = [f"{where} {node.name}" for where, node in _nodes(ast.ClassDef) if HOLLOW_CLASS.search(node.name)]
    assert (drawers, hollow) == ([], [])


def test_nothing_in_the_tree_belongs_to_one_machine():
    offences = []
    for path in all_files():
        if TEXT.fullmatch(path.suffix) and "vectors" not in path.parts and path.name != Path(__file__).name:
            lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
            offences += [
                f"{name_of(path)}:{n}: {line.strip()[:80]}"
                for n, line in enumerate(lines, 1)
                if MACHINE_WORDS.search(line)
            ]
    assert offences == []


def test_every_package_has_py_typed():
    assert [package for package in PACKAGES if not (ROOT / package / "py.typed").is_file()] == []


def _declared(path):
    for node in tree_of(path).body:
        targets = [node.target] if isinstance(node, ast.AnnAssign) else getattr(node, "targets", [])
        if any(isinstance(target, ast.Name) and target.id == "__all__" for target in targets):
            return ast.literal_eval(node.value)
    return None


def test_packages_that_applications_import_declare_their_names():
    """Inside the packages the underscore alone says what is private."""
    public = ("otel_mqtrace", "otel_mqtrace/testing", "otel_mqtrace/wire/native")
    assert [name for name in public if not _declared(ROOT / name / "__init__.py")] == []


def test_every_declared_name_exists_once_and_every_public_definition_is_declared():
    wrong, kinds = {}, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    for path in shipped():
        names = _declared(path)
        if names is not None:
            defined = {node.name for node in tree_of(path).body if isinstance(node, kinds) and node.name[0] != "_"}
            name = name_of(path).removesuffix(".py").removesuffix("/__init__").replace("/", ".")
            module = importlib.import_module(name)
            missing = [name for name in names if not hasattr(module, name)]
            if missing or len(names) != len(set(names)) or not defined <= set(names):
                wrong[name_of(path)] = names
    assert wrong == {}


@cache
def _function_lengths():
    functions = _nodes((ast.FunctionDef, ast.AsyncFunctionDef))
    return {f"{where} {node.name}": node.end_lineno - node.lineno + 1 for where, node in functions}


def test_no_file_is_longer_than_six_hundred_lines():
    paths = [*shipped(), *ROOT.glob("tests/**/*.py"), *ROOT.glob("tools/*.py")]
    too_long = {name_of(path): line_count(path) for path in paths if line_count(path) > 600}
    assert too_long == {}


def test_no_function_is_longer_than_sixty_lines():
    assert {name: lines for name, lines in _function_lengths().items() if lines > 60} == {}


def test_functions_are_short_in_the_median_and_at_the_ninetieth_percentile():
    lengths = list(_function_lengths().values())
    assert median(lengths) <= 10
    assert quantiles(lengths, n=10)[-1] <= 30


OURS = "mqtrace."


def _literals(*prefixes: str) -> dict[str, str]:
    return {name: value for name, value in vars(semconv).items() if name.startswith(prefixes) and "." in str(value)}


def test_registry_names_are_in_the_installed_conventions_package():
    ours_to_check = _literals("MESSAGING_", "SERVER_", "ERROR_", "NETWORK_", "CLIENT_")
    known = {"messaging.kafka.cluster.id"}  # newer than the package
    for package in (attributes, importlib.import_module(f"{_incubating.__name__}.attributes")):
        for info in pkgutil.iter_modules(package.__path__, prefix=f"{package.__name__}."):
            known |= {value for value in vars(importlib.import_module(info.name)).values() if isinstance(value, str)}
    missing = {name: value for name, value in ours_to_check.items() if value not in known}
    assert len(ours_to_check) > 10
    assert missing == {}


def test_instruments_are_those_of_the_installed_conventions_package():
    conventions, meter = importlib.import_module(f"{_incubating.__name__}.metrics.messaging_metrics"), Mock(Meter)
    MessagingMetrics(meter)
    instruments = [made for made in meter.method_calls if made.args[0].startswith("messaging.")]
    assert len(instruments) == 4
    for method, (name,), ours in instruments:
        getattr(conventions, f"create_{name.replace('.', '_')}")(theirs := Mock(Meter))
        ours.pop("explicit_bucket_boundaries_advisory", None)  # the package has no advice
        assert theirs.method_calls == [getattr(call, method)(name=name, **ours)]


def test_no_name_is_spelled_twice_and_own_names_stay_out_of_the_registry_namespace():
    values = [value for value in map(str, vars(semconv).values()) if value.startswith((OURS, "messaging."))]
    assert len(values) == len(set(values))
    assert [value for value in _literals("MQTRACE_").values() if not value.startswith(OURS)] == []


def test_clients_import_no_attribute_names():
    spelled = {value for value in vars(semconv).values() if isinstance(value, str) and "." in value}
    a_name = re.compile(r"(messaging|mqtrace(?!\.client\.)|server|error)\.[a-z_.]+\Z")  # mqtrace.client.… are metrics
    texts = [(where, node.value) for where, node in _nodes(ast.Constant, "otel_mqtrace/clients")]
    found = [(where, text) for where, text in texts if isinstance(text, str)]
    assert [(where, text) for where, text in found if text in spelled or a_name.match(text)] == []


@pytest.mark.parametrize("adapter", ["aiokafka", "rocketmq"])
def test_small_adapter_uses_no_attribute_constant(adapter):
    constants = [
        (where, node.attr)
        for where, node in _nodes(ast.Attribute, f"otel_mqtrace/clients/{adapter}")
        if isinstance(node.value, ast.Name) and node.value.id == "semconv"
    ]
    assert [(where, name) for where, name in constants if not name.startswith(("HEADER_", "SEND_"))] == []


TABLES = ("pyspark", "pandas", "pyarrow")
HEAVY_FOR_AN_APPLICATION = (*TABLES, "typer", "rich", "bridge", "spark_jobs", "jinja2", "prometheus_client")
FORBIDDEN = {
    "otel_mqtrace": (*HEAVY_FOR_AN_APPLICATION, "confluent_kafka", "opentelemetry.sdk"),
    "otel_mqtrace.instrumentor": HEAVY_FOR_AN_APPLICATION,
    "otel_mqtrace.model": (*HEAVY_FOR_AN_APPLICATION, "confluent_kafka", "opentelemetry"),
    "otel_mqtrace.semconv": (*HEAVY_FOR_AN_APPLICATION, "confluent_kafka", "opentelemetry"),
    "otel_mqtrace.wire.native": ("pyspark", "pyarrow", "typer", "rich", "confluent_kafka", "opentelemetry"),
    "otel_mqtrace.exporters.native_file": (*TABLES, "typer", "rich", "confluent_kafka"),
    "bridge.commands": (*TABLES, "confluent_kafka", "opentelemetry", "rich", "otel_mqtrace.wire.native"),
    "bridge.demo.command": (*TABLES, "confluent_kafka", "opentelemetry.sdk"),
    "bridge.forwarder.command": (*TABLES, "confluent_kafka", "opentelemetry.sdk"),
    "spark_jobs.commands": (*TABLES, "confluent_kafka", "opentelemetry", "rich"),
    "spark_jobs.report.files": ("pyspark", "pandas"),
    "spark_jobs.jobs.batch": ("pyspark", "pandas"),  # as an array made by an import would: 35 MiB a worker on Spark
}


@pytest.mark.parametrize("module", FORBIDDEN)
def test_import_loads_no_heavy_module(module):
    names = FORBIDDEN[module]
    code = f"import sys, {module}; print(*(n for n in {names!r} if n in sys.modules))"
    done = run_python(code, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == []
