"""Find Java: ``JAVA_HOME``, then ``java`` on the path, then the wheel of the ``jre`` extra."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shlex
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bridge.storage.paths import write_atomically
from bridge.storage.stores import find_javas
from otel_mqtrace._errors import PeerError, describe_install

if TYPE_CHECKING:
    from collections.abc import Mapping

MINIMUM_JAVA: Final = 17
"""The oldest Java that Spark 4 runs on."""

SPARK_MODULE_FLAG: Final = "--add-modules=jdk.incubator.vector"
"""Spark's launcher always passes this. A runtime image without the module does not start with it, one with it warns on
every start. Only Spark's ML linear algebra uses it, so our start script drops it."""

OPENED_PACKAGE_FLAG: Final = "--add-opens=java.base/sun.security.action=ALL-UNNAMED"
"""Spark's launcher always passes this too; Java 25, which lacks the package, warns on every start."""

_GONE: Final = "package sun.security.action not in java.base"
_PROBE_SECONDS: Final = 60
_WRAPPER: Final = """\
#!/bin/sh
# Runs Java without the flags of Spark's launcher that it refuses or warns about.
for argument do
  shift
  case "$argument" in
    {flags}) ;;
    *) set -- "$@" "$argument" ;;
  esac
done
exec {java} "$@"
"""


@dataclass(frozen=True, slots=True)
class JavaHome:
    """A Java for Spark: ``path`` is the value for ``JAVA_HOME``, ``source`` where it was found."""

    path: Path
    major: int
    source: str


@dataclass(frozen=True, slots=True)
class _Probed:
    home: Path
    major: int
    has_spark_module: bool
    unwanted_flags: tuple[str, ...]


def has_pyspark() -> bool:
    """Return whether pyspark is installed."""
    try:
        return importlib.util.find_spec("pyspark") is not None
    except (ImportError, ValueError):  # ValueError: the module is there as a stand-in without a spec
        return False


def find_java(*, environ: Mapping[str, str] | None = None, cache_dir: Path | None = None) -> JavaHome:
    """Return the first Java of version 17 or later.

    ``cache_dir`` is the start script's folder; by default ``otel-mqtrace`` in ``$XDG_CACHE_HOME`` or ``~/.cache``.

    Raises:
        PeerError: none was found; the message lists the rejected ones.
    """
    env = os.environ if environ is None else environ
    refused: list[str] = []
    for source, java in find_javas(env):
        probed = _probe(java)
        if probed is None:
            refused.append(f"{source}: {java} does not run")
        elif probed.major < MINIMUM_JAVA:
            refused.append(f"{source}: {java} is Java {probed.major}")
        else:
            return JavaHome(_wrap(java, probed, cache_dir or _default_cache(env)), probed.major, source)
    seen = f" ({'; '.join(refused)})" if refused else ""
    raise PeerError(
        f"no Java {MINIMUM_JAVA} or later for Spark{seen}: set JAVA_HOME to one, or {describe_install('jre')}"
    )


_PROBED: Final[dict[Path, _Probed]] = {}
"""The Javas that have run in this process: to start one takes half a second. One that did not is tried again."""


def _probe(java: Path) -> _Probed | None:
    """Return the facts of a Java, started with Spark's module, else without it; ``None`` if it does not run."""
    if java in _PROBED:
        return _PROBED[java]
    for flags, has_spark_module in (((SPARK_MODULE_FLAG,), True), ((), False)):
        settings = _settings(java, (*flags, OPENED_PACKAGE_FLAG))
        version = re.search(r"java\.specification\.version = (?:1\.)?(\d+)", settings)
        home = re.search(r"java\.home = (.+)", settings)
        if version and home:
            unwanted = (SPARK_MODULE_FLAG, *((OPENED_PACKAGE_FLAG,) if _GONE in settings else ()))
            _PROBED[java] = _Probed(Path(home[1].strip()), int(version[1]), has_spark_module, unwanted)
            return _PROBED[java]
    return None


def _settings(java: Path, flags: tuple[str, ...]) -> str:
    command = [str(java), *flags, "-XshowSettings:properties", "-version"]
    try:
        done = subprocess.run(
            command, capture_output=True, check=False, encoding="utf-8", errors="replace", timeout=_PROBE_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired):  # reported as a Java that does not run
        return ""
    return done.stdout + done.stderr if done.returncode == 0 else ""


def _default_cache(env: Mapping[str, str]) -> Path:
    base = env.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "otel-mqtrace"


def _wrap(java: Path, probed: _Probed, cache_dir: Path) -> Path:
    """Return a Java home whose ``bin/java`` drops the unwanted flags, made once for each Java."""
    home = cache_dir / f"java-{hashlib.sha256(str(java).encode()).hexdigest()[:12]}"
    script = _WRAPPER.format(flags=" | ".join(probed.unwanted_flags), java=shlex.quote(str(java)))
    target = home / "bin" / "java"
    try:
        if not (target.is_file() and target.read_text(encoding="utf-8") == script):
            target.parent.mkdir(parents=True, exist_ok=True)
            with write_atomically(target) as unready:  # a job that starts at the same time must not run half a script
                Path(unready).write_text(script, encoding="utf-8")
                Path(unready).chmod(0o755)
    except OSError as error:
        if probed.has_spark_module:  # it starts without the script, with a warning
            return probed.home
        raise PeerError(
            f"cannot write the Java start script {target} ({error.strerror}): set XDG_CACHE_HOME to a writable folder"
        ) from error
    return home
