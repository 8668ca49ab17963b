"""The bytes of both formats: native trace records and OTLP. Standard library only."""
