"""The other processes of the local engine: each runs one task at a time.

This module imports nothing heavy, so the workers import in parallel with the parent.
"""

from __future__ import annotations

import gc
import importlib
import os
import pickle
import select
import subprocess
import sys
import threading
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

from bridge.addresses import match_paths
from otel_mqtrace._errors import PeerError
from otel_mqtrace._program import YOUNG_OBJECTS, search_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

LONG_MAP: Final = 4
"""A map of so many tasks is long enough to have processes ready for it."""
_TASK_BYTES: Final = 4 << 20  # what a task reads of a small input, as in spark_jobs.sources.splits
_COMMAND: Final = """
import sys
sys.path[:] = filter(None, sys.path)  # without the working directory, which may have packages of our names
from spark_jobs.exchange.workers import serve
serve()
"""


def count_cores() -> int:
    """Return how many cores this process may use; macOS can only report all of them."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Worker:
    """A process that runs one task at a time."""

    def __init__(self, *modules: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", _COMMAND, *modules],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": search_path()},
            start_new_session=True,  # Ctrl-C is for this process: it stops the others
        )

    def run(self, function: Callable[[Any], Any], task: Any) -> Any:
        """Return what ``function(task)`` returns there.

        Raises:
            PeerError: the process has ended.
            Exception: what the function raised.
        """
        to, back = self._process.stdin, self._process.stdout
        try:
            pickle.dump((function, task), to)  # type: ignore[arg-type]
            to.flush()  # type: ignore[union-attr]
            is_done, answer = pickle.load(back)  # type: ignore[arg-type]  # noqa: S301 - our own process
        except (OSError, EOFError) as error:
            code = self._process.wait()
            raise PeerError(
                f"a process of the local engine ended ({code}); give it more memory, or use --engine spark"
            ) from error
        if not is_done:
            raise answer
        return answer

    def stop(self) -> None:
        """End the process, whatever it does."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            with suppress(BrokenPipeError):  # a task was still in the buffer when the process ended
                pipe.close()  # type: ignore[union-attr]


_started: Final[list[Worker]] = []


@contextmanager
def started_early(sources: Iterable[str], *modules: str) -> Iterator[None]:
    """Start as many processes as there are other cores, when the files that ``sources`` name are long to read.

    They import ``modules``, while this process does. The next ``LocalEngine`` takes them; the block stops those that
    none took.
    """
    cores, size = count_cores(), 0
    for file_bytes in _sizes(sources):
        size += file_bytes
        if size >= cores * LONG_MAP * _TASK_BYTES:
            break
    tasks = size // _TASK_BYTES
    if tasks >= LONG_MAP:
        _started.extend(Worker(*modules) for _ in range(min(cores, tasks) - 1 - len(_started)))
    try:
        yield
    finally:
        for worker in take_started():
            worker.stop()


def take_started() -> list[Worker]:
    """Return the processes that were started early, once."""
    taken = list(_started)
    _started.clear()
    return taken


def _sizes(sources: Iterable[str]) -> Iterator[int]:
    """Yield the sizes of local files in bytes, and a directory's own; what is elsewhere or cannot be read has none."""
    for path in (path for source in sources for path in match_paths(Path(source))):
        files = (Path(directory, name) for directory, _, names in os.walk(path) for name in names)
        for file in chain((path,), files):
            with suppress(OSError):
                yield file.stat().st_size


def serve() -> None:
    """Import the modules of the arguments, then run tasks from standard input until it ends.

    It ends at once when the parent has ended, whatever it does.
    """
    gc.set_threshold(YOUNG_OBJECTS)
    threading.Thread(target=_end_with_parent, name="mqtrace-parent", daemon=True).start()
    from spark_jobs.exchange.engine import leave_pandas_out, use_system_allocator  # noqa: PLC0415 - pyarrow

    use_system_allocator()
    leave_pandas_out()
    for module in sys.argv[1:]:
        importlib.import_module(module)
    tasks: IO[bytes] = sys.stdin.buffer
    with suppress(BrokenPipeError), os.fdopen(os.dup(sys.stdout.fileno()), "wb") as answers:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        while True:
            try:
                function, task = pickle.load(tasks)  # noqa: S301 - our own driver
            except EOFError:
                return
            try:
                answer = (True, function(task))
            except Exception as error:  # noqa: BLE001 - raised again by the driver
                answer = (False, error)
            pickle.dump(answer, answers)
            answers.flush()


def _end_with_parent() -> None:
    pipe = select.poll()
    pipe.register(sys.stdin.fileno(), 0)  # nothing but its end is waited for
    pipe.poll()
    os._exit(1)
