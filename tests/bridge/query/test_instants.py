"""Ranges of arrivals in the forms that people write."""

import pytest

from bridge.addresses import parse_instant_ms
from bridge.query.search import ALWAYS, ArrivalRange, arrival_range
from otel_mqtrace._errors import UsageError

NOW = 1_795_260_000_000


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2026-11-21T11:20:00Z", NOW),
        ("2026-11-21T11:20:00", NOW),
        ("2026-11-21 12:20:00+01:00", NOW),
        ("2026-11-21", NOW - 11 * 3_600_000 - 20 * 60_000),
        ("2026-11-21T11:20:00.250Z", NOW + 250),
        ("1795260000000", NOW),
        ("15m", NOW - 900_000),
        ("2h", NOW - 7_200_000),
        ("3d", NOW - 259_200_000),
        ("90s", NOW - 90_000),
        ("999999999d", 0),
        ("253402300799999", 253_402_300_799_999),
    ],
)
def test_instant_is_read(text, expected):
    assert parse_instant_ms(text, name="--begin", now_ms=NOW) == expected


@pytest.mark.parametrize("text", ["", "yesterday", "15x", "-5m", "1e12", "٣d", "2026-13-01", "5m ago"])
def test_other_text_is_refused_with_the_accepted_forms(text):
    with pytest.raises(UsageError, match=r"--end: invalid time .*: use 2026.*, or 15m"):
        parse_instant_ms(text, name="--end", now_ms=NOW)


def test_range_that_ends_before_it_begins_is_refused():
    with pytest.raises(UsageError, match="before --begin"):
        arrival_range("2026-11-21", "2026-11-20", now_ms=NOW)


def test_range_includes_both_ends_and_may_be_open():
    day = ArrivalRange(10, 20)
    assert [instant for instant in (9, 10, 20, 21) if instant in day] == [10, 20]
    assert -1 in ALWAYS
    assert day.overlaps(0, 10)
    assert not day.overlaps(21, 30)
    assert arrival_range(None, None, now_ms=NOW) == ALWAYS
