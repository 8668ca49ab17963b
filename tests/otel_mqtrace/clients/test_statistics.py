"""The client's own statistics as metrics: on request only, and never at the cost of the application's callback."""

import json

import confluent_kafka
import pytest
from opentelemetry import metrics
from opentelemetry.instrumentation.utils import suppress_instrumentation
from opentelemetry.sdk.metrics import MeterProvider

from otel_mqtrace.clients.confluent_kafka.client import active
from otel_mqtrace.clients.confluent_kafka.statistics import ClientReport, ClientStatistics
from otel_mqtrace.config import Settings
from otel_mqtrace.hooks.tracing import Tracing
from otel_mqtrace.instrumentor import MqTraceInstrumentor

LAG = "mqtrace.client.consumer.lag"
QUEUE = "mqtrace.client.producer.queue.messages"


@pytest.fixture
def measured(instrument, reader):
    provider = MeterProvider([reader])

    def switch_on(**options):
        instrument(meter_provider=provider, client_metrics=True, client_metrics_interval_ms=100, **options)

    yield switch_on
    provider.shutdown()


@pytest.fixture
def points(points):
    return lambda name: {tuple(sorted(attributes.items())): point.value for attributes, point in points(name)}


def _until(result, turn, *, turns=200):
    for _ in range(turns):
        if found := result():
            return found
        turn()
    raise AssertionError("nothing was reported")


def test_lag_is_the_uncommitted_messages_of_the_group(measured, kafka, topic, fill, consumer_of, points, spans):
    fill(topic, *[{"value": b"x"}] * 10)
    measured()
    consumer = consumer_of(topic)
    consumer.commit(consumer.consume(3, 10)[-1], asynchronous=False)

    def lag():
        lags = points(LAG)
        return lags if 7 in lags.values() else None

    ((attributes, _),) = _until(lag, lambda: consumer.poll(0.1)).items()
    consumer.close()
    spans.take_all()
    of_client = {"system": "kafka", "client.id": "rdkafka", "consumer.group.name": "billing"}
    expected = {**of_client, "destination.name": topic, "destination.partition.id": "0"}
    assert dict(attributes) == {f"messaging.{name}": value for name, value in expected.items()}


@pytest.mark.parametrize("make_producer", ["Producer", "SerializingProducer"])
def test_producer_reports_its_queue(measured, producer_of, topic, points, spans, make_producer):
    measured()
    producer = producer_of(False, getattr(confluent_kafka, make_producer), client_id="till")
    producer.produce(topic, value=b"x")
    producer.flush(10)
    till = (("messaging.client.id", "till"), ("messaging.system", "kafka"))
    _until(lambda: points(QUEUE) == {till: 0}, lambda: producer.poll(0.1))  # the first report may come before the flush
    spans.take(f"send {topic}")


def test_statistics_callback_of_the_application_is_called(measured, kafka, topic, points):
    calls = []

    def refuse(text):
        calls.append(json.loads(text)["client_id"])
        raise ZeroDivisionError(text[:1])

    conf = {"bootstrap.servers": kafka.bootstrap_servers, "client.id": "till", "statistics.interval.ms": 150}
    conf |= {"stats_cb": refuse, "log_level": 0}
    before = dict(conf)
    measured()
    producer = confluent_kafka.Producer(conf)
    assert conf == before

    with pytest.raises(ZeroDivisionError):
        _until(lambda: None, lambda: producer.poll(0.1))
    assert calls[0] == "till"
    assert points(QUEUE)


@pytest.mark.parametrize(
    "settings",
    [{"statistics.interval.ms": 0}, {"stats_cb": None}, {"stats_cb": "print"}],
    ids=["switched off", "no callback", "a name"],
)
def test_configuration_without_statistics_or_with_a_mistake_is_left_alone(measured, kafka, settings):
    """The client refuses what is no callback, and has to go on doing so."""
    measured()
    conf = {"bootstrap.servers": kafka.bootstrap_servers}
    assert active.configure(((), {**conf, **settings})) is None
    with suppress_instrumentation():
        assert active.configure(((), conf)) is None


def test_statistics_are_off_by_default(instrument):
    instrument()
    assert active.configure is None


SERVERS = {"bootstrap.servers": "b:1"}


@pytest.mark.parametrize(
    ("args", "kwargs"), [((SERVERS,), {}), ((), {"conf": SERVERS}), ((), SERVERS), ((SERVERS,), {"stats_cb": print})]
)
def test_configuration_is_extended_in_the_form_it_was_given(measured, args, kwargs):
    before = repr((args, kwargs))
    measured()
    changed_args, changed_kwargs = active.configure((args, kwargs))
    assert repr((args, kwargs)) == before
    merged = {**(changed_args[0] if changed_args else {}), **changed_kwargs, **changed_kwargs.get("conf", {})}
    assert merged["bootstrap.servers"] == "b:1"
    assert merged["statistics.interval.ms"] == 100
    assert isinstance(merged["stats_cb"], ClientReport)
    assert (len(changed_args), "conf" in changed_kwargs) == (len(args), "conf" in kwargs)


@pytest.fixture
def observe(monkeypatch):
    monkeypatch.setattr(active, "tracing", Tracing.create(settings=Settings(topic_exclude=("theirs",))))
    statistics = ClientStatistics(metrics.NoOpMeter("nobody"))

    def values(name, *reports):
        for report in reports:
            statistics.add(report)
        return sorted(each.value for each in statistics.observe(name))

    return values


def _report(clock, statistics, **attributes):
    report = ClientReport(attributes, interval_ms=100, user=None, clock=clock)
    report(json.dumps(statistics))
    return report


def _consumer(*partitions, topic="orders"):
    shown = {str(number): {"partition": number, "desired": True, **each} for number, each in enumerate(partitions)}
    return {"type": "consumer", "topics": {topic: {"partitions": shown}}}


LAGS = {
    "none": (_consumer({"consumer_lag": 0}), [0]),
    "stored": (_consumer({"consumer_lag": -1, "consumer_lag_stored": 4}), [4]),
    "handed over": (_consumer({"consumer_lag": -1, "app_offset": 8, "hi_offset": 10}), [2]),
    "unknown": (_consumer({"consumer_lag": -1, "app_offset": -1001, "hi_offset": 10, "eof_offset": -1001}), []),
    "at the end": (_consumer({"consumer_lag": -1, "app_offset": -1001, "hi_offset": 10, "eof_offset": 10}), [0]),
    "not assigned": (_consumer({"consumer_lag": 9, "desired": False}), []),
    "internal": (_consumer({"consumer_lag": 9, "partition": -1}), []),
    "excluded": (_consumer({"consumer_lag": 3}, topic="theirs"), []),
    "more series than are exported": (_consumer(*[{"consumer_lag": 1}] * 1500), [1] * 1000),
}


@pytest.mark.parametrize(("reported", "lag"), LAGS.values(), ids=LAGS)
def test_known_lag_is_reported(observe, clock, reported, lag):
    """Committed, else stored, else handed over; nothing of a partition that is not ours, and no made-up number."""
    assert observe(LAG, _report(clock, reported)) == lag


@pytest.mark.parametrize(
    ("partitions", "messages"),
    [
        ([{"next_offset": 9, "app_offset": 4}, {"next_offset": 3, "app_offset": 3}], 5),
        ([{"next_offset": 9, "app_offset": -1001, "rxmsgs": 2}, {"next_offset": 3, "app_offset": 2}], 3),
        ([{"next_offset": 90, "app_offset": 4}], 6),
        ([{"next_offset": 4, "app_offset": 9}], 0),
        ([{"next_offset": 90, "app_offset": -1001, "rxmsgs": 0}], 0),
        ([], 0),
    ],
)
def test_waiting_messages_are_counted_from_the_delivered_offset(observe, clock, partitions, messages):
    """The queue of six bounds it, for offsets have gaps; of a partition not begun, all that came waits."""
    counts = [{"fetchq_cnt": 6, "fetchq_size": 600, **each} for each in partitions]
    assert observe("mqtrace.client.consumer.queue.messages", _report(clock, _consumer(*counts))) == [messages]


def test_clients_are_added_up_until_their_reports_are_old_or_tracing_ends(observe, clock, monkeypatch):
    reports = [_report(clock, {"type": "producer", "msg_cnt": count}) for count in (2, 3)]
    assert observe(QUEUE, *reports) == [5]
    clock.advance(ms=61_000)
    assert observe(QUEUE) == []
    reports.append(_report(clock, {"type": "producer", "msg_cnt": 7}))
    assert observe(QUEUE, reports[-1]) == [7]
    monkeypatch.setattr(active, "tracing", None)
    assert observe(QUEUE) == []


def test_instrumenting_again_reuses_the_instruments(measured, caplog):
    measured()
    first = active.configure
    MqTraceInstrumentor().uninstrument()
    measured()
    assert active.configure is not first
    assert "already" not in caplog.text
