"""A Kafka inside this process: librdkafka's mock cluster behind a small class, a real TCP broker for this machine.

It lacks durability, transaction isolation (readers see aborted messages), admin requests and volume: each partition
keeps about 5 MiB and drops the rest silently, which ``assert_untrimmed`` detects. It is controlled by librdkafka's C
functions (``rdkafka_mock.h``), which the Python client does not offer.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import logging
import os
import signal
import socket
from contextlib import contextmanager, suppress
from ctypes import POINTER, c_char_p, c_int, c_int16, c_int32, c_size_t, c_void_p
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from otel_mqtrace._errors import MissingExtraError, PeerError, UsageError

try:
    import confluent_kafka
    from confluent_kafka import KafkaException, TopicPartition, cimpl
except ImportError as absent:
    raise MissingExtraError("the embedded broker", "kafka") from absent

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from typing_extensions import Self


_SIGNATURES: Final[dict[str, tuple[Any, tuple[Any, ...]]]] = {
    "rd_kafka_conf_new": (c_void_p, ()),
    "rd_kafka_conf_set": (c_int, (c_void_p, c_char_p, c_char_p, c_char_p, c_size_t)),
    "rd_kafka_new": (c_void_p, (c_int, c_void_p, c_char_p, c_size_t)),
    "rd_kafka_destroy": (None, (c_void_p,)),
    "rd_kafka_err2str": (c_char_p, (c_int,)),
    "rd_kafka_mock_cluster_new": (c_void_p, (c_void_p, c_int)),
    "rd_kafka_mock_cluster_destroy": (None, (c_void_p,)),
    "rd_kafka_mock_cluster_bootstraps": (c_char_p, (c_void_p,)),
    "rd_kafka_mock_group_initial_rebalance_delay_ms": (None, (c_void_p, c_int32)),
    "rd_kafka_mock_topic_create": (c_int, (c_void_p, c_char_p, c_int, c_int)),
    "rd_kafka_mock_topic_set_error": (None, (c_void_p, c_char_p, c_int)),
    "rd_kafka_mock_push_request_errors_array": (None, (c_void_p, c_int16, c_size_t, POINTER(c_int))),
    "rd_kafka_mock_clear_request_errors": (None, (c_void_p, c_int16)),
    "rd_kafka_mock_broker_set_down": (c_int, (c_void_p, c_int32)),
    "rd_kafka_mock_broker_set_up": (c_int, (c_void_p, c_int32)),
    "rd_kafka_mock_broker_set_rtt": (c_int, (c_void_p, c_int32, c_int)),
}


@contextmanager
def _no_signals() -> Iterator[None]:
    """Hold back this thread's signals while the block runs."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def find_librdkafka() -> Iterator[str]:
    """Yield where librdkafka may be, best first: mapped in this process, in macOS's wheel, the system's."""
    mapped = Path("/proc/self/maps")
    if mapped.exists():
        lines = mapped.read_text(encoding="utf-8", errors="replace").splitlines()
        yield from sorted({line.split(maxsplit=5)[5] for line in lines if "/librdkafka" in line})
    yield from map(str, sorted(Path(confluent_kafka.__file__).parent.glob(".dylibs/librdkafka*.dylib")))
    system = ctypes.util.find_library("rdkafka")
    if system:
        yield system


def load_mock_api(paths: Iterable[str]) -> ctypes.CDLL:
    """Return the first librdkafka of ``paths`` that exports the whole mock interface, declared.

    Raises:
        PeerError: there is none.
    """
    for path in paths:
        try:
            library = ctypes.CDLL(path)
            for name, (result, arguments) in _SIGNATURES.items():
                function = getattr(library, name)
                function.restype, function.argtypes = result, list(arguments)
        except (OSError, AttributeError):
            continue
        return library
    raise PeerError(
        "the embedded broker cannot start: librdkafka's C interface was not found; install confluent-kafka from a wheel"
    )


RETENTION_BYTES: Final = 5 * 1024 * 1024
"""What the mock keeps per partition, in stored (compressed) bytes; not configurable."""

_RD_KAFKA_PRODUCER: Final = 0
_ERROR_TEXT_BYTES: Final = 512
_TIMEOUT_S: Final = 10.0
_MOST_PARTITIONS: Final = 10_000
_REBALANCE_DELAY_MS: Final = 100
"""How long a new group waits for more members (Kafka: 3 s)."""

_log = logging.getLogger(__name__)


class EmbeddedKafka:
    """A Kafka on loopback that lives as long as the ``with`` block.

    ::

        with EmbeddedKafka() as kafka:
            kafka.create_topic("orders", partitions=4)
            producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})

    ``brokers`` have the ids 1 to n. A topic is created with four partitions at its first use. ``api_keys`` and error
    codes of the fault injection are those of the Kafka protocol (Produce is 0, Fetch 1; ``KafkaError`` codes of
    confluent-kafka fit).

    Raises ``PeerError`` when it cannot start and for any refusal of librdkafka.
    """

    PRODUCE: Final = 0

    def __init__(self, *, brokers: int = 1) -> None:
        if brokers < 1:
            raise UsageError(f"the embedded broker needs at least one broker, not {brokers}")
        self._brokers = brokers
        self._cluster: int | None = None

    def __enter__(self) -> Self:
        with _no_signals():  # one that comes to the mock's thread ends it; threads begin with the caller's mask
            self._start(load_mock_api(find_librdkafka()))
        return self

    def _start(self, api: Any) -> None:
        self._api = api
        error = ctypes.create_string_buffer(_ERROR_TEXT_BYTES)
        conf = api.rd_kafka_conf_new()
        # The mock logs every injected fault to stderr; level 0 leaves emergencies only.
        api.rd_kafka_conf_set(conf, b"log_level", b"0", error, _ERROR_TEXT_BYTES)
        self._handle: int | None = api.rd_kafka_new(_RD_KAFKA_PRODUCER, conf, error, _ERROR_TEXT_BYTES)
        if not self._handle:
            raise PeerError(f"the embedded broker did not start: {error.value.decode(errors='replace')}")
        self._cluster = api.rd_kafka_mock_cluster_new(self._handle, self._brokers)
        if not self._cluster:
            api.rd_kafka_destroy(self._handle)
            raise PeerError(
                f"the embedded broker did not start with {self._brokers} brokers: is loopback TCP allowed here?"
            )
        self._pid = os.getpid()
        self._bootstrap = str(api.rd_kafka_mock_cluster_bootstraps(self._cluster).decode())
        self._call("group_initial_rebalance_delay_ms", _REBALANCE_DELAY_MS)

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop the brokers and their threads; every byte is gone. Called again, or in a fork, it does nothing."""
        if self._cluster is not None and self._pid == os.getpid():  # a fork has none of the threads it would wait for
            self._wake()
            self._api.rd_kafka_mock_cluster_destroy(self._cluster)
            self._api.rd_kafka_destroy(self._handle)
            self._cluster = None

    @property
    def bootstrap_servers(self) -> str:
        """``host:port`` pairs joined by commas, for ``bootstrap.servers``."""
        if self._cluster is None:
            raise UsageError("the embedded broker is not running: use it inside 'with EmbeddedKafka() as kafka:'")
        return self._bootstrap

    def _call(self, function: str, *arguments: Any) -> None:
        """Call ``rd_kafka_mock_<function>`` on this cluster; a non-zero result becomes a ``PeerError``."""
        self._wake()
        code = getattr(self._api, f"rd_kafka_mock_{function}")(self._cluster, *arguments)
        if code:
            reason = self._api.rd_kafka_err2str(code).decode(errors="replace")
            raise PeerError(f"the embedded broker refused {function}{arguments}: {reason}")

    def _wake(self) -> None:
        """Connect once: the mock's thread may sleep a second over a request that comes right after it served one."""
        for address in self.bootstrap_servers.split(","):
            host, _, port = address.rpartition(":")
            with suppress(OSError):  # a broker that is down
                socket.create_connection((host, int(port)), _TIMEOUT_S).close()
                return

    def create_topic(self, name: str, partitions: int = 1) -> None:
        """Create a topic with exactly ``partitions`` partitions; a topic that exists is a ``PeerError``."""
        if not (name and 0 < partitions <= _MOST_PARTITIONS):  # librdkafka ends the process for some
            raise UsageError(
                f"a topic needs a name and from 1 to {_MOST_PARTITIONS} partitions, not {name!r} and {partitions}"
            )
        self._call("topic_create", name.encode(), partitions, self._brokers)

    def push_request_errors(self, api_key: int, *codes: int) -> None:
        """Answer the next ``len(codes)`` requests of this kind with these errors (0: let that one pass)."""
        self._call("push_request_errors_array", api_key, len(codes), (ctypes.c_int * len(codes))(*codes))

    def clear_request_errors(self, api_key: int) -> None:
        """Forget the errors that were pushed and not yet given."""
        self._call("clear_request_errors", api_key)

    def set_topic_error(self, topic: str, code: int) -> None:
        """Answer metadata and produce requests for ``topic`` with this error from now on; 0 heals it."""
        self._call("topic_set_error", topic.encode(), code)

    def broker_down(self, broker_id: int) -> None:
        """Disconnect a broker and refuse its connections: what it leads waits or times out."""
        self._call("broker_set_down", broker_id)

    def broker_up(self, broker_id: int) -> None:
        """Let a broker that was down answer again."""
        self._call("broker_set_up", broker_id)

    def set_rtt(self, broker_id: int, rtt_ms: int) -> None:
        """Delay every answer of a broker (-1: of all) by ``rtt_ms`` milliseconds."""
        self._call("broker_set_rtt", broker_id, rtt_ms)

    def watermarks(self, topic: str) -> dict[int, tuple[int, int]]:
        """Return partition → (first kept offset, next offset), from the broker, not from a cache."""
        conf = {"bootstrap.servers": self.bootstrap_servers, "group.id": "embedded-watermarks", "log_level": 0}
        consumer = cimpl.Consumer(conf, logger=_log)
        try:
            partitions = consumer.list_topics(topic, timeout=_TIMEOUT_S).topics[topic].partitions
            return {
                number: consumer.get_watermark_offsets(TopicPartition(topic, number), timeout=_TIMEOUT_S)
                for number in sorted(partitions)
            }
        except KafkaException as error:
            raise PeerError(f"the embedded broker did not return the offsets of {topic}: {error}") from error
        finally:
            consumer.close()

    def assert_untrimmed(self, topic: str) -> None:
        """Raise ``PeerError`` if retention has dropped messages of ``topic``: whatever was counted on it is void."""
        lost = {number: low for number, (low, _) in self.watermarks(topic).items() if low > 0}
        if lost:
            where = ", ".join(f"{count} of partition {number}" for number, count in lost.items())
            raise PeerError(
                f"the embedded broker trimmed messages of topic {topic} ({where}): it keeps about "
                f"{RETENTION_BYTES >> 20} MiB per partition; send less, over more partitions, or to a real broker"
            )
