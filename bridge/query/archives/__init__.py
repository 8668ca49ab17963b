"""Where trace messages are searched: landings and files, a Kafka topic, a RocketMQ cluster."""
