"""Read OTLP: containers, JSON and protobuf spans, and the native record that a span stands for."""
