"""The real servers of a run: started once, stopped at its end, and named in its summary."""

from __future__ import annotations

import pytest

from spark_jobs.java import find_java
from tests.peers.kafka.broker import VERSION, KafkaBroker, PeerUnavailableError

PEERS = pytest.StashKey[dict[str, str]]()
NOT_YET = "not part of this version's tests"


def pytest_configure(config: pytest.Config) -> None:
    """Begin with no peer asked for."""
    config.stash[PEERS] = {
        f"Apache Kafka {VERSION}": "not asked for",
        "OpenTelemetry Collector": NOT_YET,
        "Jaeger": NOT_YET,
        "Apache RocketMQ": NOT_YET,
    }


@pytest.fixture(scope="session")
def kafka(request, tmp_path_factory):
    """A running Apache Kafka; its tests are skipped, with the reason, where it cannot be had."""
    peers, name = request.config.stash[PEERS], f"Apache Kafka {VERSION}"
    try:
        find_java()
        broker = KafkaBroker(tmp_path_factory.mktemp("kafka"))
        peers[name] = "did not come up"
        with broker:
            peers[name] = f"ran at {broker.bootstrap_servers}"
            yield broker
    except PeerUnavailableError as reason:
        peers[name] = f"SKIPPED: {reason}"
        pytest.skip(f"{name}: {reason}")


def pytest_terminal_summary(terminalreporter, config):
    """Say which peers these results speak about, when any was asked for."""
    if "not asked for" in config.stash[PEERS].values():
        return
    terminalreporter.section("peers")
    for name, state in config.stash[PEERS].items():
        terminalreporter.write_line(f"{name}: {state}")
