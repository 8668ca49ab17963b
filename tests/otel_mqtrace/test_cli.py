"""The command line: one line per error, the exit codes of the contract, and one command's trouble is its own."""

import os
import re
import signal
import sys
from importlib.metadata import EntryPoint, entry_points, version
from pathlib import Path
from typing import Annotated

import pytest
import typer
from rich.console import Console

from otel_mqtrace import cli
from otel_mqtrace._command_tree import COMMAND_GROUP, run
from otel_mqtrace._errors import MqTraceError, UsageError
from tests.support.native_vectors import RECORDED
from tests.support.programs import MQTRACE, run_program, run_python


def answers(*, number: Annotated[int, typer.Option(help="What to answer.")] = 3) -> int:
    """Answer with a number."""
    return number


def without_output() -> None:
    """Return nothing."""


ERRORS: dict[str, tuple[BaseException, str]] = {
    "usage": (UsageError("no such thing;\n  try another"), "error: no such thing; try another"),
    "system": (PermissionError(13, "Permission denied", "landing"), "error: landing: Permission denied"),
    "two": (
        PermissionError(13, "Permission denied", "a.tmp", None, "report.html"),
        "error: [Errno 13] Permission denied: 'a.tmp' -> 'report.html'",
    ),
    "gone": (
        FileNotFoundError(2, "No such file", "a.jsonl"),
        "error: a.jsonl: No such file; if it was removed or renamed meanwhile, run again",
    ),
    "hostile": (UsageError("\x1b[31mred\x07 \u202etxt"), "error: \\x1b[31mred\\x07 \\u202etxt"),
    "name": (
        UnicodeEncodeError("utf-8", "a\udcff", 1, 2, "surrogates not allowed"),
        "error: a\\udcff is not UTF-8: give it another name, or use a UTF-8 locale (LC_ALL=C.UTF-8)",
    ),
    "memory": (
        MemoryError("malloc of size 64 failed"),
        "error: out of memory (malloc of size 64 failed): give the process more, or less input",
    ),
    "thread": (
        RuntimeError("can't start new thread"),
        "error: cannot start a thread: raise ulimit -u, or a container's pids or memory",
    ),
    "loop": (
        RuntimeError("Symlink loop from 'a'"),
        "error: Symlink loop from 'a': a link that leads to itself; give another path",
    ),
    "interrupt": (KeyboardInterrupt(), "interrupted"),
    "defect": (
        ZeroDivisionError("nobody meant this"),
        (
            "error: unexpected ZeroDivisionError: nobody meant this; "
            "this is a defect of mqtrace: please report it with what MQTRACE_DEBUG=1 adds"
        ),
    ),
}
"""What :func:`fails` raises, by name, and the line about it."""


def fails(*, how: str = "usage", interrupted: bool = False) -> None:
    """Fail in the way that is asked for, after a Ctrl-C where that is asked for, too."""
    if interrupted:
        signal.raise_signal(signal.SIGINT)
    raise ERRORS[how][0]


def writes(*, lines: int = 1) -> int:
    """Write what stays in a buffer until it is flushed, or more than any pipe holds."""
    sys.stdout.write("line\n" * lines)
    return 3


def prints_a_table() -> int:
    """Print through rich, which ends a process whose reader has gone with 1."""
    Console().print("line")
    return 3


def streams() -> int:
    """Write bytes without an end."""
    while True:
        sys.stdout.buffer.write(b"line\n" * 200_000)


def _points(*names):
    return [EntryPoint(name, f"{__name__}:{name.replace('-', '_')}", COMMAND_GROUP) for name in names]


_BROKEN = EntryPoint("broken", "tests.support.no_such_module:command", COMMAND_GROUP)


@pytest.mark.parametrize(
    ("arguments", "code"),
    [(["answers"], 3), (["--", "answers"], 3), (["without-output"], 0)],
    ids=["number", "after two dashes", "nothing"],
)
def test_called_command_alone_is_imported_and_its_number_is_the_exit_code(arguments, code):
    assert run(arguments, [*_points("answers", "without-output"), _BROKEN]) == code


def test_broken_command_reports_its_error_when_called():
    with pytest.raises(MqTraceError, match=r"^mqtrace broken cannot be loaded \(.*no_such_module.*\); reinstall"):
        run(["broken", "--strange", "x", "--help"], [_BROKEN])


@pytest.mark.parametrize("arguments", [["--help"], []])
@pytest.mark.parametrize("target", ["tests.support.no_such_module:command", f"{__name__}:__name__"])
def test_help_lists_what_is_no_command_as_not_available(capsys, target, arguments):
    assert run(arguments, [*_points("answers"), EntryPoint("broken", target, COMMAND_GROUP)]) == 0
    shown = capsys.readouterr().out
    assert "Not available" in shown
    assert "Answer with a number" in shown


def test_shell_completion_lists_the_options_of_a_command(capsys, monkeypatch):
    monkeypatch.setenv("_MQTRACE_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "mqtrace answers --")
    monkeypatch.setenv("COMP_CWORD", "2")
    with pytest.raises(SystemExit):
        run([], _points("answers", "without-output"))
    assert "--number" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nope"], "No such command 'nope'"),
        (["answers", "--nope"], "No such option: --nope"),
        (["answers", "--number", "x"], "Invalid value for '--number'"),
        (["answers", "stray"], "unexpected extra argument"),
    ],
)
def test_wrong_command_line_is_a_usage_error(arguments, message):
    with pytest.raises(UsageError) as caught:
        run(arguments, _points("answers"))
    assert message in str(caught.value)
    assert "--help'" in str(caught.value)


@pytest.mark.parametrize("how", ERRORS)
def test_error_is_one_line_and_an_exit_code(how, capsys, monkeypatch):
    monkeypatch.delenv("MQTRACE_DEBUG", raising=False)
    assert cli.main(["fails", "--how", how], points=_points("fails")) == (130 if how == "interrupt" else 2)
    assert capsys.readouterr().err.lstrip("\n") == f"mqtrace: {ERRORS[how][1]}\n"


@pytest.mark.parametrize("how", ["usage", "defect"])
def test_failure_after_an_interrupt_is_the_interrupt(how, capsys):
    before = signal.signal(signal.SIGINT, lambda *_: None)  # a command that goes on for a moment
    try:
        assert cli.main(["fails", "--how", how, "--interrupted"], points=_points("fails")) == 130
    finally:
        signal.signal(signal.SIGINT, before)
    assert capsys.readouterr().err == "mqtrace: interrupted\n"


def test_defect_is_one_line_after_its_traceback_with_debug(capsys, monkeypatch):
    monkeypatch.setenv("MQTRACE_DEBUG", "1")
    assert cli.main(["fails", "--how", "defect"], points=_points("fails")) == 2
    shown = capsys.readouterr().err.lstrip("\n")
    assert shown.startswith("Traceback (most recent call last):")
    assert shown.endswith(f"\nmqtrace: {ERRORS['defect'][1]}\n")


@pytest.mark.parametrize(
    ("command", "code"),
    [("writes --lines 200000", 3), ("writes --lines 1", 3), ("prints-a-table", 3), ("streams", 141)],
)
def test_reader_that_has_gone_changes_no_exit_code_and_ends_a_stream(command, code):
    read, write = os.pipe()
    os.close(read)
    script = (
        f"import sys; from otel_mqtrace.cli import main; from {__name__} import _points;"
        "sys.exit(main(sys.argv[1:], points=_points(sys.argv[1])))"
    )
    with os.fdopen(write, "wb") as pipe:
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
        done = run_python(script, *command.split(), stdout=pipe, env=environment)
    assert (done.returncode, done.stderr) == (code, "")


needs_full = pytest.mark.skipif(not Path("/dev/full").exists(), reason="no file here that is always full")


def _run_redirected(redirection, *words, **environment):
    program = "import sys; from otel_mqtrace._program import start; sys.exit(start())"
    shell = "/bin/sh", "-c", f'exec "$0" "$@" {redirection}'
    return run_program(*shell, sys.executable, "-c", program, *words, env={**os.environ, **environment})


@needs_full
@pytest.mark.parametrize("stderr", ["2>&-", "2>/dev/full"], ids=["closed", "full"])
@pytest.mark.parametrize(("typed", "code"), [("{}", 1), ("no json", 1), (None, 2)])
def test_command_whose_stderr_cannot_be_written_keeps_its_exit_code(tmp_path, stderr, typed, code):
    """1 would mean a failed gate of a reconciliation."""
    file = tmp_path / "records.jsonl"
    if typed is not None:
        file.write_text(typed + "\n")
    done = _run_redirected(stderr, "encode", file)
    assert (done.returncode, done.stdout) == (code, "")


@needs_full
@pytest.mark.parametrize("buffered", [True, False])
@pytest.mark.parametrize("arguments", ["--help", "--version", "dialects", "decode FILE", "inspect FILE", "query FILE"])
def test_full_standard_output_is_one_line(arguments, buffered):
    words = [str(RECORDED / "rocketmq-4.9.8.jsonl") if word == "FILE" else word for word in arguments.split()]
    done = _run_redirected(">/dev/full", *words, PYTHONUNBUFFERED="" if buffered else "1")
    assert done.stderr == "mqtrace: error: cannot write to standard output: no space left on device\n"
    assert done.returncode == 2


def test_removed_working_directory_is_named(tmp_path, monkeypatch, capsys):
    (gone := tmp_path / "gone").mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert cli.main(["reconcile", "--native", "/a", "--otlp", "/a", "--out", "o", "--history", "h"]) == 2
    assert capsys.readouterr().err.endswith("; the working directory was removed: change to another\n")


_FORWARD = ("forward", "--source", "kafka://127.0.0.1:1/trace", "--landing", "landing", "--once")
_ONE_SPAN = bytes.fromhex("0a11120f120d120831323334353637382a0178")  # what only protobuf can read
_RECONCILE = ("reconcile", "--native", "body.bin", "--otlp", "body.bin", "--out", "report")


@pytest.mark.parametrize(
    ("module", "arguments", "extra"),
    [
        ("typer", ("decode",), "cli"),
        ("google", ("inspect", "body.bin"), "reconcile"),
        ("opentelemetry.proto", ("inspect", "body.bin"), "reconcile"),
        ("confluent_kafka", _FORWARD, "kafka"),
        ("pyspark", (*_RECONCILE, "--engine", "spark"), "spark"),
        ("pyarrow", _RECONCILE, "reconcile"),
        *((module, (*_RECONCILE, "--engine", "local"), "reconcile") for module in ("jinja2", "markupsafe")),
    ],
)
def test_command_without_its_extra_reports_it(tmp_path, module, arguments, extra):
    (tmp_path / "body.bin").write_bytes(_ONE_SPAN if arguments[0] == "inspect" else b"")
    program, option, code = MQTRACE
    done = run_program(program, option, f"import sys; sys.modules[{module!r}] = None; {code}", *arguments, cwd=tmp_path)
    message = f"needs the '{extra}' extra: pip install 'otel-mqtrace[{extra}]', or '.[{extra}]' in a checkout"
    assert (done.returncode, done.stdout) == (2, "")
    assert re.fullmatch(f"mqtrace: error: .*{re.escape(message)}\n", done.stderr)


@pytest.mark.parametrize("point", entry_points(group=COMMAND_GROUP), ids=lambda point: point.name)
def test_every_command_has_help_with_exit_codes_and_an_example(point, capsys):
    assert run([point.name, "--help"], [point]) == 0
    shown = capsys.readouterr().out
    assert shown.count("Exit codes: 0") == 1
    assert "130 interrupted" in " ".join(shown.split())
    assert shown.count("Example:") == 1
    assert f"mqtrace {point.name}" in shown.split("Example:")[1]


_SIGNALLED = """
import atexit, os, signal, sys, weakref
signal.signal(signal.SIGINT, signal.default_int_handler)  # the whole run may have been started in the background
"""
_DURING_IMPORT = """
class Interrupting:
    def find_spec(self, name, path, target=None):
        if name == "otel_mqtrace.cli":
            os.kill(os.getpid(), signal.NUMBER)
sys.meta_path.insert(0, Interrupting())
"""
_AT_THE_END = _DURING_IMPORT.replace("os.kill(", "atexit.register(os.kill, ") + 'sys.argv[1:] = ["--version"]\n'
_AFTER_THE_END = """
class Last:
    def __del__(self, kill=os.kill, process=os.getpid(), number=signal.NUMBER): kill(process, number)
sys.last = Last()
sys.argv[1:] = ["--version"]
"""
_DURING_THE_REPORT = """
class Interrupting:
    def write(self, text):
        sys.stderr = sys.__stderr__
        os.kill(os.getpid(), signal.NUMBER)
        while True: pass
sys.stderr = Interrupting()
sys.argv[1:] = ["decode", "no-such-file"]
"""
_IN_A_WEAKREF_CALLBACK = """
class Interrupting:
    def find_spec(self, name, path, target=None):
        if name == "otel_mqtrace._command_tree":
            self.gone = weakref.ref(Interrupting(), lambda _: os.kill(os.getpid(), signal.NUMBER))
            while True: pass  # a pause would miss a signal that comes just before it
sys.meta_path.insert(0, Interrupting())
"""


@pytest.mark.parametrize(("number", "code"), [("SIGINT", 130), ("SIGTERM", 143), ("SIGHUP", 129)])
@pytest.mark.parametrize(
    "when",
    [_DURING_IMPORT, _AT_THE_END, _AFTER_THE_END, _DURING_THE_REPORT, _IN_A_WEAKREF_CALLBACK],
    ids=["imports", "end", "teardown", "report", "weakref callback"],
)
def test_signal_outside_the_command_is_one_line(when, number, code):
    program = (
        f"{_SIGNALLED}{when.replace('NUMBER', number)}\nfrom otel_mqtrace._program import start\nsys.exit(start())"
    )
    done = run_python(program)
    is_over = when == _AFTER_THE_END  # the exit code is settled
    assert (done.returncode, done.stderr) == ((0, "") if is_over else (code, "mqtrace: interrupted\n"))


@pytest.mark.parametrize("arguments", [["--version"], ["-V"], ["decode", "-V"]])
def test_version_is_that_of_the_distribution(arguments, capsys):
    assert cli.main(arguments) == 0
    assert capsys.readouterr().out == f"mqtrace {version('otel-mqtrace')}\n"


@pytest.mark.parametrize("closed", [">&-", "<&- >&-", ">&- 2>&-", "2>&-"])
@pytest.mark.parametrize("arguments", ["-V", "dialects"])
def test_closed_standard_output_is_an_error(arguments, closed):
    done = _run_redirected(closed, arguments)
    line = "mqtrace: error: cannot write to standard output: bad file descriptor\n"
    assert done.returncode == (2 if closed != "2>&-" else 0)
    assert done.stderr == ("" if "2>&-" in closed else line)
