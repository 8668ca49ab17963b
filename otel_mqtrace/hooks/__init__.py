"""What happens before and after a client call: the record or span of the event."""

from otel_mqtrace.config import load_propagators

load_propagators()  # one that is not installed breaks imports of OpenTelemetry
