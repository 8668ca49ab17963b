"""A message goes by its id, and without one by the place where it lies."""

from __future__ import annotations

import pytest

from tests.spark_jobs.normalise.made_spans import events, span

ID = "messaging.message.id"
PARTITION, OFFSET = "messaging.destination.partition.id", "messaging.kafka.offset"
LIES = {PARTITION: "3", OFFSET: "77"}


def ids(attributes, links=()):
    kafka = {"messaging.system": "kafka", "messaging.operation.type": "process", "messaging.destination.name": "a.b"}
    return [(event["msg_id"], event["offset_msg_id"]) for event in events(span({**kafka, **attributes}, links=links))]


@pytest.mark.parametrize(
    ("attributes", "msg_id", "place"),
    [
        (LIES, "a.b-3@77", "a.b-3@77"),
        ({**LIES, ID: "cafe"}, "CAFE", "a.b-3@77"),
        ({**LIES, "mqtrace.offset_msg_id": "beef"}, "BEEF", "BEEF"),
        ({**LIES, ID: " cafe "}, "CAFE", "a.b-3@77"),
        ({**LIES, ID: "null"}, None, "a.b-3@77"),
        ({**LIES, OFFSET: "-1"}, None, None),
        ({**LIES, PARTITION: "2147483648"}, None, None),
        ({PARTITION: "3"}, None, None),
        ({ID: "a.b.3.77"}, "a.b-3@77", "a.b-3@77"),
        ({ID: "a.b.0.3.77"}, "a.b.0-3@77", "a.b.0-3@77"),
        ({ID: "a.b.3.77", **LIES, OFFSET: "78"}, "a.b-3@78", "a.b-3@78"),
        ({ID: "a.b.3.x"}, "a.b.3.x", None),
        ({ID: "a.b.3.٣"}, "a.b.3.٣", None),
        ({ID: "a.b.3.77\n"}, "a.b.3.77\n", None),
        ({ID: "c.3.77"}, "c.3.77", None),
        ({ID: "a.b.3.77", "messaging.system": "rocketmq"}, "a.b.3.77", None),
        ({}, None, None),
    ],
)
def test_a_message_of_kafka_goes_by_its_place_when_it_has_no_id(attributes, msg_id, place):
    """The place may be facts in attributes, or as an id with dots; a part that is no number makes none."""
    assert ids(attributes) == [(msg_id, place)]


def test_each_message_of_a_batch_has_a_place_of_its_own():
    """The topic stands on the span, the offsets on the links."""
    assert ids({PARTITION: "4"}, [{OFFSET: "7"}, {OFFSET: "8"}]) == [("a.b-4@7", "a.b-4@7"), ("a.b-4@8", "a.b-4@8")]
