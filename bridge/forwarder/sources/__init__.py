"""Where the forwarder reads from: a Kafka topic, a RocketMQ topic, or files."""
