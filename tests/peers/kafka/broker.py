"""Run a real Apache Kafka from Maven's jars on a free loopback port, and stop it."""

import subprocess
from contextlib import suppress
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic
from confluent_kafka.cimpl import Producer as OwnProducer
from typing_extensions import Self

from spark_jobs.java import find_java
from tests.peers.peer import PeerBrokenError, ServerProcess, free_ports, jars_of, until
from tests.support.programs import run_program

HERE = Path(__file__).resolve().parent
VERSION = "4.3.1"
PATIENCE_SECONDS = 120


class KafkaBroker:
    """A broker with its files in ``directory``; use it as a context manager."""

    def __init__(self, directory: Path) -> None:
        broker, controller = free_ports(2)
        self.bootstrap_servers = f"127.0.0.1:{broker}"
        self._properties = directory / "server.properties"
        self._server = ServerProcess(f"Kafka {VERSION}", directory / "log")
        self._java = [str(find_java().path / "bin" / "java"), "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx320m"]
        jars = jars_of(HERE / "broker.xml", "Kafka")
        self._java += [f"-Dlog4j2.configurationFile={HERE / 'log4j2.properties'}", "-cp", f"{jars}/*"]
        directory.mkdir(parents=True, exist_ok=True)
        self._properties.write_text(
            (HERE / "server.properties").read_text(encoding="utf-8")
            + f"listeners=PLAINTEXT://127.0.0.1:{broker},CONTROLLER://127.0.0.1:{controller}\n"
            + f"advertised.listeners=PLAINTEXT://127.0.0.1:{broker}\n"
            + f"controller.quorum.voters=1@127.0.0.1:{controller}\n"
            + f"log.dirs={directory / 'data'}\n",
            encoding="utf-8",
        )

    def __enter__(self) -> Self:
        cluster = ("--cluster-id", "otelmqtracepeersAAAAAA")
        formatted = run_program(
            *self._java, "kafka.tools.StorageTool", "format", *cluster, "--config", self._properties
        )
        if formatted.returncode:
            raise PeerBrokenError(f"Kafka's StorageTool: {formatted.stdout[-500:]}{formatted.stderr[-500:]}")
        self.start()
        return self

    def topics(self, *words: str) -> subprocess.CompletedProcess[str]:
        return run_program(*self._java, "org.apache.kafka.tools.TopicCommand", *words)

    def start(self) -> None:
        self._server.start([*self._java, "kafka.Kafka", str(self._properties)], {}, self._answers)

    def kill(self) -> None:
        self._server.kill()

    def __exit__(self, *_: object) -> None:
        self._server.kill()  # its files go with it

    def create_topic(self, name: str, partitions: int = 1, **config: str) -> str:
        settings = {key.replace("_", "."): value for key, value in config.items()}
        admin = AdminClient({"bootstrap.servers": self.bootstrap_servers})
        topic = NewTopic(name, num_partitions=partitions, replication_factor=1, config=settings)
        admin.create_topics([topic])[name].result(PATIENCE_SECONDS)
        self.await_topic(name)
        return name

    def await_topic(self, name: str) -> None:
        """Wait until the broker leads each partition of a topic: the controller answers the creation before."""
        admin = AdminClient({"bootstrap.servers": self.bootstrap_servers})

        def leads() -> bool:
            topic = admin.list_topics(name, PATIENCE_SECONDS).topics[name]
            return topic.error is None and all(each.leader >= 0 for each in topic.partitions.values())

        assert until(leads, bool, patience_s=PATIENCE_SECONDS), f"{name} has no leaders"

    def settle(self, transactional_id: str) -> None:
        """Wait until the markers of the id's last transaction are written; the earlier holder of the id is fenced off."""
        settings = {"bootstrap.servers": self.bootstrap_servers, "transactional.id": transactional_id, "log_level": 0}
        producer = OwnProducer(settings)
        producer.init_transactions(PATIENCE_SECONDS)  # to end one returns before they are; this does not

    def _answers(self) -> bool:
        with suppress(KafkaException):  # refused so far; list_topics itself has waited
            admin = AdminClient({"bootstrap.servers": self.bootstrap_servers, "log_level": 0})
            return bool(admin.list_topics(timeout=2).brokers)
        return False
