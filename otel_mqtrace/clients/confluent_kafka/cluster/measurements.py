"""This module knows what of librdkafka's statistics becomes a metric: one table, and how each value is read.

The fields are those of librdkafka's STATISTICS.md. No convention names such metrics, so the names are ours.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from otel_mqtrace import semconv

__all__ = ["MEASUREMENTS", "Measurement", "Reading"]

Reading = tuple[dict[str, str | int], float]
"""Attributes besides the client's own, and a value."""
Statistics = Mapping[str, Any]
_MOST_PARTITIONS: Final = 1_000
_MOST_BROKERS: Final = 64
_MICROSECONDS: Final = 1e6


class Measurement(NamedTuple):
    """One metric. ``combine`` joins the values of several clients that look the same from outside.

    ``grows`` tells a counter from a gauge.
    """

    name: str
    unit: str
    description: str
    read: Callable[[Statistics], Iterator[Reading]]
    combine: Callable[[float, float], float] = operator.add
    grows: bool = False


def _partitions(statistics: Statistics) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The partitions assigned to a consumer; -1 is librdkafka's own, a partition given away is not desired."""
    found = (
        (str(topic), partition)
        for topic, known in statistics.get("topics", {}).items()
        for partition in known.get("partitions", {}).values()
        if partition.get("desired") and partition.get("partition", -1) >= 0
    )
    yield from (each for each, _ in zip(found, range(_MOST_PARTITIONS), strict=False))


def _lags(statistics: Statistics) -> Iterator[Reading]:
    for topic, partition in _partitions(statistics):
        lag = _lag(partition)
        if lag is not None:
            number = str(partition["partition"])
            yield (
                {
                    semconv.MESSAGING_DESTINATION_NAME: topic,
                    semconv.MESSAGING_DESTINATION_PARTITION_ID: number,
                },
                lag,
            )


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

    librdkafka counts the queue of a partition where that is forwarded to, so each partition of a consumer tells the
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


def _whole(field: str) -> Callable[[Statistics], Iterator[Reading]]:
    def read(statistics: Statistics) -> Iterator[Reading]:
        if statistics.get("type") == "producer":
            yield {}, statistics.get(field, 0)

    return read


def _rebalances(statistics: Statistics) -> Iterator[Reading]:
    if "cgrp" in statistics:
        yield {}, statistics["cgrp"].get("rebalance_cnt", 0)


def _brokers(statistics: Statistics) -> Iterator[tuple[dict[str, str | int], Mapping[str, Any]]]:
    """The real brokers; a bootstrap address and the group's coordinator are other names of these."""
    real = [each for each in statistics.get("brokers", {}).values() if each.get("nodeid", -1) >= 0]
    for broker in real[:_MOST_BROKERS]:
        host, _, port = str(broker.get("nodename", "")).rpartition(":")
        if port.isdigit():
            yield {semconv.SERVER_ADDRESS: host.strip("[]"), semconv.SERVER_PORT: int(port)}, broker


def _per_broker(field: str) -> Callable[[Statistics], Iterator[Reading]]:
    def read(statistics: Statistics) -> Iterator[Reading]:
        yield from ((where, broker.get(field, 0)) for where, broker in _brokers(statistics))

    return read


def _round_trips(statistics: Statistics) -> Iterator[Reading]:
    for where, broker in _brokers(statistics):
        window = broker.get("rtt", {})
        if window.get("cnt"):
            yield where, window["avg"] / _MICROSECONDS


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
        "mqtrace.client.consumer.rebalances", "{rebalance}", "Rebalances of the group.", _rebalances, grows=True
    ),
    Measurement(
        "mqtrace.client.producer.queue.messages",
        "{message}",
        "Messages that wait to be sent or to be answered.",
        _whole("msg_cnt"),
    ),
    Measurement("mqtrace.client.producer.queue.bytes", "By", "The size of what waits.", _whole("msg_size")),
    Measurement(
        "mqtrace.client.broker.rtt",
        "s",
        "Mean time between a request to a broker and its answer, in the last interval.",
        _round_trips,
        combine=max,
    ),
    Measurement(
        "mqtrace.client.broker.requests", "{request}", "Requests sent to a broker.", _per_broker("tx"), grows=True
    ),
    Measurement(
        "mqtrace.client.broker.request.errors",
        "{request}",
        "Requests that could not be sent.",
        _per_broker("txerrs"),
        grows=True,
    ),
    Measurement(
        "mqtrace.client.broker.request.timeouts",
        "{request}",
        "Requests that a broker did not answer in time.",
        _per_broker("req_timeouts"),
        grows=True,
    ),
)
