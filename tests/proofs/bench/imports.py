"""The cost of imports, each in an interpreter of its own, and of ``mqtrace --help``."""

import subprocess
import sys
import time
from functools import partial

from tests.proofs.bench.rows import Effort, Row, Target, beside, interleaved
from tests.support.source_tree import ROOT

SWITCH = "from otel_mqtrace import MqTraceInstrumentor"
INSTRUMENTOR = "OpenTelemetry's base class of an instrumentor"
TYPER = "the help of typer's smallest program"
_BARE = "an interpreter and nothing else"
_LIBRARY, _SDK = "import otel_mqtrace", "import opentelemetry.sdk.trace"
_BASE = "import opentelemetry.instrumentation.instrumentor"
_ROUNDS = 3  # times the usual ones: an interpreter is soon started, and each start is one figure
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


def measured(effort: Effort) -> list[Row]:
    """Measure both imports and the help, in turns."""
    statements = {name: name for name in (_LIBRARY, SWITCH, _SDK)} | {INSTRUMENTOR: _BASE}
    contenders = {name: partial(_imported_ms, statement) for name, statement in statements.items()}
    contenders |= {
        "help": partial(_started_ms, _HELP, "reconcile"),
        _BARE: partial(_started_ms, "print('ready')", "ready"),
        TYPER: partial(_started_ms, _SMALLEST, "Usage"),
    }
    interleaved(contenders, 1)  # whatever has to be compiled is compiled now
    took = interleaved(contenders, effort.rounds * _ROUNDS)
    anchor, limit = f"`{_SDK}`", Target("≤", 1.3)
    return [
        beside(f"`{_LIBRARY}`", anchor, took[_LIBRARY], took[_SDK], "ms", limit),
        beside(f"`{SWITCH}`", anchor, took[SWITCH], took[_SDK], "ms", limit, "what switches tracing on in code"),
        beside(
            "`mqtrace --help`", "none", took["help"], None, "ms", Target("≤", 300, "ms"), "with the interpreter's start"
        ),
        *(beside(name, "none", took[name], None, "ms") for name in (INSTRUMENTOR, _BARE, TYPER)),
    ]


def _imported_ms(statement: str) -> float:
    code = _TIMED.format(statement=statement, module=statement.split()[1])
    return int(_answered(code)) / 1e6


def _started_ms(code: str, word: str) -> float:
    began = time.perf_counter_ns()
    text = _answered(code)
    took_ns = time.perf_counter_ns() - began
    assert word in text
    return took_ns / 1e6


def _answered(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout
