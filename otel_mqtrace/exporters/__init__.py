"""Deliver records and spans: trace topic, landing files, OTLP."""
