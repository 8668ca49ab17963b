"""This module knows what a killed writer leaves behind: a part nobody will finish, whose lines are good all the same.

A living writer holds a lock on its file, which its death releases whatever killed it. So an unlocked part in progress
is an orphan, and the next writer gives it its name: the start of a handler that crashed the process is often in there.
JSON lines only; an unfinished parquet file has no footer, and its messages were never committed.
"""

from __future__ import annotations

import base64
import json
from typing import IO, TYPE_CHECKING, Final

from otel_mqtrace.landing.layout import BODY_BASE64, IN_PROGRESS_SUFFIX, LandedPart, native_directory

if TYPE_CHECKING:
    from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows: no advisory locks, hence no adoption
    fcntl = None  # type: ignore[assignment]

__all__ = ["LOCKS", "adopt_orphans", "claim"]

LOCKS: Final = fcntl is not None
"""Whether the living can be told from the dead here; without, nothing is ever adopted."""


def claim(file: IO[bytes]) -> bool:
    """Lock ``file`` for this process's life, or until it is closed; ``False`` when another process holds it."""
    if fcntl is None:
        return True
    try:
        fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def adopt_orphans(landing: Path) -> tuple[LandedPart, ...]:
    """Give every orphaned JSON-lines part its final name; return what they hold, a torn last line not counted.

    Empty ones are passed over: their writer may be just about to lock them.
    """
    if fcntl is None:
        return ()
    adopted = []
    for path in sorted(native_directory(landing).glob(f"date=*/.part-*.jsonl{IN_PROGRESS_SUFFIX}")):
        try:
            with path.open("rb") as file:
                if path.stat().st_size and claim(file):
                    adopted.append(_finish(path, file, native_directory(landing)))
        except (OSError, ValueError, KeyError):  # finished by somebody else in between, or not ours
            continue
    return tuple(adopted)


def _finish(path: Path, file: IO[bytes], native: Path) -> LandedPart:
    bodies_bytes: list[int] = []
    arrivals_ms: list[int] = []
    for line in file:
        if line.endswith(b"\n"):
            fields = json.loads(line)
            bodies_bytes.append(len(base64.b64decode(fields[BODY_BASE64])))
            arrivals_ms.append(fields["arrival_ms"])
    final = path.with_name(path.name.removeprefix(".").removesuffix(IN_PROGRESS_SUFFIX))
    path.rename(final)
    return LandedPart(
        file=final.relative_to(native).as_posix(),
        messages=len(bodies_bytes),
        body_bytes=sum(bodies_bytes),
        first_arrival_ms=min(arrivals_ms, default=0),
        last_arrival_ms=max(arrivals_ms, default=0),
    )
