"""Build a peer from Go modules once per machine, in the background if asked early enough.

::

    python -m tests.peers.go_build collector jaeger     # builds what is not in the cache yet, one after the other

A second build waits for the first.
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.peers.peer import PeerBrokenError, PeerUnavailableError, made_once, peers_cache
from tests.support.programs import run_program

HERE = Path(__file__).resolve().parent
FETCH_SECONDS, BUILD_SECONDS = 600, 1500
_JAEGER = "github.com/jaegertracing/jaeger"
_PROMETHEUS = "github.com/prometheus/prometheus"


@dataclass(frozen=True)
class GoProgram:
    """A program to build: the folder with its ``go.mod``, the package to build, and the module that names its version."""

    name: str
    sources: Path
    package: str
    module: str

    @property
    def version(self) -> str:
        match = re.search(rf"{re.escape(self.module)} v(\S+)", (self.sources / "go.mod").read_text(encoding="utf-8"))
        if match is None:
            raise PeerBrokenError(f"{self.sources / 'go.mod'} does not require {self.module}")
        return match[1]

    @property
    def target(self) -> Path:
        """Where the built program is kept; another one for every change of its sources."""
        digest = hashlib.sha256()
        for path in sorted(self.sources.iterdir()):
            digest.update(path.name.encode() + b"\0" + path.read_bytes())
        return peers_cache() / f"{self.name}-{digest.hexdigest()[:12]}"


PROGRAMS = {
    program.name: program
    for program in (
        GoProgram("collector", HERE / "collector" / "go", ".", "go.opentelemetry.io/collector/otelcol"),
        GoProgram("jaeger", HERE / "jaeger" / "go", f"{_JAEGER}/cmd/jaeger", _JAEGER),
        GoProgram("promtool", HERE / "promtool" / "go", f"{_PROMETHEUS}/cmd/promtool", _PROMETHEUS),
    )
}


def built(program: GoProgram) -> Path:
    """Return the program, built the first time.

    Raises:
        PeerUnavailableError: there is no Go here, or it cannot fetch the modules, or not in time.
        PeerBrokenError: the modules are there and do not compile.
    """
    return made_once(program.target, lambda beside: _build(program, beside))


def _build(program: GoProgram, target: Path) -> None:
    go = shutil.which("go")
    if go is None:
        raise PeerUnavailableError(f"no Go (go) on the path to build {program.name} with")
    # Listed first: what fails there is the network's or the Go release's doing, and no mistake of the recipe.
    listed = _run([go, "list", "-mod=readonly", "-deps", program.package], program, FETCH_SECONDS)
    if listed.returncode:
        raise PeerUnavailableError(f"Go could not fetch the modules of {program.name}: {_reason(listed)}")
    flags = ["-mod=readonly", "-buildvcs=false", "-trimpath", "-ldflags=-s -w"]
    compiled = _run([go, "build", *flags, "-o", str(target), program.package], program, BUILD_SECONDS)
    if compiled.returncode:
        raise PeerBrokenError(f"Go could not build {program.name}: {_reason(compiled)}")


def _run(command: list[str], program: GoProgram, patience_s: float) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "CGO_ENABLED": "0"}
    try:
        return run_program(*command, cwd=program.sources, env=environment, timeout_s=patience_s)
    except subprocess.TimeoutExpired:
        raise PeerUnavailableError(f"go {command[1]} of {program.name} took longer than {patience_s} s") from None


def _reason(done: subprocess.CompletedProcess[str]) -> str:
    lines = [line for line in done.stderr.splitlines() if line.strip() and not line.startswith("go: downloading")]
    return "; ".join(lines)[-600:] or "no reason given"


def main(names: list[str]) -> int:
    """Build the named programs, politely; tell what could not be had."""
    os.nice(10)
    failed = 0
    for name in names or PROGRAMS:
        try:
            print(f"{name}: {built(PROGRAMS[name])}", flush=True)  # noqa: T201 - its only output
        except (PeerUnavailableError, PeerBrokenError) as reason:
            print(f"{name}: {reason}", file=sys.stderr, flush=True)  # noqa: T201
            failed = 1
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
