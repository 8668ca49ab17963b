"""Producers of confluent-kafka."""
