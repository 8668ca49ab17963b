"""What is recorded of one event: a tuple from which native records, OTLP bytes and SDK spans are derived."""
