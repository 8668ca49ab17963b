"""The real servers of a run: started once, stopped at its end, and named in its summary."""

import os
import signal
import subprocess
import sys
from contextlib import ExitStack, contextmanager, nullcontext

import pytest

from spark_jobs.java import find_java
from tests.peers.collector.server import Collector
from tests.peers.go_build import HERE, PROGRAMS, built
from tests.peers.jaeger.server import Jaeger
from tests.peers.kafka import broker
from tests.peers.peer import PeerUnavailableError, peers_cache, wanted
from tests.peers.rocketmq import server

NAMES = ("kafka", "rocketmq", "collector", "jaeger", "promtool")
NOT_ASKED = "not asked for"
STATES = pytest.StashKey[dict[str, str]]()
UNWANTED = pytest.StashKey[dict[str, str | None]]()
BUILDER = pytest.StashKey[subprocess.Popen]()


def pytest_configure(config: pytest.Config) -> None:
    """Begin with no peer asked for; a name in ``PEERS`` or ``SKIP_PEERS`` that is none ends the run at once."""
    config.stash[STATES] = dict.fromkeys(NAMES, NOT_ASKED)
    try:
        config.stash[UNWANTED] = wanted(NAMES, os.environ)
    except ValueError as error:
        raise pytest.UsageError(str(error)) from None


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items) -> None:
    """Let tests that need no built peer go first: meanwhile the others are built."""
    items.sort(key=lambda item: max(map(_turn, getattr(item, "fixturenames", ())), default=0))


def _turn(fixture: str) -> int:
    return {"collector_program": 1, "jaeger": 2, "promtool": 3}.get(fixture, 0)


def pytest_collection_finish(session) -> None:
    """Begin to build, in the background, what this run's tests will ask for and this machine does not have yet."""
    config = session.config
    turns = {_turn(fixture) for item in session.items for fixture in getattr(item, "fixturenames", ())}
    missing = [
        name
        for turn, name in enumerate(PROGRAMS, 1)
        if turn in turns and not config.stash[UNWANTED][name] and not PROGRAMS[name].target.is_file()
    ]
    if missing and not config.option.collectonly:
        peers_cache().mkdir(parents=True, exist_ok=True)
        with (peers_cache() / "build.log").open("ab") as log:
            config.stash[BUILDER] = subprocess.Popen(
                [sys.executable, "-m", "tests.peers.go_build", *missing],
                cwd=HERE.parents[1],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )


def pytest_unconfigure(config: pytest.Config) -> None:
    """Leave no build behind: the compiler's own cache keeps what is done."""
    builder = config.stash.get(BUILDER, None)
    if builder is not None and builder.poll() is None:
        os.killpg(builder.pid, signal.SIGTERM)
        builder.wait()


@contextmanager
def _peer(request, name, version, make, *, at):
    """Give what ``make()`` opens and take note of it; where that cannot be had, skip with the reason."""
    states = request.config.stash[STATES]
    reason = request.config.stash[UNWANTED][name]
    if reason is None:
        states[name] = f"{version} DID NOT COME UP"
        try:
            with make() as running:
                states[name] = f"{version} ran at {at(running)}"
                yield running
        except PeerUnavailableError as error:
            reason = str(error)
        else:
            return
    states[name] = f"SKIPPED: {reason}"
    pytest.skip(f"peer {name}: {reason}")


@pytest.fixture(scope="session")
def kafka(request, tmp_path_factory):
    """A running Apache Kafka; its tests are skipped, with the reason, where it cannot be had."""

    def make():
        find_java()
        return broker.KafkaBroker(tmp_path_factory.mktemp("kafka"))

    with _peer(request, "kafka", broker.VERSION, make, at=lambda running: running.bootstrap_servers) as running:
        yield running


@pytest.fixture(scope="session")
def rocketmq_server(request, tmp_path_factory):
    """A running Apache RocketMQ with its gRPC proxy; its tests are skipped, with the reason, where it cannot be had."""

    def make():
        find_java()
        return server.RocketMq(tmp_path_factory.mktemp("rocketmq"))

    with _peer(request, "rocketmq", server.VERSION, make, at=lambda running: running.endpoints) as running:
        yield running


@pytest.fixture(scope="session")
def jaeger(request, tmp_path_factory):
    """A running Jaeger v2 that keeps its spans in memory; tests share it, each under service names of its own."""

    def make():
        return Jaeger(built(PROGRAMS["jaeger"]), tmp_path_factory.mktemp("jaeger"))

    version = PROGRAMS["jaeger"].version
    with _peer(request, "jaeger", version, make, at=lambda running: running.query_url) as running:
        yield running


@pytest.fixture(scope="session")
def collector_program(request):
    """The Collector, built; or its tests are skipped, with the reason."""
    program = PROGRAMS["collector"]

    def make():
        return nullcontext(built(program))

    with _peer(request, "collector", program.version, make, at=lambda _: "ports of each test's own") as path:
        yield path


@pytest.fixture(scope="session")
def promtool(request):
    """Prometheus' checker of rules and metrics, built; or its tests are skipped, with the reason."""
    program = PROGRAMS["promtool"]

    def make():
        return nullcontext(built(program))

    with _peer(request, "promtool", program.version, make, at=lambda path: path) as path:
        yield path


@pytest.fixture
def start_collector(collector_program, tmp_path):
    """Start a Collector with a configuration of ours and what its environment shall say; stopped after the test."""
    with ExitStack() as running:

        def start(configuration, *, flags=(), **environment):
            collector = Collector(collector_program, tmp_path / "collector", configuration, environment, flags)
            return running.enter_context(collector)

        yield start


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(terminalreporter, config):
    """Say last of all which peers these results speak about, when any was asked for; what was skipped stands out."""
    yield
    states = config.stash[STATES]
    if set(states.values()) == {NOT_ASKED}:
        return
    for name, state in states.items():
        terminalreporter.write_line(f"peers: {name} {state}", yellow="SKIPPED" in state, bold="SKIPPED" in state)
