"""The bytes of OTLP trace requests. Standard library only."""
