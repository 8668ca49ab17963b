"""Consumer lag and queue lengths from librdkafka's statistics, and how a client is made to report them.

The fields are those of librdkafka's STATISTICS.md. No convention names such metrics, so the names are ours. The
callback keeps the text and calls the application's own callback; the metric reader's thread parses the JSON.
"""

from __future__ import annotations

import json
import operator
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from opentelemetry.instrumentation.utils import is_instrumentation_enabled
from opentelemetry.metrics import CallbackOptions, Observation

from otel_mqtrace import semconv
from otel_mqtrace._clock import NS_PER_MS
from otel_mqtrace._workers import LiveObjects
from otel_mqtrace.clients.confluent_kafka.client import active, configuration_of
from otel_mqtrace.hooks.guard import guarded
from otel_mqtrace.hooks.tracing import ClientInfo, Tracing

if TYPE_CHECKING:
    from opentelemetry.metrics import Meter

    from otel_mqtrace._clock import Clock
    from otel_mqtrace.clients.state import Arguments


Reading = tuple[dict[str, str], float]
"""Attributes besides the client's own, and a value."""
Statistics = Mapping[str, Any]
_MOST_PARTITIONS: Final = 1_000


class Measurement(NamedTuple):
    """One gauge. ``combine`` joins the values of clients with equal attributes."""

    name: str
    unit: str
    description: str
    read: Callable[[Statistics], Iterator[Reading]]
    combine: Callable[[float, float], float] = operator.add


def _partitions(statistics: Statistics) -> Iterable[tuple[str, Mapping[str, Any]]]:
    """The partitions assigned to a consumer; -1 is librdkafka's own, a partition given away is not desired."""
    assigned = (
        (str(topic), partition)
        for topic, known in statistics.get("topics", {}).items()
        for partition in known.get("partitions", {}).values()
        if partition.get("desired") and partition.get("partition", -1) >= 0
    )
    return islice(assigned, _MOST_PARTITIONS)


def _lags(statistics: Statistics) -> Iterator[Reading]:
    for topic, partition in _partitions(statistics):
        lag = _lag(partition)
        if lag is not None:
            number = str(partition["partition"])
            yield {semconv.MESSAGING_DESTINATION_NAME: topic, semconv.MESSAGING_DESTINATION_PARTITION_ID: number}, lag


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


def _fetched(statistics: Statistics) -> Iterator[Reading]:
    """Messages that were fetched and not handed over: never more than the queue holds, which holds events too.

    librdkafka counts the queue of a partition where that is forwarded to, so each partition of a consumer reports the
    length of the one queue that all share: statistics, rebalances and errors that wait for a poll included.
    """
    if statistics.get("type") == "consumer":
        partitions = [partition for _, partition in _partitions(statistics)]
        yield {}, min(_shared(partitions, "fetchq_cnt"), sum(map(_waiting, partitions)))


def _fetched_bytes(statistics: Statistics) -> Iterator[Reading]:
    """The bodies in the one queue; an event there counts nothing."""
    if statistics.get("type") == "consumer":
        yield {}, _shared([partition for _, partition in _partitions(statistics)], "fetchq_size")


def _shared(partitions: Iterable[Mapping[str, Any]], field: str) -> int:
    return max((int(each.get(field, 0)) for each in partitions), default=0)


def _waiting(partition: Mapping[str, Any]) -> int:
    """Offsets between what was handed over and what is fetched next; all that came, where nothing was handed over."""
    handed, fetched = partition.get("app_offset", -1), partition.get("next_offset", -1)
    return max(0, int(fetched) - int(handed)) if handed >= 0 else int(partition.get("rxmsgs", 0))


def _unanswered(field: str) -> Callable[[Statistics], Iterator[Reading]]:
    def read(statistics: Statistics) -> Iterator[Reading]:
        if statistics.get("type") == "producer":
            yield {}, statistics.get(field, 0)

    return read


MEASUREMENTS: Final = (
    Measurement(
        "mqtrace.client.consumer.lag",
        "{message}",
        "Messages of an assigned partition that the group has not committed, or not been handed, yet.",
        _lags,
        combine=max,
    ),
    Measurement(
        "mqtrace.client.consumer.queue.messages",
        "{message}",
        "Messages fetched from the brokers that wait for the application.",
        _fetched,
    ),
    Measurement("mqtrace.client.consumer.queue.bytes", "By", "The size of what was fetched and waits.", _fetched_bytes),
    Measurement(
        "mqtrace.client.producer.queue.messages",
        "{message}",
        "Messages that wait to be sent or to be answered.",
        _unanswered("msg_cnt"),
    ),
    Measurement("mqtrace.client.producer.queue.bytes", "By", "The size of what waits.", _unanswered("msg_size")),
)

_INTERVAL: Final = "statistics.interval.ms"
_CALLBACK: Final = "stats_cb"
_FRESH_INTERVALS: Final = 3
_FRESH_AT_LEAST_MS: Final = 60_000

Key = tuple[tuple[str, str], ...]
"""Attributes as something to look up."""


class ClientReport:
    """The last statistics of one client, which calls it with the text; ``user`` is then called with the same text.

    What ``user`` raises reaches the application's ``poll``, as without us.
    """

    def __init__(
        self,
        attributes: Mapping[str, str],
        *,
        interval_ms: int,
        user: Callable[[str], object] | None,
        clock: Clock,
    ) -> None:
        self.attributes = attributes
        self._user = user
        self._clock = clock
        self._fresh_ns = max(_FRESH_INTERVALS * interval_ms, _FRESH_AT_LEAST_MS) * NS_PER_MS
        self._last: tuple[str, int] | None = None
        self._parsed: tuple[str, Mapping[str, Any]] = ("", {})

    def __call__(self, text: str) -> object:
        """Take the statistics."""
        self._last = text, self._clock.monotonic_ns()
        return None if self._user is None else self._user(text)

    def statistics(self) -> Mapping[str, Any]:
        """Return the last statistics, parsed once; nothing when they are older than three intervals and a minute."""
        if self._last is None or self._clock.monotonic_ns() - self._last[1] > self._fresh_ns:
            return {}
        text = self._last[0]
        if self._parsed[0] != text:
            self._parsed = text, json.loads(text)
        return self._parsed[1]


class ClientStatistics:
    """The observable instruments of one meter, over all clients that report."""

    def __init__(self, meter: Meter) -> None:
        self._reports: LiveObjects[ClientReport] = LiveObjects()
        for each in MEASUREMENTS:
            meter.create_observable_gauge(
                each.name, [partial(self._observed, each)], unit=each.unit, description=each.description
            )

    def add(self, report: ClientReport) -> None:
        """Include a client, for as long as it lives."""
        self._reports.add(report)

    def observe(self, measurement: Measurement) -> Iterable[Observation]:
        """Return one observation for each set of attributes; none of an excluded topic, or while tracing is off."""
        tracing = active.tracing
        if tracing is None:
            return []
        joined: dict[Key, float] = {}
        for report in self._reports.all():
            for attributes, value in measurement.read(report.statistics()):
                topic = attributes.get(semconv.MESSAGING_DESTINATION_NAME)
                if topic is None or not tracing.settings.excludes(topic):
                    key = tuple(sorted({**report.attributes, **attributes}.items()))
                    joined[key] = measurement.combine(joined[key], value) if key in joined else value
        return [Observation(value, dict(key)) for key, value in joined.items()]

    def _observed(self, measurement: Measurement, _options: CallbackOptions) -> Iterable[Observation]:
        return guarded("ClientStatistics.observe")(self.observe)(measurement) or ()


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
