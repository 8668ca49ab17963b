"""Rules that a reader would otherwise have to remember."""

import ast
import re
from pathlib import Path

from tests.support.source_tree import PACKAGES, ROOT, all_files, name_of, shipped, tree_of

TIME_AND_THREADS = {
    "time": re.compile(r"otel_mqtrace/_clock\.py"),
    "threading": re.compile(
        r"(otel_mqtrace/(spans|clients|hooks|exporters|rocketmq|testing)/.*"
        r"|otel_mqtrace/(metrics|message_id|instrumentor|config)\.py|bridge/(forwarder|demo)/.*|spark_jobs/(terminal|exchange/local)\.py)",
    ),
}
NAMELESS = re.compile(r"^(utils?|helpers?|common|misc|.*_(utils?|helpers?|common))$")
HOLLOW_CLASS = re.compile(r"(Manager|Helper|Impl|Util|Utils)$|^Base[A-Z]")
MACHINE_WORDS = re.compile(
    r"""
    /(?:work|root|tmp|home/[a-z][^/]*)/              # somebody's disk
    | index[-_]url | find[-_]links | extra[-_]index   # where somebody's packages come from
    | https?://[^\s'"<>)]*(/simple\b|/repository/|\.maven\.)
    """,
    re.VERBOSE,
)
TEXT = {
    ".py",
    ".md",
    ".toml",
    ".txt",
    ".xml",
    ".yml",
    ".yaml",
    ".cfg",
    ".sh",
    ".properties",
    ".j2",
    ".html",
    ".css",
    "",
}


def _imports(path):
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module, node.lineno


def test_only_the_clock_knows_the_time_and_only_workers_know_threads():
    """Time is injected everywhere else, so that tests need not wait."""
    strays = [
        f"{name_of(path)}:{line} imports {module}"
        for path in shipped()
        for module, line in _imports(path)
        if module in TIME_AND_THREADS and not TIME_AND_THREADS[module].fullmatch(name_of(path))
    ]
    assert strays == []


def test_no_test_sleeps():
    calls = [
        f"{name_of(path)}:{node.lineno}"
        for path in ROOT.glob("tests/**/*.py")
        if "sleep(" in path.read_text(encoding="utf-8")
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in {"time.sleep", "sleep", "asyncio.sleep"}
    ]
    assert calls == []


def test_the_library_never_imports_what_is_built_on_it():
    """``spark_jobs`` → ``bridge`` → ``otel_mqtrace``, inside functions and type-checking blocks as well."""
    above = {"otel_mqtrace": ("bridge", "spark_jobs"), "bridge": ("spark_jobs",), "spark_jobs": ()}
    upward = [
        f"{name_of(path)}:{line} imports {module}"
        for path in shipped()
        for module, line in _imports(path)
        if module.split(".")[0] in above[path.relative_to(ROOT).parts[0]]
    ]
    assert upward == []


def test_spark_jobs_read_spans_as_data_and_never_run_the_sdk():
    """Of OpenTelemetry they know the wire format only; the SDK stays in the process that is observed."""
    strays = [
        f"{name_of(path)}:{line} imports {module}"
        for path in shipped()
        if path.is_relative_to(ROOT / "spark_jobs")
        for module, line in _imports(path)
        if module.startswith("opentelemetry.") and not module.startswith("opentelemetry.proto")
    ]
    assert strays == []


def test_files_and_classes_have_names_that_say_something():
    drawers = [name_of(path) for path in shipped() if NAMELESS.match(path.stem)]
    hollow = [
        f"{name_of(path)}:{node.name}"
        for path in shipped()
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.ClassDef) and HOLLOW_CLASS.search(node.name)
    ]
    assert (drawers, hollow) == ([], [])


def test_nothing_in_the_tree_belongs_to_one_machine():
    found = []
    for path in all_files():
        if path.suffix in TEXT and "vectors" not in path.parts and path.name != Path(__file__).name:
            lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
            found += [
                f"{name_of(path)}:{n}: {line.strip()[:80]}"
                for n, line in enumerate(lines, 1)
                if MACHINE_WORDS.search(line)
            ]
    assert found == []


def test_every_package_tells_type_checkers_that_it_is_typed():
    """PEP 561."""
    assert [package for package in PACKAGES if not (ROOT / package / "py.typed").is_file()] == []
