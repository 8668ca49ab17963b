"""The forwarder's rows: records a second to OTLP, beside the Python SDK's path."""

from typing import Final

from tests.proofs.bench.forwarding import ALL, FIRST, SECOND, THROUGH_SDK, forwarding
from tests.proofs.bench.rows import Effort, Row, Target, beside

_NO_FURTHER: Final = "no further than: "
WRITTEN: Final = f"{_NO_FURTHER}{SECOND}"

_MOST_OF_SDK, _TARGET = Target("≥", 8.0), Target("≥", 60_000, "records/s")


def measured(effort: Effort) -> list[Row]:
    """Measure the whole way to a receiver in another process, and how far its first steps come by themselves."""
    took = forwarding(effort.rounds)
    return [
        beside(
            "trace records forwarded",
            "span objects and OpenTelemetry's exporter",
            took[ALL],
            took[THROUGH_SDK],
            "records/s",
            _MOST_OF_SDK,
            "CPU time of the forwarder's thread; a receiver in another process counts the spans. Up to 2048 spans go at once,"
            " 512 through the SDK, as its batch processor has it; topic, groups and host repeat from record to record",
        ),
        beside("trace records forwarded, by CPU time", "none", took[ALL], None, "records/s", _TARGET),
        *(beside(f"{_NO_FURTHER}{way}", "none", took[way], None, "records/s") for way in (FIRST, SECOND)),
    ]
