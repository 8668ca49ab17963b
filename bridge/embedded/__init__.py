"""This module knows nothing by itself: the package is the in-process Kafka that demo and tests talk to."""
