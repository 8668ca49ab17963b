"""Messages about a peer that is unwanted, unavailable or cannot be built; no server is started here."""

import shutil
import subprocess

import pytest

from tests.peers.go_build import PROGRAMS, GoProgram, built
from tests.peers.maven import jars_of
from tests.peers.peer import PeerBrokenError, PeerUnavailableError, ServerProcess, wanted

NAMES = ("kafka", "rocketmq", "collector")


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def program(tmp_path, monkeypatch):
    """Make a Go program of the given text, which may import modules that ``requires`` names."""
    go = shutil.which("go")
    if go is None:
        pytest.skip("needs Go")
    with monkeypatch.context() as theirs:
        theirs.delenv("XDG_CACHE_HOME")
        compiled = subprocess.run([go, "env", "GOCACHE"], capture_output=True, text=True, check=True).stdout.strip()
    monkeypatch.setenv("GOCACHE", compiled)  # the user's: Go's own library need not be compiled again

    def make(text, requires=""):
        sources = tmp_path / "sources"
        sources.mkdir()
        (sources / "go.mod").write_text(f"module mqtrace.invalid/tiny\n\ngo 1.20\n\n{requires}\n")
        (sources / "main.go").write_text(f"package main\n\n{text}\n")
        return GoProgram("tiny", sources, ".", "mqtrace.invalid/other")

    return make


def test_every_peer_is_wanted_unless_named_otherwise():
    assert wanted(NAMES, {}) == dict.fromkeys(NAMES)
    only = wanted(NAMES, {"PEERS": "kafka, collector", "SKIP_PEERS": "collector"})
    assert only == {"kafka": None, "rocketmq": "not named in PEERS", "collector": "named in SKIP_PEERS"}


def test_a_peer_that_does_not_exist_is_not_skipped_silently():
    with pytest.raises(ValueError, match="kafka, rocketmq, collector, and not colector"):
        wanted(NAMES, {"SKIP_PEERS": "colector"})


def test_without_go_and_maven_the_reason_is_that_they_are_missing(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(PeerUnavailableError, match=r"no Go .* to build jaeger with"):
        built(PROGRAMS["jaeger"])
    pom = tmp_path / "some.xml"
    pom.write_text("<project/>")
    with pytest.raises(PeerUnavailableError, match=r"no Maven .* to fetch Kafka's jars with"):
        jars_of(pom, "Kafka")


@pytest.mark.peers
def test_modules_that_cannot_be_fetched_are_a_reason_to_skip(program, monkeypatch):
    monkeypatch.setenv("GOFLAGS", "-modcacherw")
    monkeypatch.setenv("GOPROXY", "off")
    text = 'import _ "mqtrace.invalid/other"\n\nfunc main() {}'
    with pytest.raises(PeerUnavailableError, match=r"Go could not fetch the modules of tiny: .*mqtrace.invalid/other"):
        built(program(text, "require mqtrace.invalid/other v1.0.0"))


@pytest.mark.peers
def test_a_program_that_does_not_compile_is_a_failure(program):
    with pytest.raises(PeerBrokenError, match=r"could not build tiny: .*undefined: nothing"):
        built(program("func main() { nothing() }"))


@pytest.mark.peers
def test_a_program_is_built_once_and_again_when_its_sources_change(program):
    tiny = program("func main() {}")
    first = built(tiny)
    made_ns = first.stat().st_mtime_ns
    assert built(tiny) == first
    assert first.stat().st_mtime_ns == made_ns
    (tiny.sources / "main.go").write_text("package main\n\nfunc main() { println() }\n")
    assert built(tiny) != first


def test_a_server_that_ends_at_once_is_told_with_its_last_words(tmp_path):
    server = ServerProcess("the server", tmp_path / "log")
    with pytest.raises(PeerBrokenError, match="the server did not come up:\nno such option"):
        server.start(["sh", "-c", "echo no such option; exit 2"], {}, lambda: False)


def test_the_versions_are_the_ones_that_the_modules_ask_for():
    assert {name: program.version for name, program in PROGRAMS.items()} == {
        "collector": "0.155.0",
        "jaeger": "1.76.0",
        "promtool": "0.305.0",
    }
