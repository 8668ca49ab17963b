"""Start the ``mqtrace`` program: at any moment SIGINT, SIGTERM and SIGHUP end it with one line and 128 + their number.

Imports take a good part of a second before the first command runs, and the interpreter takes a while to exit. Without
this module an interrupt there prints a traceback.
"""

from __future__ import annotations

import atexit
import gc
import os
import signal
import sys
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator
    from types import FrameType

_BY_SIGNAL = 128
_STDERR = 2
YOUNG_OBJECTS = 50_000
"""The collector's first threshold: imports make 200,000 objects that stay, and collecting them took 0.07 s."""
_MOMENT_S = 0.01


def start() -> int:
    """Run the command of this process and return its exit code; see :func:`otel_mqtrace.cli.main`."""
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the shell
            # /dev/null takes the number of the closed stream, so that no other file gets it; stdout stays unwritable
            unused = os.open(os.devnull, os.O_WRONLY if name == "stderr" else os.O_RDONLY)
            os.set_inheritable(unused, True)  # noqa: FBT003 - as its name says
            if name != "stdin":  # a command reports that itself
                setattr(sys, name, os.fdopen(unused, "w", encoding="utf-8"))
    gc.set_threshold(YOUNG_OBJECTS)
    # A signal that is ignored stays so: SIGINT in a background job of a shell.
    terminating = {getattr(signal, name): signal.SIG_DFL for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)}
    defaults = {signal.SIGINT: signal.default_int_handler, **terminating}
    numbers = {number for number, handler in defaults.items() if signal.getsignal(number) is handler}
    # After its exit functions the interpreter restores the default handlers, but leaves an ignored signal so.
    atexit.register(_handle, numbers, signal.SIG_IGN)  # first registered, so called last
    _handle(numbers, _leave)
    try:
        return _run(numbers)
    finally:
        _handle(numbers, _leave)
        gc.freeze()  # else the interpreter collects all objects as it exits: 0.15 s after a reconciliation


def search_path() -> str:
    """Return where this process finds modules, as ``PYTHONPATH`` has it."""
    return os.pathsep.join(place or os.getcwd() for place in sys.path)  # noqa: PTH109 - no Path is needed


def _run(numbers: Collection[int]) -> int:
    from otel_mqtrace.cli import main  # noqa: PLC0415 - an interrupt of this import is what the module is for

    terminations: list[int] = []

    def terminate(number: int, frame: FrameType | None) -> None:
        terminations.append(number)
        handler = signal.getsignal(signal.SIGINT)
        (handler if callable(handler) else signal.default_int_handler)(number, frame)

    def repeat(lost: sys.UnraisableHookArgs) -> None:
        """Interrupt again in a moment: Python drops what a finalizer or the callback of a weak reference raises."""
        if not issubclass(lost.exc_type, KeyboardInterrupt) or not hasattr(signal, "setitimer"):
            sys.__unraisablehook__(lost)
            return
        number = terminations[0] if terminations else signal.SIGINT
        signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(number))
        signal.setitimer(signal.ITIMER_REAL, _MOMENT_S)

    sys.unraisablehook = repeat
    for number in numbers:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else terminate)
    try:
        code = main()
    except KeyboardInterrupt:  # one more, while the first one or an error was reported
        _leave(terminations[0] if terminations else signal.SIGINT, None)
    is_terminated = terminations and code == _BY_SIGNAL + signal.SIGINT
    return _BY_SIGNAL + terminations[0] if is_terminated else code


def _handle(numbers: Collection[int], handler: Callable[[int, object], NoReturn] | signal.Handlers) -> None:
    for number in numbers:
        signal.signal(number, handler)


def _leave(number: int, _frame: object) -> NoReturn:
    with suppress(OSError):
        os.write(_STDERR, b"mqtrace: interrupted\n")
    os._exit(_BY_SIGNAL + number)


@contextmanager
def delay_interrupt() -> Iterator[None]:
    """Deliver an interrupt after the block, to the handler that was set before it.

    A process that is interrupted while it starts would stay behind as an orphan. A second interrupt is not delayed.
    A termination, which the command takes for an interrupt, comes with its own number: SIGINT itself may be ignored.
    """
    before = signal.getsignal(signal.SIGINT)
    pressed: list[int] = []

    def hold(number: int, _frame: FrameType | None) -> None:
        if pressed:
            raise KeyboardInterrupt
        pressed.append(number)

    try:
        signal.signal(signal.SIGINT, hold)
    except ValueError:  # not the main thread, which alone gets signals
        yield
        return
    try:
        yield
    except Exception:
        if not pressed:  # else what it waited for may have got the signal, too: a JVM, where a group is terminated
            raise
    finally:
        signal.signal(signal.SIGINT, before or signal.SIG_DFL)
    if pressed:
        signal.raise_signal(pressed[0])
