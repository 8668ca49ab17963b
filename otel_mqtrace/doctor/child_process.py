"""Run a command unchanged, collect the reports of its processes, and judge them."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from otel_mqtrace._errors import UsageError, describe_install, describe_reason
from otel_mqtrace.doctor.checks import list_disabled
from otel_mqtrace.doctor.run_report import REPORT_DIRECTORY

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from otel_mqtrace.doctor.findings import Checkup

_FORWARDED: Final = ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGQUIT")
_INSTRUMENTED: Final = "instrumented"
_STARTERS: Final = ("opentelemetry-instrument", "opentelemetry.instrumentation.auto_instrumentation")
_NO_TRACE_CONTEXT: Final = frozenset({"baggage"})
"""Headers of propagators that carry no trace."""
_CAUSE: Final = "native traces are not "
"""What an exporter's line about a loss has in it."""


def run_command(command: Sequence[str], environ: Mapping[str, str]) -> tuple[int, list[dict[str, Any]]]:
    """Run ``command`` to its end, its input, output and signals untouched; return its exit code and the reports.

    An exit code below zero is the number of the signal that ended it. Raises ``UsageError`` when it cannot be started.
    """
    with tempfile.TemporaryDirectory(prefix="mqtrace-doctor-") as directory:
        try:
            process = subprocess.Popen(command, env={**environ, REPORT_DIRECTORY: directory})
        except (OSError, ValueError) as error:
            raise UsageError(
                f"{shlex.quote(command[0])} cannot be started: {describe_reason(error)}; name a program that can be run"
            ) from error
        with _passing_signals_to(process):
            code = process.wait()
        return code, [_read_report(path) for path in sorted(Path(directory).glob("*.json"))]


def _read_report(path: Path) -> dict[str, Any]:
    """Return the report of one process; with ``running`` it is not its last one.

    multiprocessing's resource tracker, for one, is instrumented as any process and ends after its parent.
    """
    is_running = _is_running(int(path.stem))  # before the file is read: what has ended has written its last report
    return {**json.loads(path.read_text("utf-8")), "running": is_running}


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except OSError as error:
        return not isinstance(error, ProcessLookupError)  # it may be another user's
    return True


@contextlib.contextmanager
def _passing_signals_to(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Hand on what is sent to us; Ctrl-C on a terminal reaches the command by itself, once."""

    def hand_on(number: int, _frame: object) -> None:
        if number == signal.SIGINT and sys.stdin is not None and sys.stdin.isatty():
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, number)

    numbers = [getattr(signal, name) for name in _FORWARDED if hasattr(signal, name)]
    before = {number: signal.signal(number, hand_on) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def examine_reports(checkup: Checkup, reports: list[dict[str, Any]], command: Sequence[str]) -> str | None:
    """Judge what the processes of ``command`` report; return the address of their own brokers, if one was seen."""
    checkup.facts["processes"] = reports
    if not reports:
        code = checkup.facts["command"]["exit_code"]
        failed, look = (f"ended with exit code {code} and ", "see what it printed; ") if code else ("", "")
        fix = f"{look}start it with opentelemetry-instrument, or call MqTraceInstrumentor().instrument() in it"
        if any(name in each for each in command for name in _STARTERS):  # behind `env`, `uv run` or `sh -c` as well
            fix = "see the error that OpenTelemetry's set-up printed; mqtrace must be installed and not disabled there"
        checkup.add("not_instrumented", where="the command", failed=failed, fix=fix)
        return None
    for each in reports:
        _judge_process(checkup, each)
    accounts = [(each["ended"], lane) for each in reports for lanes in each["processors"] for lane in lanes.values()]
    if any(has_ended for has_ended, _ in accounts) and not any(account["offered"] for _, account in accounts):
        checkup.add("nothing_recorded", where="the command")
    outcomes = [client["outcome"] for each in reports for client in each["clients"].values()]
    is_tried = not list_disabled(os.environ)  # else that is the finding
    if is_tried and set(outcomes) == {"no_client"}:
        checkup.add("client_missing/command", where="the command", install=describe_install("kafka"))
    elif is_tried and _INSTRUMENTED not in outcomes and checkup.healthy:
        checkup.add("not_instrumented/client", where="the command", install=describe_install("kafka"))
    return next((each["application_servers"] for each in reports if each["application_servers"]), None)


def _judge_process(checkup: Checkup, report: Mapping[str, Any]) -> None:
    """Judge one process: each client, and then once what its clients share."""
    process = f"{report['program']} (pid {report['pid']})"
    traced = []
    for name, client in report["clients"].items():
        outcome, _, why = client["outcome"].partition(": ")
        where = process if outcome == "switched_off" else f"{process}, {name}"
        if outcome in _UNINSTRUMENTED:
            checkup.add(_UNINSTRUMENTED[outcome], where=where, client=name, why=why)
        elif outcome == _INSTRUMENTED:
            traced.append(client)
            for kind, finding in _UNTRACED.items():
                for found in client["survey"].get(kind, ()):
                    checkup.add(finding, where=where, name=found)
    for why in report["refused_exporters"].values():
        checkup.add("exporter_not_attached", where=process, error=why)
    if traced:
        _judge_recording(checkup, report, traced, process)
    for warning in report["warnings"]:
        if not any(warning in each.what or warning in each.fix for each in checkup.findings):
            checkup.add("warned", where=process, warning=warning)


_UNINSTRUMENTED: Final = {
    "stepped_back": "stepped_back",
    "broken_client": "client_broken/command",
    "switched_off": "switched_off",
}
"""Outcome of ``instrument()`` → the finding; a client that is not installed is none."""
_UNTRACED: Final = {
    "unreached": "name_bound_before",
    "untraceable": "untraceable_class",
    "classes_made_later": "class_of_original",
    "clients_untraced": "client_untraced",
    "wrappers": "wrapped_twice",
}
"""Kind in a survey → the finding."""


def _judge_recording(
    checkup: Checkup, report: Mapping[str, Any], traced: Sequence[Mapping[str, Any]], where: str
) -> None:
    if not report["ended"] and not report["running"]:
        checkup.add("ended_abruptly", where=where)
    for client in traced:
        if not client["records"]:
            checkup.add("no_provider", where=where, provider=client["provider"])
    if not any(client["records"] for client in traced):
        return
    if not set(report["propagated"]) - _NO_TRACE_CONTEXT:
        checkup.add("no_propagator/command", where=where)
    for lane, account in (lane for processor in report["processors"] for lane in processor.items()):
        _judge_lane(checkup, lane, account, report["warnings"], where)
    for reason, count in report["unrecorded"].items():
        if count:
            checkup.add("unrecorded", where=where, count=count, reason=reason)


def _judge_lane(checkup: Checkup, lane: str, account: Mapping[str, Any], warnings: Sequence[str], where: str) -> None:
    lost = {**account["dropped"], "failed": account["failed"]}
    causes = ", ".join(f"{reason}: {count}" for reason, count in lost.items() if count)
    if causes:
        why = next((each for each in reversed(warnings) if _CAUSE in each), None)
        advice = "see 'What to alert on' in docs/operations.md: the destination refuses, is slow, or is away"
        fix = advice if why is None else f"its log contains: {why}"
        total, offered = sum(lost.values()), account["offered"]
        checkup.add("spans_lost", where=where, lane=lane, lost=total, offered=offered, causes=causes, fix=fix)
