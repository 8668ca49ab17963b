"""This module knows how the forwarder's figures become rows: records a second to OTLP, beside the Python SDK's path."""

from __future__ import annotations

from typing import Final

from tests.bench.forwarding import forwarding
from tests.bench.rows import Effort, Row, Target

__all__ = ["WRITTEN", "measured"]

_NO_FURTHER: Final = "no further than: "
WRITTEN: Final = f"{_NO_FURTHER}decode, pair, write"

_TARGET = Target("≥", 50_000, "records/s")


def measured(_effort: Effort) -> list[Row]:
    """Measure the whole way to a receiver in another process, and how far its first steps come by themselves."""
    decoded, written, sent, through_sdk = forwarding()
    return [
        Row(
            "trace records forwarded",
            "span objects and OpenTelemetry's exporter",
            sent.records_per_second,
            through_sdk.records_per_second,
            "records/s",
            _TARGET,
            "CPU time of the forwarder's thread; a receiver in another process counts the spans. Up to 2048 spans go at once,"
            " 512 through the SDK, as its batch processor has it; topic, groups and host repeat from record to record",
        ),
        *(
            Row(f"{_NO_FURTHER}{step.name}", "none", step.records_per_second, None, "records/s")
            for step in (decoded, written)
        ),
    ]
