"""Who can have written a record, in words: as ranges of releases, never as one release that only shares the layout."""

from __future__ import annotations

import pytest

from otel_mqtrace.model import TraceType
from otel_mqtrace.wire.native.dialects import Shape, shapes_of, writers_of
from otel_mqtrace.wire.native.layout import DIALECTS, CloudSubAfter


@pytest.mark.parametrize(
    ("shape", "dialect", "writers"),
    [
        (Shape(TraceType.SUB_AFTER, 7), "4.9.1", ("Java client 4.4.0 to 4.7.1", "Java client 4.9.1", "Go up to 2.1.0")),
        (Shape(TraceType.PUB, 15), "4.8.0", ("Java client 4.8.0", "Go 2.1.1 and later", "rocketmq-rust 2026")),
        (Shape(TraceType.RECALL, 7), "5.5.0", ("Java client 5.3.2 to 5.5.0", "rocketmq-rust 2026")),
        (Shape(TraceType.PUB, 14), "5.0.0", ("Java client 5.0.0 to 5.1.0",)),
        (
            Shape(TraceType.SUB_AFTER, 7, CloudSubAfter.GLUED),
            "5.1.4/CLOUD",
            ("Java client 4.9.5 to 4.9.8", "Java client 5.1.4 to 5.3.0"),
        ),
        (Shape(TraceType.PUB, 3), None, ()),
    ],
)
def test_writers_are_named_as_ranges(shape, dialect, writers):
    assert writers_of(shape, dialect) == writers


def test_every_dialect_is_among_the_writers_of_its_own_records():
    for dialect in DIALECTS.values():
        last = dialect.releases.replace(", ", "-").split("-")[-1]
        for shape in shapes_of(dialect):
            ranges = [each.removeprefix("Java client ") for each in writers_of(shape, dialect.name)]
            assert any(_holds(each, last) for each in ranges), (dialect.name, shape, ranges)


def _holds(text, release):
    first, _, last = text.partition(" to ")
    if not first[:1].isdigit():
        return False
    return _number(first) <= _number(release) <= _number(last or first)


def _number(release):
    return tuple(map(int, release.split(".")))
