"""RocketMQ's remoting protocol, as much as a trace topic needs."""
