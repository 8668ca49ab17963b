"""The span processor: one lane with a queue, a worker and an account for each exporter."""

from otel_mqtrace.config import load_propagators

load_propagators()  # one that is not installed breaks imports of OpenTelemetry
