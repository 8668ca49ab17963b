"""Every command of ``mqtrace`` can be loaded, asked for help and shows an example."""

import inspect
import subprocess
import sys
from importlib.metadata import entry_points

import pytest

COMMANDS = sorted(entry_points(group="mqtrace.commands"), key=lambda entry: entry.name)


def test_there_are_commands_at_all():
    assert {"demo", "decode", "reconcile"} <= {entry.name for entry in COMMANDS}


@pytest.mark.parametrize("entry", COMMANDS, ids=lambda entry: entry.name)
def test_a_command_s_options_are_types_at_run_time(entry):
    """typer evaluates annotations: a name imported for type checkers only breaks the command."""
    signature = inspect.signature(entry.load(), eval_str=True)
    assert all(parameter.annotation is not inspect.Parameter.empty for parameter in signature.parameters.values())


@pytest.mark.parametrize("entry", COMMANDS, ids=lambda entry: entry.name)
def test_a_command_s_help_shows_an_example_of_itself(entry):
    ask = [sys.executable, "-c", "from otel_mqtrace.cli import main; raise SystemExit(main())", entry.name, "--help"]
    done = subprocess.run(ask, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    in_usage_and_in_example = 2
    assert done.stdout.count(f"mqtrace {entry.name}") >= in_usage_and_in_example, done.stdout
