"""The real servers of a run: started once, stopped at its end, and named in its summary."""

from __future__ import annotations

import pytest

from spark_jobs.java import find_java
from tests.peers.kafka.broker import VERSION, KafkaBroker
from tests.peers.maven import PeerUnavailableError
from tests.peers.rocketmq import server

PEERS = pytest.StashKey[dict[str, str]]()
NOT_ASKED, NOT_YET = "not asked for", "not part of this version's tests"


def pytest_configure(config: pytest.Config) -> None:
    """Begin with no peer asked for."""
    config.stash[PEERS] = {"kafka": NOT_ASKED, "otel-collector": NOT_YET, "jaeger": NOT_YET, "rocketmq": NOT_ASKED}


@pytest.fixture(scope="session")
def kafka(request, tmp_path_factory):
    """A running Apache Kafka; its tests are skipped, with the reason, where it cannot be had."""
    peers = request.config.stash[PEERS]
    try:
        find_java()
        broker = KafkaBroker(tmp_path_factory.mktemp("kafka"))
        peers["kafka"] = f"{VERSION} DID NOT COME UP"
        with broker:
            peers["kafka"] = f"{VERSION} ran at {broker.bootstrap_servers}"
            yield broker
    except PeerUnavailableError as reason:
        peers["kafka"] = f"SKIPPED: {reason}"
        pytest.skip(f"peer kafka: {reason}")


@pytest.fixture(scope="session")
def rocketmq_server(request, tmp_path_factory):
    """A running Apache RocketMQ with its gRPC proxy; its tests are skipped, with the reason, where it cannot be had."""
    peers = request.config.stash[PEERS]
    try:
        find_java()
        running = server.RocketMq(tmp_path_factory.mktemp("rocketmq"))
        peers["rocketmq"] = f"{server.VERSION} DID NOT COME UP"
        with running:
            peers["rocketmq"] = f"{server.VERSION} ran at {running.endpoints}"
            yield running
    except PeerUnavailableError as reason:
        peers["rocketmq"] = f"SKIPPED: {reason}"
        pytest.skip(f"peer rocketmq: {reason}")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(terminalreporter, config):
    """Say last of all which peers these results speak about, when any was asked for; what was skipped stands out."""
    yield
    peers = config.stash[PEERS]
    if set(peers.values()) <= {NOT_ASKED, NOT_YET}:
        return
    for name, state in peers.items():
        terminalreporter.write_line(f"peers: {name} {state}", yellow="SKIPPED" in state, bold="SKIPPED" in state)
