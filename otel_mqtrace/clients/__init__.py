"""Intercept the calls of client libraries."""
