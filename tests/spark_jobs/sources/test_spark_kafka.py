"""Spark's own Kafka connector is a Java client: properties are translated for it, or it is not used."""

from __future__ import annotations

import pytest

from spark_jobs.sources.spark_kafka import java_properties


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({}, {}),
        ({"client.id": "c"}, {"client.id": "c"}),
        (
            {"security.protocol": "SASL_SSL", "sasl.mechanisms": "PLAIN", "sasl.username": "u", "sasl.password": 'p"w'},
            {
                "security.protocol": "SASL_SSL",
                "sasl.mechanism": "PLAIN",
                "sasl.jaas.config": "org.apache.kafka.common.security.plain.PlainLoginModule required "
                'username="u" password="p\\"w";',
            },
        ),
        ({"ssl.ca.location": "/ca.pem"}, {"ssl.truststore.type": "PEM", "ssl.truststore.location": "/ca.pem"}),
        ({"sasl.mechanism": "OAUTHBEARER"}, None),
        ({"sasl.mechanism": "PLAIN", "sasl.username": "u"}, None),
        ({"ssl.key.location": "/key.pem"}, None),
    ],
)
def test_properties_are_translated_for_the_java_client_or_the_other_client_is_taken(given, told):
    """What cannot be said in Java's words is never left out in silence."""
    assert java_properties(given) == told
