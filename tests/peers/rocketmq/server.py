"""Run a real Apache RocketMQ (name server, broker, gRPC proxy) on free loopback ports."""

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from typing_extensions import Self

from bridge.forwarder.rocketmq_source import RemotingTraceSource
from otel_mqtrace.exporters.native_rocketmq import NativeRocketMqSpanExporter
from otel_mqtrace.landing import LandedMessage
from otel_mqtrace.model import TraceContext
from otel_mqtrace.rocketmq.client import Outgoing, RemotingClient, Request
from otel_mqtrace.rocketmq.commands import Command, Queue, RefusedError, RequestCode
from spark_jobs.java import find_java
from tests.peers.peer import PeerUnavailableError, ServerProcess, free_ports, jars_of, until
from tests.support.native_spans import traced
from tests.support.programs import run_program

HERE = Path(__file__).resolve().parent
VERSION = "5.5.0"
PATIENCE_SECONDS = 150
_NEVER_MS = 3_600_000  # as broker.conf has it
_OPENED = ("java.nio", "sun.nio.ch", "java.lang", "java.util", "jdk.internal.ref")
_BROKER = "broker.BrokerStartup"
_UPDATE_BROKER_CONFIG, _GET_BROKER_RUNTIME_INFO, _UPDATE_AND_CREATE_GROUP = 25, 28, 200
_ENDS_OF_TRANSACTIONS = "RMQ_SYS_TRANS_OP_HALF_TOPIC"


@dataclass
class RocketMq:
    """A name server, a broker and, if wanted, a proxy with their files in ``directory``; use it as a context manager."""

    directory: Path
    broker_lines: str = ""  # of its configuration, beside broker.conf's
    access: Mapping[str, str] = field(default_factory=dict)  # the keys that its requests are signed with
    has_proxy: bool = True
    endpoints: str = ""
    name_server: str = ""
    broker: str = ""
    _servers: dict[str, ServerProcess] = field(default_factory=dict, repr=False)
    _jars: Path = Path()
    _preload: Path = Path()
    _client: RemotingClient | None = None

    def __enter__(self) -> Self:
        self._jars = jars_of(HERE / "server.xml", "RocketMQ")
        self.directory.mkdir(parents=True, exist_ok=True)
        self._preload = self._loopback_only()
        names, broker, replicas, grpc, remoting = free_ports(5)
        self.name_server, self.broker = f"127.0.0.1:{names}", f"127.0.0.1:{broker}"
        self.endpoints = f"127.0.0.1:{grpc}"
        self._client = RemotingClient(self.name_server, timeout_ms=PATIENCE_SECONDS * 1_000, **self.access)
        self._write("names.conf", f"listenPort={names}\nbindAddress=127.0.0.1\n")
        conf = (HERE / "broker.conf").read_text(encoding="utf-8")
        store = self.directory / "store"
        self._write(
            "broker.conf",
            f"{conf}namesrvAddr={self.name_server}\nlistenPort={broker}\nhaListenPort={replicas}\n"
            f"storePathRootDir={store}\nstorePathCommitLog={store / 'commitlog'}\n"
            f"{self.broker_lines}",
        )
        proxy = json.loads((HERE / "proxy.json").read_text(encoding="utf-8"))
        proxy |= {"namesrvAddr": self.name_server, "grpcServerPort": grpc, "remotingListenPort": remoting}
        self._write("proxy.json", json.dumps(proxy))
        self._start(
            "namesrv.NamesrvStartup", "-c", "names.conf", heap_mb=128, answers=lambda: not self._client.masters()
        )
        self.start_broker()
        if self.has_proxy:
            arguments = ("-pm", "cluster", "-n", self.name_server, "-pc", "proxy.json")
            self._start("proxy.ProxyStartup", *arguments, heap_mb=384, answers=self._has_a_proxy)
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()
        for server in reversed(self._servers.values()):
            server.kill()  # its files go with it

    def restart_broker(self) -> None:
        """Stop the broker as an operator does, and start it again on its files and ports."""
        assert self._servers[_BROKER].stop(PATIENCE_SECONDS) is not None
        self._await_name_server()
        self.start_broker()

    def kill_broker(self) -> None:
        self._servers[_BROKER].kill()
        self._await_name_server()

    def _await_name_server(self) -> None:
        """Wait until the name server knows that the broker is away: it would take the next one's place for it."""
        known = until(self._client.masters, lambda masters: self.broker not in masters, patience_s=PATIENCE_SECONDS)
        assert self.broker not in known

    def start_broker(self) -> None:
        self._start(_BROKER, "-c", "broker.conf", heap_mb=512, answers=lambda: self.broker in self._client.masters())

    def mqadmin(self, *arguments: str) -> str:
        command = [*self._java(128), "-cp", f"{self._jars}/*", "org.apache.rocketmq.tools.command.MQAdminStartup"]
        where = {"cwd": self.directory, "env": self._environment()}
        done = run_program(*command, *arguments, "-n", self.name_server, **where)
        lines = [line for line in done.stdout.splitlines() if "|-INFO" not in line and "|-WARN" not in line]
        return "\n".join(lines) + done.stderr

    def create_topic(self, name: str, message_type: str = "NORMAL", queues: int = 2) -> str:
        """Create a topic for ``NORMAL``, ``FIFO``, ``DELAY`` or ``TRANSACTION`` messages and return its name."""
        fields = {"topic": name, "attributes": f"+message.type={message_type}", "defaultTopic": "TBW102", "perm": "6"}
        fields |= dict.fromkeys(("readQueueNums", "writeQueueNums"), str(queues))
        fields |= {"topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false"}
        self._ask(Command(RequestCode.UPDATE_AND_CREATE_TOPIC, fields))
        return name

    def create_group(self, name: str) -> str:
        body = {"groupName": name, "consumeMessageOrderly": False, "consumeEnable": True, "retryMaxTimes": 16}
        self._ask(Command(_UPDATE_AND_CREATE_GROUP, body=json.dumps(body).encode()))
        return name

    def send(self, topic: str, *bodies: bytes, **properties: str) -> list[Queue]:
        """Send messages to the queues of a topic in turn, settled; return the queue of each."""
        queues = self._client.writable(topic)
        outgoing = [
            Outgoing(queue=queues[at % len(queues)], body=body, properties=properties) for at, body in enumerate(bodies)
        ]
        sent = self._client.send(outgoing, group="peer-tests")
        assert sent == [None] * len(sent)
        self.settle()
        return [each.queue for each in outgoing]

    def export(self, *contexts: TraceContext, **options: Any) -> None:
        processor, trace = traced(NativeRocketMqSpanExporter(namesrv=self.name_server, **options))
        for context in contexts:
            trace(context)
        assert processor.force_flush()
        processor.shutdown()
        self.settle()

    def settle(self) -> None:
        """Wait until the queues and the index hold all that the broker has stored: it answers a send before."""

        def is_settled() -> bool:
            with suppress(RefusedError):  # a broker that has just started has no statistics yet
                table = json.loads(self._ask(Command(_GET_BROKER_RUNTIME_INFO)).body)["table"]
                return int(table["dispatchBehindBytes"]) <= 0
            return False

        assert until(is_settled, bool, patience_s=PATIENCE_SECONDS)

    def count_recorded_ends(self) -> int:
        """Return how many notes on ended transactions the broker has written: it writes one after its answer."""
        answer = self._ask(Command(RequestCode.GET_MAX_OFFSET, {"topic": _ENDS_OF_TRANSACTIONS, "queueId": "0"}))
        return int(answer.fields["offset"])

    @contextmanager
    def checking_transactions(self) -> Iterator[None]:
        """Let the broker ask, for the length of a block, how the transactions end of which it has no note."""
        self._set_transaction_timeout(1)
        try:
            yield
        finally:
            self._set_transaction_timeout(_NEVER_MS)

    def drain(self, topic: str, *, commits: bool = False, **access: str) -> list[LandedMessage]:
        """Return what the forwarder's source reads of a trace topic, from the committed offset to the end."""
        with RemotingTraceSource(self.name_server, topic, **access) as source:
            landed = [message for batch in source.drain() for message in batch]
            if commits:
                source.commit()
        return landed

    def _set_transaction_timeout(self, timeout_ms: int) -> None:
        self._ask(Command(_UPDATE_BROKER_CONFIG, body=b"transactionTimeOut=%d" % timeout_ms))

    def _ask(self, command: Command) -> Command:
        return self._client.call(Request((self.broker,), command, "the test's set-up"))

    def _write(self, name: str, text: str) -> None:
        (self.directory / name).write_text(text, encoding="utf-8")

    def _loopback_only(self) -> Path:
        compiler = shutil.which("cc")
        if compiler is None:
            raise PeerUnavailableError("no C compiler (cc) to keep RocketMQ's ports on 127.0.0.1 with")
        target = self.directory / "loopback.so"
        command = [compiler, "-shared", "-fPIC", "-O2", "-o", str(target), str(HERE / "loopback.c"), "-ldl"]
        built = run_program(*command)
        if built.returncode:
            raise PeerUnavailableError(f"cc cannot build a preload library here: {built.stderr[:300]}")
        return target

    def _start(self, main: str, *arguments: str, heap_mb: int, answers: Callable[[], bool]) -> None:
        server = ServerProcess(f"RocketMQ {VERSION}: {main}", self.directory / f"{main}.out", self.directory)
        self._servers[main] = server
        command = [*self._java(heap_mb), "-cp", f"{self._jars}/*", f"org.apache.rocketmq.{main}", *arguments]
        try:
            server.start(command, self._environment(), answers)
        except BaseException:
            self.__exit__()
            raise

    def _has_a_proxy(self) -> bool:
        return self._servers["proxy.ProxyStartup"].has_logged(b"startup successfully")

    def _java(self, heap_mb: int) -> list[str]:
        java = [str(find_java().path / "bin" / "java"), f"-Xmx{heap_mb}m", "-XX:MaxDirectMemorySize=384m"]
        java += ["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Djava.net.preferIPv4Stack=true"]
        java += [f"-D{name}={self.directory}" for name in ("user.home", "rocketmq.home.dir", "rocketmq.log.dir")]
        return java + [f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _OPENED]

    def _environment(self) -> dict[str, str]:
        return {**os.environ, "LD_PRELOAD": str(self._preload), "RMQ_PROXY_HOME": str(self.directory)}
