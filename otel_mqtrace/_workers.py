"""Background threads that never delay the exit of their process, and what a forked child runs at its start and end."""

from __future__ import annotations

import _thread
import os
import sys
import threading
import weakref
from contextlib import suppress
from importlib import import_module
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar

from otel_mqtrace._errors import SubinterpreterError, is_from_signal_handler

if TYPE_CHECKING:
    from collections.abc import Callable


def _is_main_interpreter() -> bool:
    with suppress(ImportError):
        interpreters = import_module("_interpreters" if sys.version_info >= (3, 13) else "_xxsubinterpreters")
        # An id alone before 3.13, a pair with the id first since.
        return bool(interpreters.get_current() == interpreters.get_main())
    return True


_IS_MAIN_INTERPRETER: Final = _is_main_interpreter()
"""Found out here: an import takes milliseconds, and the first call that needs to know is one of the application's."""


def refuse_subinterpreter() -> None:
    """Raise ``SubinterpreterError`` outside the main interpreter."""
    if not _IS_MAIN_INTERPRETER:
        raise SubinterpreterError


# -- forked children --------------------------------------------------------------------------------------------
class _Restarting(Protocol):
    def after_fork(self) -> None: ...


_T = TypeVar("_T")


class LiveObjects(Generic[_T]):
    """Objects held weakly; callable from any thread: a ``WeakSet`` raises when another thread adds to it meanwhile."""

    def __init__(self) -> None:
        self._objects: weakref.WeakValueDictionary[int, _T] = weakref.WeakValueDictionary()

    def add(self, item: _T) -> None:
        """Include ``item`` for as long as it exists."""
        self._objects[id(item)] = item

    def all(self) -> list[_T]:
        """Return what exists now."""
        return [each for reference in self._objects.valuerefs() if (each := reference()) is not None]


_forks: Final[list[None]] = []
_restarting: Final[LiveObjects[_Restarting]] = LiveObjects()
process_generation: Final[Callable[[], int]] = _forks.__len__
"""Return how often the process forked on its way here: a child does not end what its parent began."""


def restart_in_child(item: _Restarting) -> None:
    """Have ``item.after_fork()`` called in each forked child, for as long as ``item`` exists."""
    _restarting.add(item)


def _after_fork() -> None:
    _forks.append(None)
    failed: BaseException | None = None
    for item in _restarting.all():
        try:
            item.after_fork()
        except BaseException as error:  # noqa: BLE001 - a signal handler's: the others start over all the same
            failed = error
    if failed is not None:
        raise failed  # Python prints it


if hasattr(os, "register_at_fork"):  # can never be taken back: one for all
    os.register_at_fork(after_in_child=_after_fork)


def never_collect(item: object) -> None:
    """Keep ``item`` until the process is gone: its destructor does not run, as it would when the interpreter ends."""
    with suppress(ImportError):  # a Python can be built without
        ctypes: Any = import_module("ctypes")
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(item))


def at_child_exit(callback: Callable[[], object], *, priority: int) -> None:
    """Call ``callback`` at the end of a child that multiprocessing or Celery's billiard forked, by falling priority.

    Such a child leaves by ``os._exit``, past ``atexit``; in any other process this has no effect. Call it when the
    child runs the application's code: it clears its finalizers before.
    """
    for package in ("multiprocessing", "billiard"):
        process: Any = sys.modules.get(f"{package}.process")
        util: Any = sys.modules.get(f"{package}.util")
        if process is None or util is None or process.current_process()._parent_pid is None:  # noqa: SLF001 - billiard has no parent_process()
            continue
        if sys.modules[package].get_start_method() != "spawn":
            util.Finalize(None, callback, exitpriority=priority)
        worker: Any = getattr(process.current_process(), "_target", None)
        pool: Any = sys.modules.get("billiard.pool")
        if pool is not None and isinstance(worker, pool.Worker):  # Celery's, too: it ends them past their finalizers
            if not isinstance(worker.on_exit, _PoolExit):
                worker.on_exit = _PoolExit(worker.on_exit)
            worker.on_exit.callbacks.append((priority, callback))


class _PoolExit:
    """What a worker of billiard's pool calls at its end: what it called before, then ``callbacks`` by priority."""

    def __init__(self, before: Callable[[int, int], object] | None) -> None:
        self._before = before
        self.callbacks: list[tuple[int, Callable[[], object]]] = []

    def __call__(self, pid: int, exitcode: int) -> None:
        try:
            if self._before is not None:
                self._before(pid, exitcode)
        finally:
            for _, callback in sorted(self.callbacks, key=itemgetter(0), reverse=True):
                with suppress(Exception):  # the pool waits for what the worker does next
                    callback()


# -- threads ----------------------------------------------------------------------------------------------------
def has_greenlets() -> bool:
    """Return whether gevent has made greenlets of this process's threads."""
    monkey: Any = sys.modules.get("gevent.monkey")
    return monkey is not None and bool(monkey.is_module_patched("threading"))


def call_blocking(function: Callable[..., Any], *args: Any) -> Any:
    """Call a function of C code that blocks its thread; under gevent in a real one, or every greenlet would wait."""
    if not has_greenlets():
        return function(*args)
    gevent: Any = sys.modules["gevent"]
    result, error = gevent.get_hub().threadpool.apply(_call, (function, args))
    if error is not None:
        raise error
    return result


def _call(function: Callable[..., Any], args: tuple[Any, ...]) -> tuple[Any, BaseException | None]:
    try:
        return function(*args), None
    except BaseException as error:  # noqa: BLE001 - gevent's threads print what is raised there
        return None, error


class ProcessLock:
    """A ``lock`` that a signal handler may take while its thread holds it; a forked child has a new one."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        restart_in_child(self)

    def after_fork(self) -> None:
        """Forget a thread of the parent that holds the lock."""
        self.lock = threading.RLock()


class Worker:
    """Runs ``body`` on a daemon thread.

    A processor that never sees a span never starts one, nor does the parent of a pre-forking server. Under gevent,
    starting it runs no other greenlet: the caller may be a callback, inside a call of a client.
    """

    def __init__(self, name: str, body: Callable[[], None]) -> None:
        self._name = name
        self._body = body
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None
        self._has_begun = False
        self.running = False
        """Whether the thread lives or is being started; to gevent, `is_alive()` is an occasion to run others."""

    def ensure_running(self) -> bool:
        """Start the thread unless it lives; return ``False`` when there can be none, and the caller has to do the work.

        Python refuses threads while it shuts down. A subinterpreter gets none: it must not end before its threads.
        """
        if self.running:
            return True
        if not _IS_MAIN_INTERPRETER:
            return False
        if not self._starting.acquire(blocking=False):
            return True  # another thread is starting it; waiting here could hold up the application
        try:
            if not self.running:
                # Known before it runs: its very first step may have to recognise itself.
                self._thread = thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self.running, self._has_begun = True, False
                if not has_greenlets():
                    thread.start()
                else:
                    _thread.start_new_thread(thread.start, ())
        except BaseException as error:  # after a signal handler's, the thread begins soon or, as Python fails, never
            self.running = self._has_begun
            if not isinstance(error, RuntimeError) or is_from_signal_handler():
                raise
            return False
        finally:
            self._starting.release()
        return True

    def _run(self) -> None:
        self.running = self._has_begun = True
        try:
            self._body()
        finally:
            self.running = False

    @property
    def is_current(self) -> bool:
        """Return whether the caller is the worker itself, which must never wait for its own work."""
        return self._thread is threading.current_thread()

    def join(self, timeout_s: float) -> None:
        """Wait for the thread to end, at most ``timeout_s`` seconds."""
        if self._thread is not None and self._thread.is_alive() and not self.is_current:
            self._thread.join(max(timeout_s, 0.0))
