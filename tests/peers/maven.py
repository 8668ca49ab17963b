"""Fetch a peer's jars by Maven once per machine; say so where that fails."""

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

from tests.peers.peer import PeerUnavailableError, peers_cache
from tests.support.programs import run_program

FETCH_SECONDS = 900


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
