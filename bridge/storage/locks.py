"""Hold a directory for one run: by a lock of this machine, or by a file in it where nothing can be locked."""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import socket
import tempfile
from contextlib import contextmanager, suppress
from datetime import datetime, timezone
from functools import cache
from pathlib import Path
from threading import Event, Thread
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from bridge.storage.paths import sorted_glob
from otel_mqtrace._clock import SystemClock
from otel_mqtrace._errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from bridge.storage.paths import AnyPath


LOCK_FILE: Final = ".lock-"
"""What the name of a file begins with by which a run holds the directory."""
_RENEWED_S, _FORGOTTEN_S = 15, 60


@contextmanager
def hold(directory: AnyPath, *, name: str) -> Iterator[Callable[[], None]]:
    """Hold ``directory`` for this block alone, and yield a check that it is still held; ``name`` is its option.

    It is created if absent, and removed again if the block leaves it empty. A lock of this machine ends with its
    process. In a store each run writes its own file ``.lock-…``, renews it every 15 s, and then looks for those of
    other runs. A file counts for 60 s, or until its process, on this machine, has ended. Two runs that start together
    may both be refused; never do both continue.

    Raises:
        UsageError: another run holds it, or it cannot be made or written to; from the check: another run took it.
    """
    try:
        absent = [path for path in (directory, *directory.parents) if isinstance(path, Path) and not path.exists()]
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot create {name} {directory}: {error.strerror}; choose another directory") from error
    with _lock(directory, name) if isinstance(directory, Path) else _announce(directory, name) as check:
        try:
            yield check
        finally:
            with suppress(OSError):  # it is not empty
                for path in absent:
                    path.rmdir()


@contextmanager
def _lock(directory: Path, name: str) -> Iterator[Callable[[], None]]:
    try:
        tempfile.TemporaryFile(dir=directory).close()
    except OSError as error:
        raise UsageError(f"cannot write to {name} {directory}: {error.strerror}; choose another directory") from error
    handle = os.open(directory, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise _in_use(directory, name) from error
        except OSError:  # a file system without locks
            with _announce(directory, name) as check:
                yield check
            return
        if not os.fstat(handle).st_nlink:  # its last holder removed it meanwhile
            raise _in_use(directory, name)
        yield lambda: None
    finally:
        os.close(handle)


@contextmanager
def _announce(directory: AnyPath, name: str) -> Iterator[Callable[[], None]]:
    mine = directory / f"{LOCK_FILE}{secrets.token_hex(4)}"
    since = datetime.fromtimestamp(SystemClock().wall_ns() / 1e9, timezone.utc)
    owner = {"machine": _machine(), "host": socket.gethostname(), "pid": os.getpid(), "since": f"{since:%FT%TZ}"}
    ended = Event()
    renewing = Thread(target=_renew, args=(mine, json.dumps(owner), ended), daemon=True)

    def check() -> None:
        if not mine.exists():
            raise UsageError(f"another run took {name} {directory} while this one paused for a minute: start it again")

    try:
        mine.write_text(json.dumps(owner))
        _refuse_others(directory, mine, name)
        renewing.start()
        yield check
    finally:
        ended.set()
        if renewing.ident:
            renewing.join()
        with suppress(OSError):
            mine.unlink(missing_ok=True)


def _renew(mine: AnyPath, text: str, ended: Event) -> None:
    while not ended.wait(_RENEWED_S):
        with suppress(OSError):  # the store may answer the next time
            if not mine.exists():
                return  # another run took the directory
            mine.write_text(text)


def _refuse_others(directory: AnyPath, mine: AnyPath, name: str) -> None:
    """Refuse a directory in which another run's file counts; remove those that count no more."""
    now_ns = mine.stat().st_mtime_ns  # by the store's clock
    for other in sorted_glob(directory, f"{LOCK_FILE}*"):
        if other == mine:
            continue
        owner: dict[str, Any] = {}
        try:
            age_s = (now_ns - other.stat().st_mtime_ns) / 1e9
            with suppress(ValueError):  # it is being written
                owner = json.loads(other.read_text())
        except FileNotFoundError:  # it ended meanwhile
            continue
        if age_s < _FORGOTTEN_S and not _has_ended(owner):
            raise _in_use(directory, name, owner)
        other.unlink(missing_ok=True)


def _in_use(directory: AnyPath, name: str, owner: Mapping[str, Any] = MappingProxyType({})) -> UsageError:
    who = f" (process {owner.get('pid')} on {owner.get('host')}, since {owner.get('since')})" if owner else ""
    return UsageError(f"{name} {directory} is in use by another run{who}: wait for it, or name another")


def _has_ended(owner: dict[str, Any]) -> bool:
    if owner.get("machine") != _machine():
        return False
    try:
        os.kill(int(owner["pid"]), 0)
    except ProcessLookupError:
        return True
    except OSError:  # it is another user's, and runs
        return False
    return False


@cache
def _machine() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return secrets.token_hex(8)  # then only a file's age counts
