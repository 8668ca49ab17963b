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

from otel_mqtrace._errors import UsageError, describe_install
from otel_mqtrace.doctor.checks import NO_PROPAGATOR
from otel_mqtrace.doctor.run_report import REPORT_DIRECTORY

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from otel_mqtrace.doctor.checks import Checkup

_FORWARDED: Final = ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGQUIT")
_INSTRUMENTED: Final = "instrumented"
_STARTERS: Final = ("opentelemetry-instrument", "opentelemetry.instrumentation.auto_instrumentation")
_NO_TRACE_CONTEXT: Final = frozenset({"baggage"})
"""Headers of propagators that carry no trace."""
_CAUSE: Final = "not delivered"
"""What an exporter's line about a loss has in it."""


def run_command(command: Sequence[str], environ: Mapping[str, str]) -> tuple[int, list[dict[str, Any]]]:
    """Run ``command`` to its end, its input, output and signals untouched; return its exit code and the reports.

    An exit code below zero is the number of the signal that ended it. Raises ``UsageError`` when it cannot be started.
    """
    with tempfile.TemporaryDirectory(prefix="mqtrace-doctor-") as directory:
        try:
            process = subprocess.Popen(command, env={**environ, REPORT_DIRECTORY: directory})
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or error
            raise UsageError(
                f"{shlex.quote(command[0])} cannot be started: {why}; name a program that can be run"
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
        checkup.error(
            "not_instrumented", f"the command {failed}never switched mqtrace on", where="the command", fix=fix
        )
        return None
    for each in reports:
        _judge_process(checkup, each)
    accounts = [(each["ended"], lane) for each in reports for lanes in each["processors"] for lane in lanes.values()]
    if any(has_ended for has_ended, _ in accounts) and not any(account["offered"] for _, account in accounts):
        checkup.warning(
            "nothing_recorded",
            "not one span was recorded: no traced client sent or handled a message, or the sampler dropped all",
            where="the command",
            fix="see the other findings; check OTEL_TRACES_SAMPLER, MQTRACE_TOPIC_EXCLUDE and MQTRACE_TRACE_TOPIC",
        )
    outcomes = [client["outcome"] for each in reports for client in each["clients"].values()]
    if set(outcomes) == {"no_client"}:
        checkup.error(
            "client_missing",
            "no client that could be traced is installed",
            where="the command",
            fix=f"into its environment: {describe_install('kafka')}",
        )
    elif _INSTRUMENTED not in outcomes and checkup.healthy:
        checkup.error(
            "not_instrumented",
            "no client was instrumented",
            where="the command",
            fix=f"into its environment: {describe_install('kafka')}",
        )
    return next((each["application_servers"] for each in reports if each["application_servers"]), None)


def _judge_process(checkup: Checkup, report: Mapping[str, Any]) -> None:
    """Judge one process: each client, and then once what its clients share."""
    process = f"{report['program']} (pid {report['pid']})"
    traced = []
    for name, client in report["clients"].items():
        if client["outcome"] == _INSTRUMENTED:
            traced.append(client)
            for kind, (code, severity, what, fix) in _UNTRACED.items():
                note = checkup.error if severity == "error" else checkup.warning
                for found in client["survey"].get(kind, ()):
                    note(code, what.format(name=found), where=f"{process}, {name}", fix=fix)
        else:
            _report_uninstrumented(checkup, name, client["outcome"], process)
    for why in report["refused_exporters"].values():
        fix = "install what it lacks, or name another in MQTRACE_EXPORTERS"
        checkup.error("exporter_not_attached", why, where=process, fix=fix)
    if traced:
        _judge_recording(checkup, report, traced, process)
    for warning in report["warnings"]:
        if not _is_found(checkup, warning):
            checkup.warning("warned", f"it warned: {warning}", where=process, fix="follow the warning")


_EXPLAINED: Final = {
    "stepped_back": "already wraps",
    "client_broken": "cannot be imported",
    "no_provider": "without an SDK TracerProvider",
    "spans_lost": "lost",
}
"""Finding → words of the equivalent warning."""


def _is_found(checkup: Checkup, warning: str) -> bool:
    return any(
        warning in each.what or warning in each.fix or (each.code in _EXPLAINED and _EXPLAINED[each.code] in warning)
        for each in checkup.findings
    )


def _report_uninstrumented(checkup: Checkup, client: str, outcome: str, process: str) -> None:
    """Report a client that was not instrumented, unless it is not installed."""
    kind, _, rest = outcome.partition(": ")
    where = f"{process}, {client}"
    if kind == "stepped_back":
        checkup.error(
            "stepped_back",
            f"mqtrace stepped back: {rest} wraps the client already",
            where=where,
            fix="switch the other one off, or set MQTRACE_ON_CONFLICT=wrap",
        )
    elif kind == "broken_client":
        checkup.error(
            "client_broken",
            f"{client} cannot be imported: {rest}",
            where=where,
            fix=f"fix what it lacks, pip install --force-reinstall {client}, "
            "or leave it out with OTEL_PYTHON_DISABLED_INSTRUMENTATIONS",
        )
    elif kind == "switched_off":
        checkup.error(
            "switched_off", "tracing is switched off", where=process, fix="unset MQTRACE_ENABLED, or set it to true"
        )


_UNTRACED: Final = {
    "unreached": (
        "name_bound_before",
        "warning",
        "{name} holds the client's own class, taken before instrument(): what it makes is not traced",
        "call instrument() before the module that holds it is imported",
    ),
    "untraceable": (
        "untraceable_class",
        "warning",
        (
            "{name} is not traced: this client lacks it, or its class was made before instrument(). Of such a class "
            "only a produce that names topic, headers and on_delivery (or callback), or *args and **kwargs, is traced"
        ),
        (
            "call instrument() before that module is imported, or let its produce name these, its other methods call "
            "self.produce, self.poll or self.consume, and its objects have a __dict__"
        ),
    ),
    "classes_made_later": (
        "class_of_original",
        "error",
        "{name} derives from the client's own class, by a name that was not rebound: its objects are not traced",
        "derive it from confluent_kafka's name after instrument(), or define it before",
    ),
    "clients_untraced": (
        "client_untraced",
        "error",
        "clients that are not traced are in use ({name}): made before instrument(), or by a name taken before",
        "make clients after instrument(), with confluent_kafka's own names",
    ),
    "wrappers": (
        "wrapped_twice",
        "warning",
        "{name} wraps the client on top of mqtrace: messages are traced twice, or by it alone",
        "switch one of the two off",
    ),
}
"""Kind in a survey → code, severity, words, fix."""


def _judge_recording(
    checkup: Checkup, report: Mapping[str, Any], traced: Sequence[Mapping[str, Any]], where: str
) -> None:
    if not report["ended"] and not report["running"]:
        checkup.warning(
            "ended_abruptly",
            "the process ended without its exit handlers: spans still queued are lost, and what it did is not known",
            where=where,
            fix="let it end by itself or on SIGINT, and handle SIGTERM by sys.exit()",
        )
    for client in traced:
        if not client["records"]:
            checkup.error(
                "no_provider",
                f"no span is recorded: the TracerProvider is {client['provider']}, and no SDK was set up",
                where=where,
                fix="install opentelemetry-distro and use opentelemetry-instrument, "
                "or call trace.set_tracer_provider()",
            )
    if not any(client["records"] for client in traced):
        return
    if not set(report["propagated"]) - _NO_TRACE_CONTEXT:
        checkup.error(
            "no_propagator",
            NO_PROPAGATOR,
            where=where,
            fix="set OTEL_PROPAGATORS=tracecontext,baggage; under OTEL_CONFIG_FILE, write propagator: into that file",
        )
    for lane, account in (lane for processor in report["processors"] for lane in processor.items()):
        _judge_lane(checkup, lane, account, report["warnings"], where)
    for reason, count in report["unrecorded"].items():
        if count:
            checkup.warning(
                "unrecorded",
                f"{count} never became a span: {reason}",
                where=where,
                fix="see 'What is counted' in docs/operations.md; report a 'failed in', unless a signal handler raised",
            )


def _judge_lane(checkup: Checkup, lane: str, account: Mapping[str, Any], warnings: Sequence[str], where: str) -> None:
    lost = {**account["dropped"], "failed": account["failed"]}
    causes = ", ".join(f"{reason}: {count}" for reason, count in lost.items() if count)
    if causes:
        why = next((each for each in reversed(warnings) if _CAUSE in each), None)
        checkup.error(
            "spans_lost",
            f"{lane} lost spans: {sum(lost.values())} of {account['offered']} ({causes})",
            where=where,
            fix="see 'What to alert on' in docs/operations.md: the destination refuses, is slow, or is away"
            if why is None
            else f"its log contains: {why}",
        )
