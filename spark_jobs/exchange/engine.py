"""What a run computes on: functions mapped over tasks, and rows exchanged between them."""

from __future__ import annotations

import mmap
import sys
from abc import ABC, abstractmethod
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

import pyarrow as pa

from bridge.storage.stores import current_settings, use_settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

_HELD: Final = 16
"""Answers that are merged together."""

_STATM: Final = Path("/proc/self/statm")
_MOST_KEPT: Final = 170 << 20
"""A worker on Spark that has imported all it needs holds 105 MiB; to judge a bucket takes 65."""

_Answer = TypeVar("_Answer")
Function: TypeAlias = "Callable[[Any], Any]"
"""Of a task; returns its answer."""
Pack: TypeAlias = "Callable[[Any], Iterable[tuple[int, bytes]]]"
"""Of a task; yields buckets and blobs."""
Receive: TypeAlias = "Callable[[int, list[bytes]], Any]"
"""Of the number of a bucket and its blobs; returns its answer."""
Merge: TypeAlias = "Callable[[Sequence[Any]], Any]"
"""Makes one answer of several."""


class Engine(ABC):
    """Runs picklable functions on picklable tasks, somewhere; Spark and this process have one each.

    A function may be called again for a task whose first call was lost: what it writes must come out the same.

    Attributes:
        name: ``spark`` or ``local``.
        parallelism: how many tasks run at once.
        bucket_rows: how many rows one of its processes judges at a time.
    """

    name: str
    parallelism: int
    bucket_rows: int

    @abstractmethod
    def map(self, function: Function, tasks: Sequence[Any], *, merge: Merge | None = None) -> list[Any]:
        """Return the answer of each task, in order; with ``merge``, which makes one of several, a few for all tasks."""

    @abstractmethod
    def exchange(
        self, pack: Pack, tasks: Sequence[Any], receive: Receive, buckets: int, *, merge: Merge | None = None
    ) -> list[Any]:
        """Shuffle the blobs of ``pack`` to their buckets; return the results of ``receive``, one a bucket with blobs.

        ``pack`` yields ``(bucket, blob)`` with ``0 <= bucket < buckets``. ``receive`` is called once a bucket, with its
        number and its blobs in no order. ``merge`` makes one of several results, where a few for all are wanted.
        """


def merge_along(answers: Iterable[_Answer], merge: Callable[[Sequence[_Answer]], _Answer]) -> _Answer:
    """Return one answer made of all; no more than a few are held at a time."""
    held: list[_Answer] = []
    for answer in answers:
        held.append(answer)
        if len(held) == _HELD:
            held[:] = [merge(held)]
    return held[0] if len(held) == 1 else merge(held)


def with_stores(function: Callable[..., _Answer]) -> Callable[..., _Answer]:
    """Return ``function`` for another process, which opens stores with the settings of this one."""
    return partial(_call_with, current_settings(), function)


def _call_with(settings: Mapping[str, str], function: Callable[..., _Answer], *arguments: Any) -> _Answer:
    use_settings(settings)
    return function(*arguments)


def use_system_allocator() -> None:
    """Have this worker's Arrow memory allocated by the C library, which gives back what is freed.

    A worker that judges 1 M events took 58 MiB less than with Arrow's own default, mimalloc.
    """
    pa.set_memory_pool(pa.system_memory_pool())


def release_memory() -> None:
    """Give back what the C library keeps of freed memory where it has become much, once a task or a bucket is done.

    To do so after every bucket costs a quarter of judging it: the next one takes the same pages again.
    """
    with suppress(OSError):  # not Linux
        pages = int(_STATM.read_text(encoding="ascii").split()[1])
        if pages * mmap.PAGESIZE > _MOST_KEPT:
            pa.default_memory_pool().release_unused()


class _PandasMissing:
    """A finder of modules that finds no pandas."""

    @staticmethod
    def find_spec(name: str, *_: object) -> None:
        if name == "pandas":
            raise ImportError(name)


def leave_pandas_out() -> None:
    """Defer pyarrow's import of pandas (0.35 s of CPU) until a data frame is made.

    Only for our own processes: their ``pyarrow.array`` never gets a pandas object.
    """
    finder: Any = _PandasMissing
    sys.meta_path.insert(0, finder)
    try:
        pa.array([])  # pyarrow looks for pandas now, and not again before it needs it
    finally:
        sys.meta_path.remove(finder)
