"""The RocketMQ 5 gRPC client."""
