"""What a confluent-kafka client says of its cluster: partition leaders and statistics."""
