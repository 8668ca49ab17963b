"""The command ``mqtrace doctor``: options, order of the checks, output."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from otel_mqtrace._clock import SystemClock
from otel_mqtrace._errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping


def doctor(
    command: Annotated[list[str] | None, typer.Argument(help="A command to watch, after --.", metavar="CMD")] = None,
    *,
    probe: Annotated[
        bool, typer.Option("--probe", help="Measure the brokers' clock: writes two messages to a temporary topic.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON as the last line: healthy, findings, facts.")
    ] = False,
) -> int:
    """Report what is instrumented and what silently is not, which servers do not answer, and how to fix it.

    Without a command it checks this environment. With a command it runs it unchanged and then lists what went untraced:
    names taken before instrument(), clients made before it, other instrumentations, spans lost. The command's own
    exit code is among the facts. Signals go to it: doctor reports, and ends with 0 or 1, once it has ended.

    Exit codes: 0 healthy, 1 findings, 2 wrong usage or a command that cannot be started, 130 interrupted.

    Example:
        mqtrace doctor
        mqtrace doctor --json -- opentelemetry-instrument python app.py
    """
    from otel_mqtrace.config import load_propagators  # noqa: PLC0415 - keep `mqtrace --help` fast

    load_propagators()  # one that is not installed is a finding, but breaks the imports below
    from otel_mqtrace.doctor.broker import examine_broker, examine_rocketmq  # noqa: PLC0415 - as above
    from otel_mqtrace.doctor.checks import examine_directories, examine_environment, examine_otlp  # noqa: PLC0415
    from otel_mqtrace.doctor.child_process import examine_reports, run_command  # noqa: PLC0415 - as above
    from otel_mqtrace.doctor.findings import Checkup  # noqa: PLC0415 - as above

    checkup = Checkup()
    servers = None
    if command:
        began_ns = SystemClock.monotonic_ns()
        try:
            code, reports = run_command(command, os.environ)
        except UsageError as error:
            if as_json:
                checkup.add("command_not_started", where="the command", error=error)
                sys.stdout.write(f"{json.dumps(checkup.as_dict())}\n")
            raise
        sys.stdout.write("\n")  # the command's output may end without one
        seconds = round((SystemClock.monotonic_ns() - began_ns) / 1e9, 1)
        run = {"arguments": len(command) - 1, "program": command[0], "exit_code": code, "seconds": seconds}
        checkup.facts["command"] = run
        servers = examine_reports(checkup, reports, command)
    settings = examine_environment(checkup, os.environ)
    examine_directories(checkup, settings)
    examine_otlp(checkup, settings, os.environ)
    examine_broker(checkup, settings, servers=servers, probe=probe)
    examine_rocketmq(checkup, settings)
    if as_json:
        sys.stdout.write(f"{json.dumps(checkup.as_dict())}\n")
    else:
        _print_report(checkup.as_dict())
    return 0 if checkup.healthy else 1


def _print_report(report: Mapping[str, Any]) -> None:
    lines = _format_facts(report["facts"])
    for each in report["findings"]:
        lines += ["", f"{each['severity']}: {each['what']} ({each['code']})"]
        lines += [f"  where: {each['where']}", f"  fix: {each['fix']}"]
    if report["healthy"]:
        lines += ["", "healthy: nothing was found"]
    sys.stdout.write("".join(f"{line}\n" for line in lines))


_ONE_OF: Final = {"processes": "process", "processors": "processor", "warnings": "warning"}


def _format_facts(facts: Mapping[str, Any]) -> list[str]:
    lines = []
    for name, value in facts.items():
        if isinstance(value, dict):
            below = _format_facts(value)
            lines += [f"{name}:", *(f"  {line}" for line in below)] if below else []
        elif isinstance(value, list) and name in _ONE_OF:
            for number, each in enumerate(value, start=1):
                lines += _format_facts({f"{_ONE_OF[name]} {number}": each})
        elif isinstance(value, bool):
            lines.append(f"{name}: {str(value).lower()}")
        elif value is not None and value != []:
            lines.append(f"{name}: {', '.join(map(str, value)) if isinstance(value, list) else value}")
    return lines
