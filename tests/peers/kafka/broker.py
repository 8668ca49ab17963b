"""Run a real Apache Kafka from Maven's jars on a free loopback port, and stop it."""

import subprocess
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic
from confluent_kafka.cimpl import Producer as OwnProducer
from typing_extensions import Self

from spark_jobs.java import find_java
from tests.peers.peer import PeerBrokenError, ServerProcess, free_ports, jars_of
from tests.support.programs import run_program

HERE = Path(__file__).resolve().parent
VERSION = "4.3.1"
PATIENCE_SECONDS = 120


@dataclass
class KafkaBroker:
    """A broker with its files in ``directory``; use it as a context manager."""

    directory: Path
    bootstrap_servers: str = ""
    _command: list[str] = field(default_factory=list, repr=False)
    _server: ServerProcess | None = field(default=None, repr=False)

    def __enter__(self) -> Self:
        java = [str(find_java().path / "bin" / "java"), "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
        jars = jars_of(HERE / "broker.xml", "Kafka")
        java += [f"-Dlog4j2.configurationFile={HERE / 'log4j2.properties'}", "-cp", f"{jars}/*"]
        broker_port, controller_port = free_ports(2)
        properties = self._write_properties(broker_port, controller_port)
        cluster = ["--cluster-id", "otelmqtracepeersAAAAAA"]
        tool = [*java, "kafka.tools.StorageTool", "format", *cluster, "--config", str(properties)]
        formatted = run_program(*tool)
        if formatted.returncode:
            raise PeerBrokenError(f"Kafka's StorageTool: {formatted.stdout[-500:]}{formatted.stderr[-500:]}")
        self._command = [*java[:1], "-Xmx320m", *java[1:], "kafka.Kafka", str(properties)]
        self.bootstrap_servers = f"127.0.0.1:{broker_port}"
        self._server = ServerProcess(f"Kafka {VERSION}", self.directory / "log")
        self.start()
        return self

    def topics(self, *words: str) -> subprocess.CompletedProcess[str]:
        command = [*self._command[:1], *self._command[2:-2], "org.apache.kafka.tools.TopicCommand", *words]
        return run_program(*command)

    def start(self) -> None:
        self._server.start(self._command, {}, self._answers)

    def kill(self) -> None:
        self._server.kill()

    def __exit__(self, *_: object) -> None:
        self._server.stop()

    def create_topic(self, name: str, partitions: int = 1, **config: str) -> str:
        settings = {key.replace("_", "."): value for key, value in config.items()}
        admin = AdminClient({"bootstrap.servers": self.bootstrap_servers})
        topic = NewTopic(name, num_partitions=partitions, replication_factor=1, config=settings)
        admin.create_topics([topic])[name].result(PATIENCE_SECONDS)
        return name

    def settle(self, transactional_id: str) -> None:
        """Wait until the markers of the id's last transaction are written; the earlier holder of the id is fenced off."""
        settings = {"bootstrap.servers": self.bootstrap_servers, "transactional.id": transactional_id, "log_level": 0}
        producer = OwnProducer(settings)
        producer.init_transactions(PATIENCE_SECONDS)  # to end one returns before they are; this does not

    def _write_properties(self, broker_port: int, controller_port: int) -> Path:
        self.directory.mkdir(parents=True, exist_ok=True)
        target = self.directory / "server.properties"
        target.write_text(
            (HERE / "server.properties").read_text(encoding="utf-8")
            + f"listeners=PLAINTEXT://127.0.0.1:{broker_port},CONTROLLER://127.0.0.1:{controller_port}\n"
            + f"advertised.listeners=PLAINTEXT://127.0.0.1:{broker_port}\n"
            + f"controller.quorum.voters=1@127.0.0.1:{controller_port}\n"
            + f"log.dirs={self.directory / 'data'}\n",
            encoding="utf-8",
        )
        return target

    def _answers(self) -> bool:
        with suppress(KafkaException):  # refused so far; list_topics itself has waited
            admin = AdminClient({"bootstrap.servers": self.bootstrap_servers, "log_level": 0})
            return bool(admin.list_topics(timeout=2).brokers)
        return False
