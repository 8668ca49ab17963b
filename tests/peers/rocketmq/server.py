"""Run a real Apache RocketMQ (name server, broker, gRPC proxy) on free loopback ports."""

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from time import monotonic

from typing_extensions import Self

from spark_jobs.java import find_java
from tests.peers.maven import jars_of
from tests.peers.peer import PeerBrokenError, PeerUnavailableError, free_ports
from tests.peers.rocketmq.remoting import (
    GET_BROKER_CLUSTER_INFO,
    UPDATE_AND_CREATE_GROUP,
    UPDATE_AND_CREATE_TOPIC,
    RefusedError,
    ask,
)

HERE = Path(__file__).resolve().parent
VERSION = "5.5.0"
START_SECONDS, STOP_SECONDS = 150, 5
_OPENED = ("java.nio", "sun.nio.ch", "java.lang", "java.util", "jdk.internal.ref")
_READ_WRITE = 6


@dataclass
class RocketMq:
    """A name server, a broker and, if wanted, a proxy with their files in ``directory``; use it as a context manager."""

    directory: Path
    broker_lines: str = ""  # of its configuration, beside broker.conf's
    has_proxy: bool = True
    endpoints: str = ""
    name_server: str = ""
    broker: str = ""
    _running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict, repr=False)
    _jars: Path = Path()
    _preload: Path = Path()

    def __enter__(self) -> Self:
        self._jars = jars_of(HERE / "server.xml", "RocketMQ")
        self.directory.mkdir(parents=True, exist_ok=True)
        self._preload = self._loopback_only()
        names, broker, replicas, grpc, remoting = free_ports(5)
        self.name_server, self.broker = f"127.0.0.1:{names}", f"127.0.0.1:{broker}"
        self.endpoints = f"127.0.0.1:{grpc}"
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
        try:
            self._start("namesrv.NamesrvStartup", "-c", "names.conf", heap_mb=128)
            self._wait(lambda: ask(self.name_server, GET_BROKER_CLUSTER_INFO), "the name server")
            self.start_broker()
            if self.has_proxy:
                arguments = ("-pm", "cluster", "-n", self.name_server, "-pc", "proxy.json")
                self._start("proxy.ProxyStartup", *arguments, heap_mb=384)
                self._wait(lambda: self._log_has("proxy.ProxyStartup", b"startup successfully"), "the proxy")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for process in reversed(self._running.values()):
            process.terminate()
        for process in self._running.values():
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._running.clear()

    def restart_broker(self) -> None:
        """Stop the broker as an operator does, and start it again on its files and ports."""
        stopped = self._running.pop("broker.BrokerStartup")
        stopped.terminate()
        stopped.wait(START_SECONDS)
        self.start_broker()

    def kill_broker(self) -> None:
        killed = self._running.pop("broker.BrokerStartup")
        killed.kill()
        killed.wait()

    def mqadmin(self, *arguments: str) -> str:
        """Return what RocketMQ's own administration tool prints, without its log."""
        command = [*self._java(128), "-cp", f"{self._jars}/*", "org.apache.rocketmq.tools.command.MQAdminStartup"]
        done = subprocess.run(
            [*command, *arguments, "-n", self.name_server],
            capture_output=True,
            text=True,
            check=False,
            timeout=START_SECONDS,
            cwd=self.directory,
            env=self._environment(),
            stdin=subprocess.DEVNULL,
        )
        lines = [line for line in done.stdout.splitlines() if "|-INFO" not in line and "|-WARN" not in line]
        return "\n".join(lines) + done.stderr

    def create_topic(self, name: str, message_type: str = "NORMAL", queues: int = 2) -> str:
        """Create a topic for ``NORMAL``, ``FIFO``, ``DELAY`` or ``TRANSACTION`` messages and return its name."""
        fields = {
            "topic": name,
            "defaultTopic": "TBW102",
            "readQueueNums": queues,
            "writeQueueNums": queues,
            "perm": _READ_WRITE,
            "topicFilterType": "SINGLE_TAG",
            "topicSysFlag": 0,
            "order": "false",
            "attributes": f"+message.type={message_type}",
        }
        ask(self.broker, UPDATE_AND_CREATE_TOPIC, fields)
        return name

    def create_group(self, name: str, *, ordered: bool = False) -> str:
        """Create a consumer group, ``ordered`` for FIFO messages, and return its name."""
        body = {"groupName": name, "consumeMessageOrderly": ordered, "consumeEnable": True, "retryMaxTimes": 16}
        ask(self.broker, UPDATE_AND_CREATE_GROUP, body=json.dumps(body).encode())
        return name

    def _write(self, name: str, text: str) -> None:
        (self.directory / name).write_text(text, encoding="utf-8")

    def _loopback_only(self) -> Path:
        compiler = shutil.which("cc")
        if compiler is None:
            raise PeerUnavailableError("no C compiler (cc) to keep RocketMQ's ports on 127.0.0.1 with")
        target = self.directory / "loopback.so"
        command = [compiler, "-shared", "-fPIC", "-O2", "-o", str(target), str(HERE / "loopback.c"), "-ldl"]
        built = subprocess.run(command, capture_output=True, text=True, check=False, timeout=START_SECONDS)
        if built.returncode:
            raise PeerUnavailableError(f"cc cannot build a preload library here: {built.stderr[:300]}")
        return target

    def start_broker(self) -> None:
        self._start("broker.BrokerStartup", "-c", "broker.conf", heap_mb=512)
        self._wait(self._registered, "the broker")

    def _start(self, main: str, *arguments: str, heap_mb: int) -> None:
        with self._log(main).open("wb") as log:
            self._running[main] = subprocess.Popen(
                [*self._java(heap_mb), "-cp", f"{self._jars}/*", f"org.apache.rocketmq.{main}", *arguments],
                cwd=self.directory,
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def _java(self, heap_mb: int) -> list[str]:
        java = [str(find_java().path / "bin" / "java"), f"-Xmx{heap_mb}m", "-XX:MaxDirectMemorySize=384m"]
        java += ["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Djava.net.preferIPv4Stack=true"]
        java += [f"-D{name}={self.directory}" for name in ("user.home", "rocketmq.home.dir", "rocketmq.log.dir")]
        return java + [f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _OPENED]

    def _environment(self) -> dict[str, str]:
        return {**os.environ, "LD_PRELOAD": str(self._preload), "RMQ_PROXY_HOME": str(self.directory)}

    def _log(self, main: str) -> Path:
        return self.directory / f"{main}.out"

    def _log_has(self, main: str, text: bytes) -> bool:
        return text in self._log(main).read_bytes()

    def _registered(self) -> bool:
        return self.broker.encode() in ask(self.name_server, GET_BROKER_CLUSTER_INFO)

    def _wait(self, answers: Callable[[], object], who: str) -> None:
        pause, deadline = Event(), monotonic() + START_SECONDS
        last = list(self._running.values())[-1]
        while monotonic() < deadline and last.poll() is None:
            try:
                if answers() is not False:
                    return
            except (OSError, RefusedError):
                pass  # not yet
            pause.wait(0.2)
        logs = [path.read_text(encoding="utf-8", errors="replace")[-1500:] for path in self.directory.glob("*.out")]
        raise PeerBrokenError(f"RocketMQ {VERSION}: {who} did not come up:\n" + "\n".join(logs))
