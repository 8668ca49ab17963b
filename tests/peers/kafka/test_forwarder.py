"""The forwarder on a real Kafka: killed again and again, and one message's life in spans."""

from __future__ import annotations

import pytest

from tests.support.killing import forwarded_under_fire

pytestmark = pytest.mark.peers

KILLS = 25


@pytest.mark.parametrize("seed", [1])
def test_kill_9_at_any_moment_loses_nothing(kafka, tmp_path, seed, request):
    """Twenty-five times; every span arrives, and whatever arrives again says the same under the same ids."""
    topic = kafka.create_topic(f"forwarded-{seed}", partitions=3)
    told = forwarded_under_fire(kafka.bootstrap_servers, topic, tmp_path, kills=KILLS, seed=seed)
    request.config.pluginmanager.get_plugin("terminalreporter").write_line(f"\nforwarder under fire: {told}")
    assert told.kills == KILLS
    assert told.spans > 500
    assert (told.lost, told.unexpected, told.contradicted) == (0, 0, 0)
