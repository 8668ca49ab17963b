"""Begin and end of the ``mqtrace`` command: one line per error, and which exit code it means.

The commands themselves are entry points (``_command_tree``), so that a missing extra costs one command, not all.
"""

from __future__ import annotations

import io
import os
import signal
import sys
import traceback
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from otel_mqtrace._errors import NO_ROOM, MissingExtraError, MqTraceError, describe_write_fix

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from importlib.metadata import EntryPoint
    from types import FrameType

_EXIT_USAGE = 2
_EXIT_INTERRUPTED = 130
_EXIT_PIPE_CLOSED = 141
_DEBUG = "MQTRACE_DEBUG"
_STDOUT = "standard output"
_NOT_UTF8 = "surrogates not allowed"  # which stand for the bytes of such an argument or file name
_LOOP = "Symlink loop from "
_NO_THREAD = ("can't start new thread", "Failed to launch worker thread")  # of Python, of pyarrow
_MOST_CHARACTERS = 300  # a JVM puts its whole stack into the text


def main(arguments: Sequence[str] | None = None, *, points: Iterable[EntryPoint] | None = None) -> int:
    """Run one ``mqtrace`` command and return its exit code.

    ``arguments`` defaults to the process's own, ``points`` (the commands) to the installed ones. An ``MqTraceError``,
    ``OSError`` or ``MemoryError`` is one line on standard error and exit code 2; an interrupt, and any failure after
    it, the line "interrupted" and 130. Any other exception is a defect: one line and 2 (1 is a failed gate), with its
    traceback under ``MQTRACE_DEBUG=1``.
    """
    if not sys.stderr:  # closed by the caller (2>&-): no command needs to check it
        sys.stderr = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115  open to the end
    with _note_interrupts() as interrupts, _open_stream("stderr", _Messages), _open_stream("stdout", _Output):
        given = sys.argv[1:] if arguments is None else list(arguments)
        try:
            code = _run(given, points)
        except KeyboardInterrupt:
            return _report_interrupt()
        except BrokenPipeError:
            return _EXIT_PIPE_CLOSED
        except Exception as error:  # noqa: BLE001  judged below
            # On a terminal Ctrl-C reaches the JVM as well: a call to it then fails in any way it can.
            return _report_interrupt() if interrupts else _report_error(error, given)
        return _report_interrupt() if code == _EXIT_INTERRUPTED else code  # typer answers an interrupt itself


def _report_error(error: Exception, arguments: Sequence[str]) -> int:
    sys.stderr.write(f"mqtrace: error: {_describe(error, arguments)}\n")
    return _EXIT_USAGE  # never 1, which means a failed gate


def _describe(error: Exception, arguments: Sequence[str]) -> str:  # noqa: PLR0911 - one for each kind of error
    """Return what is wrong and how to fix it; a defect's traceback is printed under ``MQTRACE_DEBUG=1``."""
    if isinstance(error, OSError) and error.filename == _STDOUT:
        return f"cannot write to {_STDOUT}: {(error.strerror or '').lower()}"
    if isinstance(error, (MqTraceError, OSError)):
        return f"{_to_one_line(_strip_errno(error))}{_find_fix(error)}"
    if isinstance(error, MemoryError):  # pyarrow's among them, which names a size
        why = f" ({_to_one_line(error)})" if str(error) else ""
        return f"out of memory{why}: give the process more, or less input"
    if isinstance(error, RuntimeError) and str(error).startswith(_LOOP):  # of Path.resolve(), before Python 3.13
        return f"{_to_one_line(error)}: a link that leads to itself; give another path"
    if any(sign in str(error) for sign in _NO_THREAD):
        return "cannot start a thread: raise ulimit -u, or a container's pids or memory"
    if isinstance(error, UnicodeEncodeError) and error.reason == _NOT_UTF8:
        name = _to_one_line(_find_argument(error.object, arguments))
        return f"{name} is not UTF-8: give it another name, or use a UTF-8 locale (LC_ALL=C.UTF-8)"
    if os.environ.get(_DEBUG, "") not in {"", "0"}:
        traceback.print_exception(error)
    text = _to_one_line(error)
    text = text if len(text) <= _MOST_CHARACTERS else f"{text[:_MOST_CHARACTERS]}…"
    report = f"this is a defect of mqtrace: please report it with what {_DEBUG}=1 adds"
    return f"unexpected {type(error).__name__}: {text}; {report}"


def _strip_errno(error: Exception) -> Exception | str:
    """Return the file and the reason of a system error about one file; any other error as it is."""
    if isinstance(error, OSError) and error.filename and error.strerror and not error.filename2:
        return f"{error.filename}: {error.strerror}"
    return error


def _find_argument(name: str, arguments: Sequence[str]) -> str:
    """Return the argument that gave a file's name which is not UTF-8, after its option; else the name itself."""
    for before, argument in zip(["", *arguments], arguments, strict=False):
        option, _, value = argument.partition("=") if argument.startswith("--") else (before, "", argument)
        if value in name and any("\ud800" <= character <= "\udfff" for character in value):
            return f"{option} {value}" if option.startswith("--") else value
    return name


def _find_fix(error: Exception) -> str:
    """Return what to add to a system error that names no fix: the fix, or an empty text."""
    if isinstance(error, OSError) and error.errno in NO_ROOM:
        return f"; {describe_write_fix(error, 'set TMPDIR to a disk with room')}"
    if isinstance(error, FileNotFoundError) and error.filename:
        return "; if it was removed or renamed meanwhile, run again"
    if isinstance(error, FileNotFoundError):  # os.getcwd() raises it
        with suppress(FileNotFoundError):
            Path.cwd()
            return ""
        return "; the working directory was removed: change to another"
    return ""


class _RawOutput(io.FileIO):
    """The bytes of a standard stream; its errors name standard output, for those of standard error are dropped.

    A write takes all of the data. Under ``PYTHONUNBUFFERED`` no buffer writes the rest of what the system did not take,
    as when the process is stopped and continued (Ctrl-Z) in the middle of a write to a pipe.
    """

    def write(self, data: Any) -> int:
        view, done = memoryview(data).cast("B"), 0
        try:
            while True:
                written = super().write(view[done:])
                done += written or 0  # None where the stream would block and must not
                if not written or done == len(view):
                    return done or written
        except OSError as error:
            error.filename = _STDOUT
            raise


class _Output(io.TextIOWrapper):
    """Standard output that drops text without a reader; bytes written to ``buffer`` raise ``BrokenPipeError``."""

    lost: ClassVar[type[OSError]] = BrokenPipeError
    """The error at which text is dropped."""
    has_lost_reader = False
    """Whether a write found no reader; a command that streams text can then stop."""

    def write(self, text: str) -> int:
        with self._dropping():
            super().write(text)
        return len(text)

    def flush(self) -> None:
        with self._dropping():
            super().flush()

    @contextmanager
    def _dropping(self) -> Iterator[None]:
        try:
            yield
        except self.lost:
            self.has_lost_reader = True


class _Messages(_Output):
    """Standard error that drops what cannot be written: a disk full of logs must not change an exit code."""

    lost = OSError


@contextmanager
def _open_stream(name: str, kind: type[_Output]) -> Iterator[None]:
    """Replace a standard stream while the block runs; a character that its encoding lacks is written as an escape."""
    before = getattr(sys, name)
    if not isinstance(before, io.TextIOWrapper):
        yield
        return
    before.flush()
    buffer: Any = before.buffer
    with suppress(io.UnsupportedOperation):  # a stream in memory
        raw = _RawOutput(before.fileno(), "wb", closefd=False)
        buffer = io.BufferedWriter(raw) if isinstance(buffer, io.BufferedWriter) else raw
    stream = kind(
        buffer,
        before.encoding,
        "backslashreplace",
        line_buffering=before.line_buffering,
        write_through=before.write_through,
    )
    setattr(sys, name, stream)
    try:
        yield
    finally:
        setattr(sys, name, before)
        try:
            stream.detach().flush()
        except OSError:  # else the interpreter tries again at its end, and complains
            os.dup2(os.open(os.devnull, os.O_WRONLY), before.fileno())


@contextmanager
def _note_interrupts() -> Iterator[list[int]]:
    """Yield the list of interrupts that arrive while the block runs; each is also handled as before."""
    interrupts: list[int] = []
    before = signal.getsignal(signal.SIGINT)

    def note(number: int, frame: FrameType | None) -> None:
        interrupts.append(number)
        if callable(before):
            before(number, frame)

    if not callable(before):  # ignored, as in a background job of a shell
        yield interrupts
        return
    try:
        signal.signal(signal.SIGINT, note)
    except ValueError:  # not the main thread, where no signal arrives
        yield interrupts
        return
    try:
        yield interrupts
    finally:
        if signal.getsignal(signal.SIGINT) is note:
            signal.signal(signal.SIGINT, before)


def _report_interrupt() -> int:
    sys.stderr.write("mqtrace: interrupted\n")
    return _EXIT_INTERRUPTED


def _run(arguments: list[str], points: Iterable[EntryPoint] | None) -> int:
    try:
        from otel_mqtrace._command_tree import run  # noqa: PLC0415  typer comes with the 'cli' extra
    except ImportError as error:
        raise MissingExtraError("the mqtrace command", "cli") from error
    code = run(arguments, points)
    sys.stdout.flush()
    return code


def _to_one_line(error: object) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)
