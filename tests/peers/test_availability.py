"""Messages about a peer that is unwanted, unavailable or cannot be built; no server is started here."""

import pytest

from tests.peers.go_build import PROGRAMS, built
from tests.peers.maven import jars_of
from tests.peers.peer import PeerBrokenError, PeerUnavailableError, ServerProcess, wanted

NAMES = ("kafka", "rocketmq", "collector")


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


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
