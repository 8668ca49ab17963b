"""Partition leaders: looked up in the background, read from memory.

Each look-up makes a short-lived client of the application's connection settings: a consumer's own ``list_topics`` has
crashed (confluentinc/librdkafka#4214), and a producer's would use a handle that the application's ``close`` frees.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from opentelemetry.instrumentation.utils import suppress_instrumentation

from otel_mqtrace._clock import Clock, SystemClock, pause
from otel_mqtrace._workers import Worker, call_blocking, restart_in_child
from otel_mqtrace.client_properties import connection_settings, servers_of
from otel_mqtrace.hooks.guard import guarded
from otel_mqtrace.hooks.sampling import MAX_TOPICS

Hosts = Mapping[int, str]
"""Partition → ``host:port`` of its leader."""
TopicLeaders = tuple[str, Hosts, str | None]
"""A topic, its leaders, the id of their cluster."""
LookUp = Callable[[Mapping[str, Any], Iterable[str]], Iterator[TopicLeaders]]
"""Connection, topics → the leaders of each topic."""

_FRESH_NS: Final = 300_000_000_000
_RETRY_NS: Final = 60_000_000_000
_MAX_CLUSTERS: Final = 16
_TIMEOUT_S: Final = 5.0
_GATHER_S: Final = 0.001
"""How long a new thread waits for more topics; making a client holds the GIL, and the caller has gone on by then."""
_QUIET: Final[Mapping[str, Any]] = {
    "client.id": "mqtrace",
    "log_level": 0,  # what it cannot reach, the application's own client reports
    "allow.auto.create.topics": False,  # a look-up must not create the topic
}


@dataclass(frozen=True, slots=True)
class _Known:
    hosts: Hosts
    stale_ns: int


class Leaders:
    """The partition leaders of one cluster; each topic is looked up again in five minutes (in vain: in one).

    ``max_topics`` bounds the waiting topics and the remembered ones. Where more are in use the oldest goes, and the
    next look-up is a minute later.
    """

    def __init__(
        self,
        connection: Mapping[str, Any],
        *,
        look_up: LookUp | None = None,
        clock: Clock | None = None,
        max_topics: int = MAX_TOPICS,
    ) -> None:
        query = look_up or query_cluster
        # A closure, so that the client's attributes (in a crash report, for example) hold no password.
        self._look_up: Callable[[Iterable[str]], Iterator[TopicLeaders]] = lambda topics: query(connection, topics)
        self._clock = clock or SystemClock()
        self._max_topics = max_topics
        self._known: dict[str, _Known] = {}
        self._wanted: dict[str, None] = {}
        self._paused_until_ns = 0
        # guards _wanted and _worker; a signal handler may produce while its thread holds it
        self._lock = threading.RLock()
        self.cluster_id: str | None = None
        """The id of the cluster, as of the last lookup; ``None`` before the first."""
        self._worker = self._new_worker()
        restart_in_child(self)

    def of(self, topic: str | None, partition: int | None) -> str | None:
        """Return ``host:port`` of the leader, even a stale one during a look-up, or ``None``; never waits."""
        if topic is None or partition is None or partition < 0:
            return None
        known = self._known.get(topic)
        if known is None or self._clock.monotonic_ns() >= known.stale_ns:
            self._request(topic)
        return None if known is None else known.hosts.get(partition)

    def want(self, topic: str) -> None:
        """Have ``topic`` looked up soon, unless it ever was: :meth:`of` keeps it fresh."""
        if topic not in self._known:
            self._request(topic)

    def _request(self, topic: str) -> None:
        """Queue ``topic``, if there is room."""
        with self._lock:
            if topic in self._wanted or len(self._wanted) < self._max_topics:
                self._wanted[topic] = None
                if self._clock.monotonic_ns() >= self._paused_until_ns:
                    self._worker.ensure_running()

    def _next_topics(self) -> tuple[str, ...]:
        """Return the topics to look up; with none, the worker ends and a later request starts another."""
        with self._lock:
            topics = tuple(self._wanted) if self._clock.monotonic_ns() >= self._paused_until_ns else ()
            if not topics:
                self._worker = self._new_worker()
            return topics

    @guarded("Leaders.refresh")
    def _refresh(self, topics: Sequence[str]) -> None:
        try:
            for topic, hosts, cluster_id in self._look_up(topics):
                self.cluster_id = cluster_id or self.cluster_id
                self._remember(topic, hosts, _FRESH_NS if hosts else _RETRY_NS)
        except KafkaException:
            pass  # the cluster does not answer: the application sees that itself
        finally:
            for topic in self._wanted.keys() & set(topics):
                self._remember(topic, {}, _RETRY_NS)

    def settle(self, timeout_s: float) -> None:
        """Wait until the thread, if there is one, has nothing left to look up."""
        self._worker.join(timeout_s)

    def after_fork(self) -> None:
        """Start over in a child, where no other thread lives; what was learned stays true."""
        self._wanted = {}
        self._lock = threading.RLock()
        self._worker = self._new_worker()

    def _new_worker(self) -> Worker:
        return Worker("mqtrace leaders", self._run)

    def _run(self) -> None:
        pause(_GATHER_S)
        while topics := self._next_topics():
            self._refresh(topics)

    def _remember(self, topic: str, hosts: Hosts, for_ns: int) -> None:
        before = self._known.pop(topic, None)
        if not hosts and before is not None:
            hosts = before.hosts
        now_ns = self._clock.monotonic_ns()
        while len(self._known) >= self._max_topics:
            self._known.pop(next(iter(self._known)), None)
            self._paused_until_ns = now_ns + _RETRY_NS
        self._known[topic] = _Known(hosts, now_ns + for_ns)
        self._wanted.pop(topic, None)


def query_cluster(connection: Mapping[str, Any], topics: Iterable[str]) -> Iterator[tuple[str, Hosts, str | None]]:
    """Yield the leaders of each topic, no leader of one that does not, or cannot, exist, and the cluster's id.

    Raises ``KafkaException`` when the cluster does not answer within five seconds.
    """
    with suppress_instrumentation():
        client = AdminClient({**connection, **_QUIET})
        for topic in topics:
            try:
                metadata = call_blocking(client.list_topics, topic, _TIMEOUT_S)
            except ValueError:  # no name that could be sent to a broker: a NUL inside, or half a surrogate pair
                yield topic, {}, None
                continue
            brokers = {broker.id: f"{broker.host}:{broker.port}" for broker in metadata.brokers.values()}
            partitions = metadata.topics[topic].partitions.values() if topic in metadata.topics else ()
            hosts = {each.id: brokers[each.leader] for each in partitions if each.leader in brokers}
            yield topic, hosts, metadata.cluster_id


_clusters: Final[dict[str, Leaders]] = {}


def leaders_of(conf: Mapping[str, Any]) -> Leaders | None:
    """Return the leaders of the cluster ``conf`` names, shared by its clients; ``None`` when it cannot be looked up.

    That is: no server is named, an OAuth callback is needed (it belongs to the application's client), or 16 clusters
    are known already.
    """
    servers = servers_of(conf)
    if not servers or conf.get("oauth_cb") is not None:
        return None
    leaders = _clusters.get(servers)
    if leaders is None and len(_clusters) < _MAX_CLUSTERS:
        leaders = _clusters.setdefault(servers, Leaders(connection_settings(conf)))
    return leaders


def forget_leaders() -> None:
    """Forget every cluster; the settings kept for asking hold secrets."""
    _clusters.clear()
