"""Consumer lag and queue lengths from librdkafka's statistics, and how a client is made to report them.

The fields are those of librdkafka's STATISTICS.md. No convention names such metrics, so the names are ours. The
callback keeps the text and calls the application's own callback; the metric reader's thread parses the JSON.
"""

from __future__ import annotations

import json
import weakref
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from opentelemetry.instrumentation.utils import is_instrumentation_enabled
from opentelemetry.metrics import CallbackOptions, Observation

from otel_mqtrace import semconv
from otel_mqtrace._clock import NS_PER_MS
from otel_mqtrace._workers import LiveObjects
from otel_mqtrace.clients.confluent_kafka.client import active, configuration_of
from otel_mqtrace.hooks.guard import guarded
from otel_mqtrace.hooks.tracing import ClientInfo, Tracing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from opentelemetry.metrics import Meter

    from otel_mqtrace._clock import Clock
    from otel_mqtrace.clients.state import Arguments


_LAG: Final = "mqtrace.client.consumer.lag"
_FETCHED, _FETCHED_BYTES = "mqtrace.client.consumer.queue.messages", "mqtrace.client.consumer.queue.bytes"
_UNANSWERED, _UNANSWERED_BYTES = "mqtrace.client.producer.queue.messages", "mqtrace.client.producer.queue.bytes"
_GAUGES: Final[Mapping[str, tuple[str, str]]] = {
    _LAG: ("{message}", "Messages of an assigned partition that the group has not committed, or not been handed, yet."),
    _FETCHED: ("{message}", "Messages fetched from the brokers that wait for the application."),
    _FETCHED_BYTES: ("By", "The size of what was fetched and waits."),
    _UNANSWERED: ("{message}", "Messages that wait to be sent or to be answered."),
    _UNANSWERED_BYTES: ("By", "The size of what waits."),
}
"""Gauge → its unit and description."""
Reading = tuple[str, dict[str, str], float]
"""A gauge, attributes besides the client's own, and a value."""
_MOST_PARTITIONS: Final = 1_000


def _read(statistics: Mapping[str, Any]) -> Iterator[Reading]:
    """Yield what the statistics of a client have for each gauge.

    librdkafka counts the queue of a partition where that is forwarded to, so each partition of a consumer reports the
    length of the one queue that all share: statistics, rebalances and errors that wait for a poll included. No more
    messages wait there than offsets between what was handed over and what is fetched next.
    """
    if statistics.get("type") == "producer":
        yield _UNANSWERED, {}, statistics.get("msg_cnt", 0)
        yield _UNANSWERED_BYTES, {}, statistics.get("msg_size", 0)
    if statistics.get("type") != "consumer":
        return
    topics = statistics.get("topics", {}).items()
    every = ((str(topic), each) for topic, known in topics for each in known.get("partitions", {}).values())
    # -1 is librdkafka's own; a partition given away is not desired
    assigned = ((topic, each) for topic, each in every if each.get("desired") and each.get("partition", -1) >= 0)
    partitions = [*islice(assigned, _MOST_PARTITIONS)]
    for topic, each in partitions:
        place = {
            semconv.MESSAGING_DESTINATION_NAME: topic,
            semconv.MESSAGING_DESTINATION_PARTITION_ID: str(each["partition"]),
        }
        if (lag := _lag(each)) is not None:
            yield _LAG, place, lag
    queued = max((int(each.get("fetchq_cnt", 0)) for _, each in partitions), default=0)
    yield _FETCHED, {}, min(queued, sum(_waiting(each) for _, each in partitions))
    yield _FETCHED_BYTES, {}, max((int(each.get("fetchq_size", 0)) for _, each in partitions), default=0)


def _lag(partition: Mapping[str, Any]) -> int | None:
    """Behind what the group committed; where it has committed nothing, behind what the application was handed."""
    known = (partition.get(name, -1) for name in ("consumer_lag", "consumer_lag_stored"))
    lag = next((each for each in known if each >= 0), None)
    if lag is not None:
        return int(lag)
    position, end, seen = (partition.get(name, -1) for name in ("app_offset", "hi_offset", "eof_offset"))
    if end < 0:
        return None
    if position >= 0:
        return max(0, int(end) - int(position))
    return 0 if seen == end else None  # nothing to hand over, or nothing handed over yet


def _waiting(partition: Mapping[str, Any]) -> int:
    """Offsets between what was handed over and what is fetched next; all that came, where nothing was handed over."""
    handed, fetched = partition.get("app_offset", -1), partition.get("next_offset", -1)
    return max(0, int(fetched) - int(handed)) if handed >= 0 else int(partition.get("rxmsgs", 0))


_INTERVAL: Final = "statistics.interval.ms"
_CALLBACK: Final = "stats_cb"
_FRESH_INTERVALS: Final = 3
_FRESH_AT_LEAST_MS: Final = 60_000


class ClientReport:
    """The last statistics of one client, which calls it with the text; ``user`` is then called with the same text.

    What ``user`` raises reaches the application's ``poll``, as without us.
    """

    def __init__(
        self, attributes: Mapping[str, str], *, interval_ms: int, user: Callable[[str], object] | None, clock: Clock
    ) -> None:
        self.attributes = attributes
        self._user = user
        self._clock = clock
        self._fresh_ns = max(_FRESH_INTERVALS * interval_ms, _FRESH_AT_LEAST_MS) * NS_PER_MS
        self._last = "", 0
        self._known: tuple[str, list[Reading]] = "", []

    def __call__(self, text: str) -> object:
        """Take the statistics."""
        self._last = text, self._clock.monotonic_ns()
        return None if self._user is None else self._user(text)

    def readings(self) -> list[Reading]:
        """Return what the last statistics have, read once; nothing of some older than three intervals and a minute."""
        text, taken_ns = self._last
        if self._clock.monotonic_ns() - taken_ns > self._fresh_ns:
            return []
        if self._known[0] != text:
            self._known = text, [*_read(json.loads(text))]
        return self._known[1]


class ClientStatistics:
    """The observable instruments of one meter, over all clients that report."""

    def __init__(self, meter: Meter) -> None:
        self._reports: LiveObjects[ClientReport] = LiveObjects()
        for name, (unit, description) in _GAUGES.items():
            meter.create_observable_gauge(name, [partial(self._observed, name)], unit, description)

    def add(self, report: ClientReport) -> None:
        """Include a client, for as long as it lives."""
        self._reports.add(report)

    def observe(self, gauge: str) -> list[Observation]:
        """Return one observation for each set of attributes; none of an excluded topic, or while tracing is off.

        Of clients with equal attributes the lag is that of the one furthest behind; what waits is added up.
        """
        tracing = active.tracing
        if tracing is None:
            return []
        values: dict[tuple[tuple[str, str], ...], list[float]] = {}
        for report in self._reports.all():
            for name, attributes, value in report.readings():
                topic = attributes.get(semconv.MESSAGING_DESTINATION_NAME)
                if name == gauge and (topic is None or not tracing.settings.excludes(topic)):
                    key = tuple(sorted({**report.attributes, **attributes}.items()))
                    values.setdefault(key, []).append(value)
        join = max if gauge == _LAG else sum
        return [Observation(join(each), dict(key)) for key, each in values.items()]

    def _observed(self, gauge: str, _options: CallbackOptions) -> Iterable[Observation]:
        return guarded("ClientStatistics.observe")(self.observe)(gauge) or ()


_of_meter: Final[weakref.WeakKeyDictionary[Meter, ClientStatistics]] = weakref.WeakKeyDictionary()


def make_configure(tracing: Tracing) -> Callable[[Arguments], Arguments | None] | None:
    """Return what changes a client's configuration so that it reports; ``None`` when ``client_metrics`` is off."""
    if not tracing.settings.client_metrics or tracing.meter is None:
        return None
    statistics = _of_meter.get(tracing.meter)  # a second set of instruments would be refused with a warning
    if statistics is None:
        statistics = _of_meter.setdefault(tracing.meter, ClientStatistics(tracing.meter))

    return guarded("ClientStatistics.configure")(lambda arguments: _reporting(arguments, tracing, statistics))


def _reporting(arguments: Arguments, tracing: Tracing, statistics: ClientStatistics) -> Arguments | None:
    if not (arguments[0] or arguments[1]) or not is_instrumentation_enabled():
        return None
    conf = configuration_of(*arguments)
    interval_ms = int(conf.get(_INTERVAL, tracing.settings.client_metrics_interval_ms))
    user = conf.get(_CALLBACK)
    if interval_ms <= 0 or isinstance(user, ClientReport) or (_CALLBACK in conf and not callable(user)):
        return None  # switched off in so many words; a constructor that calls another one; a mistake for the client
    report = ClientReport(_attributes(conf), interval_ms=interval_ms, user=user, clock=tracing.clock)
    statistics.add(report)
    return _with(arguments, {_CALLBACK: report, _INTERVAL: interval_ms})


def _attributes(conf: Mapping[str, Any]) -> dict[str, str]:
    info = ClientInfo.of_kafka(conf, group_name=None)
    fields = {
        semconv.MESSAGING_SYSTEM: info.system,
        semconv.MESSAGING_CLIENT_ID: info.client_id,
        semconv.MESSAGING_CONSUMER_GROUP_NAME: conf.get("group.id"),
    }
    return {name: str(value) for name, value in fields.items() if value is not None}


def _with(arguments: Arguments, additions: Mapping[str, Any]) -> Arguments:
    """Return the arguments with ``additions`` where the configuration stands; the caller's dict stays as it was."""
    args, kwargs = arguments
    over = {name: value for name, value in additions.items() if name in kwargs}  # keywords win over the dict
    if args and isinstance(args[0], dict):
        return ({**args[0], **additions}, *args[1:]), {**kwargs, **over}
    if isinstance(kwargs.get("conf"), dict):
        return args, {**kwargs, **over, "conf": {**kwargs["conf"], **additions}}
    return args, {**kwargs, **additions}
