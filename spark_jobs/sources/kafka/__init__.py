"""A Kafka topic as a source: its address, the range of offsets a run reads, and the messages in it as a frame."""
