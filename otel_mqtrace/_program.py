"""Start the ``mqtrace`` program: an interrupt is one line and exit code 130 from its first moment to its last.

Imports take a good part of a second before the first command runs, and an interpreter takes a while to end. Python
answers an interrupt there with a traceback.
"""

from __future__ import annotations

import os
import signal
import sys

_INTERRUPTED = 130
_STDERR = 2


def start() -> int:
    """Run the command of this process and return its exit code; see :func:`otel_mqtrace.cli.main`."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the shell: its text is lost, and nothing else
            unused = os.open(os.devnull, os.O_WRONLY)  # it gets the number of what is closed
            os.set_inheritable(unused, True)  # noqa: FBT003 - as its name says
            setattr(sys, name, os.fdopen(unused, "w", encoding="utf-8"))
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:  # ignored, as in a background job of a shell
        return _run(is_interruptible=False)
    signal.signal(signal.SIGINT, _leave)
    try:
        return _run(is_interruptible=True)
    finally:
        signal.signal(signal.SIGINT, _leave)


def _run(*, is_interruptible: bool) -> int:
    from otel_mqtrace.cli import main  # noqa: PLC0415 - an interrupt of this import is what the module is for

    if is_interruptible:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    return main()


def _leave(_number: int, _frame: object) -> None:
    os.write(_STDERR, b"mqtrace: interrupted\n")
    os._exit(_INTERRUPTED)
