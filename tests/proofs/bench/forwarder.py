"""The speed of the forwarder, compared with span objects and OpenTelemetry's exporter."""

from tests.proofs.bench.forwarding import ALL, DECODE, ENCODE, THROUGH_SDK, forwarding
from tests.proofs.bench.rows import Effort, Row, Target, compare

_MOST_OF_SDK, _TARGET = Target("≥", 8.0), Target("≥", 60_000, "records/s")


def measure(effort: Effort) -> list[Row]:
    """Measure the forwarder with a receiver in another process, and its first steps alone."""
    took = forwarding(effort.rounds)
    return [
        compare(
            "trace records forwarded",
            "span objects and OpenTelemetry's exporter",
            took[ALL],
            took[THROUGH_SDK],
            "records/s",
            _MOST_OF_SDK,
            "CPU time of the forwarder's thread; up to 2048 spans a request, 512 through the SDK (its default)",
        ),
        compare("trace records forwarded, by CPU time", "none", took[ALL], None, "records/s", _TARGET),
        *(compare(way, "none", took[way], None, "records/s") for way in (DECODE, ENCODE)),
    ]
