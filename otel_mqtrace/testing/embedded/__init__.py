"""The embedded Kafka of demo and tests; it needs the kafka extra."""

from __future__ import annotations

from otel_mqtrace._errors import MissingExtraError

try:
    import confluent_kafka  # noqa: F401  (here, so that any import of this package reports it first)
except ImportError as absent:
    raise MissingExtraError("the embedded broker", "kafka") from absent
