"""How sources and instants are written on the command line."""

from __future__ import annotations

import pytest

from otel_mqtrace._errors import UsageError
from spark_jobs.options import duration_ms, parse_instant_ms, parse_settings, repeat_options


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("--native a b --otlp c", "--native a --native b --otlp c"),
        ("--native a --native b --otlp c d --out o", "--native a --native b --otlp c --otlp d --out o"),
        ("--out o --strict --native a b", "--out o --strict --native a --native b"),
        ("--native=a b --otlp c", "--native=a --native b --otlp c"),
        ("--native a b --json", "--native a --native b --json"),
        ("--native - b --otlp c", "--native - --native b --otlp c"),
        ("--ledger a b --otlp c", "--ledger a --ledger b --otlp c"),
        ("--help", "--help"),
        ("--out o stray --native a", "--out o stray --native a"),
    ],
)
def test_a_shell_expanded_list_follows_its_option(words, expected):
    """Every further word after --native or --otlp is one more of it; other options stay as they are."""
    assert repeat_options(words.split()) == expected.split()


@pytest.mark.parametrize(
    ("text", "expected_ms"),
    [
        ("1795262400000", 1_795_262_400_000),
        ("2026-11-21T12:00:00Z", 1_795_262_400_000),
        ("2026-11-21T12:00:00", 1_795_262_400_000),
        ("2026-11-21T20:00:00+08:00", 1_795_262_400_000),
        ("2026-11-21", 1_795_219_200_000),
    ],
)
def test_an_instant_is_iso_8601_or_epoch_milliseconds(text, expected_ms):
    """UTC unless an offset is named."""
    assert parse_instant_ms(text, name="--begin") == expected_ms


def test_a_wrong_instant_names_its_option():
    """The line shows how to write it."""
    with pytest.raises(UsageError, match=r"--end: invalid time 'tomorrow': use 2026"):
        parse_instant_ms("tomorrow", name="--end")


def test_settings_of_spark_are_read_as_spark_submit_takes_them():
    """The last one of a name counts; a value may hold an equals sign."""
    assert parse_settings(["spark.a=1", "spark.b=x=y", "spark.a=2"]) == {"spark.a": "2", "spark.b": "x=y"}


@pytest.mark.parametrize(
    "text", ["spark.a", "shuffle.partitions=2", "spark.master=local", "spark.driver.memory=2g", "="]
)
def test_what_is_no_setting_or_has_its_own_option_is_refused(text):
    """Spark would ignore the one, and we the other."""
    with pytest.raises(UsageError, match=r"^--conf '"):
        parse_settings([text])


@pytest.mark.parametrize("text", ["-1", "253402300800000", "9" * 5_000, "10" + "0" * 22, "0001-01-01", "--5", "1e400"])
def test_an_instant_no_record_can_have_is_refused(text):
    """Whatever the number, one line; 1970 and 9999 are the ends of what a time may be."""
    with pytest.raises(UsageError, match=r"--begin( '.*' is not between the years 1970 and 9999|: invalid time)"):
        parse_instant_ms(text, name="--begin")


@pytest.mark.parametrize("text", ["36501d", "10000000000000000000000ms", "9" * 400, "1e3"])
def test_a_duration_nobody_waits_for_is_refused(text):
    """A grace of more than a hundred years is a slip of the keyboard."""
    with pytest.raises(UsageError, match=r"--grace: (invalid duration|duration '.*' is longer than a hundred years)"):
        duration_ms("--grace")(text)
    assert duration_ms("--grace")("36500d") == 36_500 * 86_400_000
