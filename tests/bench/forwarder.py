"""This module knows how the forwarder's figures become rows: records a second to OTLP, beside the Python SDK's path."""

from __future__ import annotations

from tests.bench.rows import Effort, Row, Target

__all__ = ["measured"]

_TARGET = Target("≥", 50_000, "records/s")


def measured(_effort: Effort) -> list[Row]:
    """Measure the forwarder; its first figure is ours, each other one an anchor."""
    from tests.bench.forwarding import forwarding  # noqa: PLC0415 - with it come the forwarder and a receiver

    ours, *others = forwarding()
    return [
        Row(f"forwarder: {ours.name}", one.name, ours.records_per_second, one.records_per_second, "records/s", _TARGET)
        for one in others
    ]
