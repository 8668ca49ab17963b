"""Read a topic with Spark's own Kafka connector, where its jar is present.

pyspark lacks the jar (``--packages org.apache.spark:spark-sql-kafka-0-10_2.13:VERSION`` or ``spark.jars``). It is a
Java client: librdkafka properties are translated, or the connector is not used.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from otel_mqtrace import semconv

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from spark_jobs.sources.kafka import PartitionRange

_SAME: Final = frozenset({"client.id", "client.rack", "security.protocol"})
_SASL: Final = frozenset({"sasl.mechanism", "sasl.mechanisms", "sasl.username", "sasl.password"})
_LOGINS: Final = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}


def java_properties(given: Mapping[str, str]) -> dict[str, str] | None:
    """Return the Java client's properties for librdkafka's ``given``; ``None`` where one has no translation."""
    properties = {name: value for name, value in given.items() if name in _SAME}
    rest = {name: value for name, value in given.items() if name not in _SAME}
    if rest.keys() & _SASL:
        mechanism = rest.get("sasl.mechanisms", rest.get("sasl.mechanism", ""))
        if mechanism not in _LOGINS or not {"sasl.username", "sasl.password"} <= rest.keys():
            return None
        login = {"username": rest["sasl.username"], "password": rest["sasl.password"]}
        words = " ".join(f"{name}={json.dumps(value)}" for name, value in login.items())
        properties |= {"sasl.mechanism": mechanism, "sasl.jaas.config": f"{_LOGINS[mechanism]} required {words};"}
        rest = {name: value for name, value in rest.items() if name not in _SASL}
    if authority := rest.pop("ssl.ca.location", None):
        properties |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": authority}
    return None if rest else properties


def message_frame(ranges: Sequence[PartitionRange], given: Mapping[str, str], *, tasks: int) -> Any:
    """Return the messages of ``ranges`` (one topic, none empty) as a frame with columns ``kafka.reading.MESSAGE``.

    ``None`` if the jar is missing or a property has no translation. At least ``tasks`` tasks read them.
    """
    properties = java_properties(given)
    if properties is None:
        return None
    address = ranges[0].address
    options = {
        **{f"kafka.{name}": value for name, value in properties.items()},
        "kafka.bootstrap.servers": address.bootstrap_servers,
        "kafka.isolation.level": "read_committed",
        "assign": json.dumps({address.topic: [one.partition for one in ranges]}),
        "startingOffsets": json.dumps({address.topic: {str(one.partition): one.first for one in ranges}}),
        "endingOffsets": json.dumps({address.topic: {str(one.partition): one.end for one in ranges}}),
        "failOnDataLoss": "false",  # what retention removes while we read is counted, not an error
        "includeHeaders": "true",
        "minPartitions": str(tasks),
    }
    try:
        rows = SparkSession.active().read.format("kafka").options(**options).load()
    except AnalysisException:
        return None
    named = F.filter("headers", lambda header: header["key"] == semconv.HEADER_KEYS)
    keys = F.make_valid_utf8(F.try_element_at(named, F.lit(-1))["value"].cast("string"))
    arrival_ms = F.unix_millis("timestamp")
    return rows.select(
        *("topic", "partition", "offset"),
        F.when(arrival_ms > 0, arrival_ms).alias("arrival_ms"),
        keys.alias("keys"),
        "value",
    )
