"""This module knows nothing by itself but the extra it needs: the package is the Kafka that demo and tests talk to."""

from __future__ import annotations

from otel_mqtrace._errors import MissingExtraError

try:
    import confluent_kafka  # noqa: F401  (here, so that whatever is imported of this package says it first)
except ImportError as absent:
    raise MissingExtraError("the embedded broker", "kafka") from absent
