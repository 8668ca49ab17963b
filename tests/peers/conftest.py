"""The real servers of a run: started once, stopped at its end, and named in its summary."""

import os
import signal
import subprocess
import sys
from contextlib import ExitStack, nullcontext
from operator import attrgetter

import pytest

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
            command = [sys.executable, "-m", "tests.peers.go_build", *missing]
            streams = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
            config.stash[BUILDER] = subprocess.Popen(command, cwd=HERE.parents[1], start_new_session=True, **streams)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Leave no build behind: the compiler's own cache keeps what is done."""
    builder = config.stash.get(BUILDER, None)
    if builder is not None and builder.poll() is None:
        os.killpg(builder.pid, signal.SIGTERM)
        builder.wait()


def _peer(fixture, name, version, make, *, at):
    """Return a fixture: what ``make`` opens in a directory of its own, noted; without it, its tests are skipped."""

    @pytest.fixture(scope="session", name=fixture)
    def peer(request, tmp_path_factory):
        states = request.config.stash[STATES]
        reason = request.config.stash[UNWANTED][name]
        if reason is None:
            states[name] = f"{version} DID NOT COME UP"
            try:
                with make(tmp_path_factory.mktemp(name)) as running:
                    states[name] = f"{version} ran at {at(running)}"
                    yield running
            except PeerUnavailableError as error:
                reason = str(error)
            else:
                return
        states[name] = f"SKIPPED: {reason}"
        pytest.skip(f"peer {name}: {reason}")

    return peer


def _built_peer(fixture, name, *, at, make=lambda program, _: nullcontext(program)):
    program = PROGRAMS[name]
    return _peer(fixture, name, program.version, lambda directory: make(built(program), directory), at=at)


kafka = _peer("kafka", "kafka", broker.VERSION, broker.KafkaBroker, at=attrgetter("bootstrap_servers"))
rocketmq_server = _peer("rocketmq_server", "rocketmq", server.VERSION, server.RocketMq, at=attrgetter("endpoints"))
jaeger = _built_peer("jaeger", "jaeger", make=Jaeger, at=attrgetter("query_url"))
collector_program = _built_peer("collector_program", "collector", at=lambda _: "ports of each test's own")
promtool = _built_peer("promtool", "promtool", at=str)


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
