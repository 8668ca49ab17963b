"""Forward trace messages to OTLP or landing files, and spans to native records."""
