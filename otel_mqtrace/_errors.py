"""The exceptions that a user of the project may catch, and those that a signal handler of theirs raises."""

from __future__ import annotations

import errno
import json
import signal
import sys
import traceback
from typing import Any, Final

NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""The system errors of a full disk, a used-up quota, and a file beyond ``ulimit -f``."""


def describe_reason(error: object) -> str:
    """Return the text of an error; of one of the system, without its number."""
    return str(getattr(error, "strerror", None) or error)


DAMAGE: Final = (OSError, ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError)
"""What reading a damaged file of JSON can raise."""


def describe_damage(error: Exception) -> str:
    """Return why a file of JSON that we wrote cannot be read back."""
    is_of_reading = isinstance(error, OSError | json.JSONDecodeError)
    return describe_reason(error) if is_of_reading else "its content is not what mqtrace writes there"


def describe_write_fix(error: OSError, elsewhere: str) -> str:
    """Return how to fix that a file cannot be written; ``elsewhere`` says how to have it written somewhere else."""
    if error.errno == errno.EFBIG:
        return "raise ulimit -f"
    return f"free space, or {elsewhere}" if error.errno in NO_ROOM else elsewhere


def describe_install(extras: str) -> str:
    """Return the command that installs extras, from the package index or from a checkout."""
    return f"pip install 'otel-mqtrace[{extras}]', or '.[{extras}]' in a checkout"


class MqTraceError(Exception):
    """Root of every exception raised on purpose; its text is one line that names the fix."""


class UsageError(MqTraceError):
    """A wrong option, path or value given by the caller."""


class MissingExtraError(MqTraceError, ImportError):
    """A feature whose optional dependency is absent."""

    def __init__(self, feature: str, extra: str) -> None:
        super().__init__(f"{feature} needs the '{extra}' extra: {describe_install(extra)}")
        self.extra = extra


class SubinterpreterError(MqTraceError, RuntimeError):
    """Something that owns threads and fork hooks was built outside the main interpreter."""

    def __init__(self) -> None:
        super().__init__(
            "spans cannot be exported from a subinterpreter, whose threads and fork hooks are not its own: "
            "run the application in the main interpreter (mod_wsgi: WSGIApplicationGroup %{GLOBAL})"
        )


class EncodeError(MqTraceError, ValueError):
    """A TraceContext that the chosen dialect of the native format cannot express; ``field`` is the one at fault."""

    def __init__(self, message: str, *, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


class PeerError(MqTraceError):
    """A broker, Collector or JVM that was needed and did not answer."""


class UnreadableInputError(MqTraceError):
    """A source that exists but cannot be read as what it was given for."""


def is_from_signal_handler() -> bool:
    """Return whether one of the process's signal handlers raised the exception being handled.

    Such an exception interrupts any code and is meant for the application, as Celery's ``SoftTimeLimitExceeded``. The
    handler must be a function, a method or a partial of them: its code is looked for in the traceback.
    """
    error: Any = sys.exc_info()[1]
    codes = {frame.f_code for frame, _ in traceback.walk_tb(getattr(error, "__traceback__", None))}
    if len(codes) <= 1:  # raised where it is handled, or by the client's C code: a full queue, mostly
        return isinstance(error, KeyboardInterrupt)
    handlers = map(signal.getsignal, range(1, signal.NSIG))
    return not codes.isdisjoint(getattr(getattr(each, "func", each), "__code__", None) for each in handlers)


def reraise_from_signal_handler() -> None:
    """Raise the exception being handled again if a signal handler raised it."""
    if is_from_signal_handler():
        raise  # noqa: PLE0704 - of a variable it would be in a cycle with its traceback


def raised_failure() -> Exception:
    """Return the failure being handled; what is no ``Exception``, as Ctrl-C and ``sys.exit()``, is raised again.

    confluent-kafka's ``KafkaError`` can be raised although it is not even a ``BaseException``: a bare ``except`` alone
    catches it. A RuntimeError with its text stands for it.
    """
    error: Any = sys.exc_info()[1]
    if isinstance(error, BaseException) and not isinstance(error, Exception):
        raise  # noqa: PLE0704 - as above
    return error if isinstance(error, Exception) else RuntimeError(str(error)).with_traceback(sys.exc_info()[2])
