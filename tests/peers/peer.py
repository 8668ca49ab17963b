"""What every peer has in common: whether it is wanted, its cache, its ports, its process."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import socket
import subprocess
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from random import SystemRandom
from tempfile import TemporaryDirectory
from threading import Event
from time import monotonic
from typing import TYPE_CHECKING

import pytest

from otel_mqtrace._errors import PeerError
from tests.support.programs import run_program

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import TypeVar

    Answer = TypeVar("Answer")

START_SECONDS, STOP_SECONDS, FETCH_SECONDS = 600, 20, 900  # a start that dies is noticed at once
_PROBE_SECONDS = 0.1
_FIRST_PORT, _END_OF_PORTS = 20_002, 65_000
_CONNECTION_PORTS = Path("/proc/sys/net/ipv4/ip_local_port_range")


class PeerUnavailableError(pytest.skip.Exception):
    """The peer cannot be had on this machine, or was not wanted: its text is the reason beside the skipped tests.

    A test or fixture that lets it pass is skipped.
    """


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
    """Return that many free loopback ports, which nothing else takes before the server opens them.

    Each is returned once, whichever process of this machine asks, and no system gives one to an outgoing connection. The
    one 2 below each is free too: RocketMQ's broker opens it beside its own.
    """
    low, high = _connection_ports()
    candidates = [port for port in range(_FIRST_PORT, _END_OF_PORTS, 4) if not low <= port <= high + 2]
    in_any_order = SystemRandom().sample(candidates, len(candidates))  # of its own: every test has one seed
    return list(islice((port for port in in_any_order if all(map(_is_free, (port, port - 2))) and _claim(port)), count))


def _connection_ports() -> tuple[int, int]:
    """Return the first and the last port that this system gives to outgoing connections."""
    try:
        low, high = map(int, _CONNECTION_PORTS.read_text(encoding="ascii").split())
    except FileNotFoundError:  # macOS
        return 49_152, 65_535
    return low, high


def _is_free(port: int) -> bool:
    with socket.socket() as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _claim(port: int) -> bool:
    """Hold the UDP port of this number, which no server wants, until this process ends; no other process can."""
    claim = socket.socket(type=socket.SOCK_DGRAM)
    try:
        claim.bind(("127.0.0.1", port))
    except OSError:
        claim.close()
        return False
    _CLAIMS.append(claim)
    return True


_CLAIMS: list[socket.socket] = []


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
        raise PeerBrokenError(f"{self.name} did not come up:\n{text[-6000:]}")

    def has_logged(self, text: bytes) -> bool:
        return text in self.log.read_bytes()

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


def made_once(target: Path, make: Callable[[Path], None]) -> Path:
    """Return ``target``, which ``make`` writes the first time: to another path, renamed to this one when it is complete.

    A second process waits for the first, whose lock the system frees however that process ends.
    """
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.with_name(f"{target.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.exists():
            with TemporaryDirectory(prefix=f"{target.name}.", dir=target.parent) as unfinished:
                beside = Path(unfinished) / target.name
                make(beside)
                beside.rename(target)
    return target


def jars_of(pom: Path, name: str) -> Path:
    """Return the folder with the jars that ``pom`` depends on, fetched by Maven the first time; ``name`` says whose.

    Raises:
        PeerUnavailableError: there is no Maven here, or it cannot fetch all of them, or not in time.
    """

    def fetch(folder: Path) -> None:
        maven = shutil.which("mvn")
        if maven is None:
            raise PeerUnavailableError(f"no Maven (mvn) on the path to fetch {name}'s jars with")
        command = [maven, "-B", "-q", "-ntp", "-f", str(pom), "dependency:copy-dependencies"]
        try:
            done = run_program(*command, f"-DoutputDirectory={folder}", timeout_s=FETCH_SECONDS)
        except subprocess.TimeoutExpired:
            raise PeerUnavailableError(f"Maven did not fetch {name}'s jars within {FETCH_SECONDS} s") from None
        if done.returncode:
            errors = [line for line in (done.stdout + done.stderr).splitlines() if "ERROR" in line]
            raise PeerUnavailableError(
                f"Maven could not fetch {name}'s jars: {(errors or ['no reason given'])[0][:300]}"
            )

    digest = hashlib.sha256(pom.read_bytes()).hexdigest()[:12]
    return made_once(peers_cache() / f"{name.lower()}-{digest}", fetch)
