"""confluent-kafka."""
