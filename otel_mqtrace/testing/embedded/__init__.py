"""The embedded Kafka of demo and tests; it needs the kafka extra."""

from __future__ import annotations

from otel_mqtrace._errors import MissingExtraError

try:
    import confluent_kafka  # noqa: F401  (here, so that whatever is imported of this package says it first)
except ImportError as absent:
    raise MissingExtraError("the embedded broker", "kafka") from absent
