"""The span processor: one lane with a queue, a worker and an account for each exporter."""
