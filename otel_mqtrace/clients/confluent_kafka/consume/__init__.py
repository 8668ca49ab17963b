"""Consumers of confluent-kafka."""
