"""What every peer has in common: whether it is wanted, its cache, its ports, its process."""

from __future__ import annotations

import hashlib
import os
import shutil
import socket
import subprocess
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from random import sample
from threading import Event
from time import monotonic
from typing import TYPE_CHECKING

from otel_mqtrace._errors import PeerError
from tests.support.programs import run_program

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import TypeVar

    Answer = TypeVar("Answer")

START_SECONDS, STOP_SECONDS, FETCH_SECONDS = 240, 20, 900
_PROBE_SECONDS = 0.1
_LOG_SHOWN = 6000
_FIRST_PORT, _FIRST_CONNECTION_PORT = 20_002, 32_768


class PeerUnavailableError(Exception):
    """The peer cannot be had on this machine, or was not wanted; its text is the reason beside the skipped tests."""


class PeerBrokenError(Exception):
    """The peer was there and did not come up: our recipe is wrong, and the tests fail."""


def wanted(names: Sequence[str], environment: Mapping[str, str]) -> dict[str, str | None]:
    """Return for every peer why it is not wanted, or ``None``: ``PEERS`` names the only ones, ``SKIP_PEERS`` the others.

    Raises ``ValueError`` for a name that no peer has: a misspelt one must not turn a test off, or on.
    """
    texts = (environment.get(name, "") for name in ("PEERS", "SKIP_PEERS"))
    only, skipped = ({name.strip() for name in text.split(",")} - {""} for text in texts)
    unknown = sorted((only | skipped) - set(names))
    if unknown:
        raise ValueError(f"PEERS and SKIP_PEERS know {', '.join(names)}, and not {', '.join(unknown)}")
    reasons = dict.fromkeys(names, None) | {name: "not named in PEERS" for name in names if only and name not in only}
    return reasons | dict.fromkeys(skipped, "named in SKIP_PEERS")


def peers_cache() -> Path:
    """Return the folder of this machine's user in which fetched and built peers are kept."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "otel-mqtrace" / "peers"


def free_ports(count: int) -> list[int]:
    """Return that many free loopback ports, which no outgoing connection takes before the server opens them.

    They lie below the ports that systems give to connections, and the one 2 below each is free too: RocketMQ's broker
    opens it beside its own.
    """
    candidates = range(_FIRST_PORT, _FIRST_CONNECTION_PORT, 4)
    free = (port for port in sample(candidates, len(candidates)) if all(map(_is_free, (port, port - 2))))
    return list(islice(free, count))


def _is_free(port: int) -> bool:
    with socket.socket() as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def until(ask: Callable[[], Answer], enough: Callable[[Answer], bool], *, patience_s: float) -> Answer:
    """Return the first answer that is enough; when none is in time, the last one, for the caller to say what lacks."""
    pause, deadline = Event(), monotonic() + patience_s
    while not enough(answer := ask()) and monotonic() < deadline:
        pause.wait(_PROBE_SECONDS)
    return answer


@dataclass
class ServerProcess:
    """One server process with its log in ``log``: started until it answers, stopped by its own handle."""

    name: str
    log: Path
    directory: Path | None = None
    _process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    def start(self, command: Sequence[str], environment: Mapping[str, str], answers: Callable[[], bool]) -> None:
        """Start it, its output added to the log, and return when ``answers()``; ``PeerBrokenError`` when it never does."""
        with self.log.open("ab") as log:
            own, streams = {**os.environ, **environment}, {"stdin": subprocess.DEVNULL, "stderr": subprocess.STDOUT}
            self._process = subprocess.Popen(command, cwd=self.directory, env=own, stdout=log, **streams)
        pause, deadline = Event(), monotonic() + START_SECONDS
        while monotonic() < deadline and self._process.poll() is None:
            with suppress(OSError, PeerError):  # not yet
                if answers():
                    return
            pause.wait(_PROBE_SECONDS)
        self.kill()
        text = self.log.read_text(encoding="utf-8", errors="replace")
        raise PeerBrokenError(f"{self.name} did not come up:\n{text[-_LOG_SHOWN:]}")

    def stop(self, patience_s: float = STOP_SECONDS) -> int | None:
        """Ask it to end, and return its exit code; ``None`` when it had to be killed."""
        code = None
        if self._process is not None:
            self._process.terminate()
            with suppress(subprocess.TimeoutExpired):
                code = self._process.wait(patience_s)
        self.kill()
        return code

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._process = None


def jars_of(pom: Path, name: str) -> Path:
    """Return the folder with the jars that ``pom`` depends on, fetched by Maven the first time; ``name`` says whose."""
    digest = hashlib.sha256(pom.read_bytes()).hexdigest()[:12]
    target = peers_cache() / f"{name.lower()}-{digest}"
    if target.is_dir():
        return target
    maven = shutil.which("mvn")
    if maven is None:
        raise PeerUnavailableError(f"no Maven (mvn) on the path to fetch {name}'s jars with")
    beside = target.with_name(f"{target.name}.{os.getpid()}")
    command = [maven, "-B", "-q", "-ntp", "-f", str(pom), "dependency:copy-dependencies"]
    # Fetched beside and renamed: an interrupted fetch must not look complete.
    try:
        done = run_program(*command, f"-DoutputDirectory={beside}", timeout_s=FETCH_SECONDS)
    except subprocess.TimeoutExpired:
        raise PeerUnavailableError(f"Maven did not fetch {name}'s jars within {FETCH_SECONDS} s") from None
    if done.returncode:
        errors = [line for line in (done.stdout + done.stderr).splitlines() if "ERROR" in line]
        raise PeerUnavailableError(f"Maven could not fetch {name}'s jars: {(errors or ['no reason given'])[0][:300]}")
    beside.rename(target)
    return target
