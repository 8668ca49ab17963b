"""Which peers a run starts, by the environment."""

import pytest

from tests.peers.peer import wanted

NAMES = ("kafka", "rocketmq", "collector")


def test_every_peer_is_wanted_unless_the_environment_excludes_it():
    assert wanted(NAMES, {}) == dict.fromkeys(NAMES)
    only = wanted(NAMES, {"PEERS": "kafka, collector", "SKIP_PEERS": "collector"})
    assert only == {"kafka": None, "rocketmq": "not named in PEERS", "collector": "named in SKIP_PEERS"}


def test_misspelt_peer_is_an_error():
    with pytest.raises(ValueError, match="kafka, rocketmq, collector, and not colector"):
        wanted(NAMES, {"SKIP_PEERS": "colector"})
