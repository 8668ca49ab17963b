"""The cost of imports, each in an interpreter of its own, and of ``mqtrace --help``."""

import subprocess
import sys
import time
from functools import partial

from tests.proofs.bench.rows import Effort, Row, Target, compare, run_in_turns
from tests.support.source_tree import ROOT

_INSTRUMENTOR_IMPORT = "from otel_mqtrace import MqTraceInstrumentor"
_BASE_CLASS = "OpenTelemetry's base class for instrumentors"
_TYPER = "the help of a minimal typer program"
_BARE = "an empty interpreter"
_LIBRARY, _SDK = "import otel_mqtrace", "import opentelemetry.sdk.trace"
_BASE = "import opentelemetry.instrumentation.instrumentor"
_ROUNDS = 3
_TIMED = """
import sys, time
began = time.perf_counter_ns()
{statement}
took_ns = time.perf_counter_ns() - began
assert {module!r} in sys.modules
print(took_ns)
"""
_SMALLEST = "import sys, typer; sys.argv = ['small', '--help']; typer.run(lambda: None)"
_HELP = "import sys; from otel_mqtrace.cli import main; sys.argv = ['mqtrace', '--help']; sys.exit(main())"


def measure(effort: Effort) -> list[Row]:
    """Measure both imports and the help, in turns."""
    statements = {name: name for name in (_LIBRARY, _INSTRUMENTOR_IMPORT, _SDK)} | {_BASE_CLASS: _BASE}
    contenders = {name: partial(_imported_ms, statement) for name, statement in statements.items()}
    contenders |= {
        "help": partial(_started_ms, _HELP, "reconcile"),
        _BARE: partial(_started_ms, "print('ready')", "ready"),
        _TYPER: partial(_started_ms, _SMALLEST, "Usage"),
    }
    run_in_turns(contenders, 1)  # compile once
    took = run_in_turns(contenders, effort.rounds * _ROUNDS)
    anchor, limit, of_help = f"`{_SDK}`", Target("≤", 1.3), Target("≤", 300, "ms")
    return [
        compare(f"`{_LIBRARY}`", anchor, took[_LIBRARY], took[_SDK], "ms", limit),
        compare(f"`{_INSTRUMENTOR_IMPORT}`", anchor, took[_INSTRUMENTOR_IMPORT], took[_SDK], "ms", limit),
        compare("`mqtrace --help`", "none", took["help"], None, "ms", of_help, "including the interpreter"),
        *(compare(name, "none", took[name], None, "ms") for name in (_BASE_CLASS, _BARE, _TYPER)),
    ]


def _imported_ms(statement: str) -> float:
    code = _TIMED.format(statement=statement, module=statement.split()[1])
    return int(_run(code)) / 1e6


def _started_ms(code: str, word: str) -> float:
    began = time.perf_counter_ns()
    text = _run(code)
    took_ns = time.perf_counter_ns() - began
    assert word in text
    return took_ns / 1e6


def _run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout
