"""How sources and instants are written on the command line."""

import pytest

from bridge.addresses import parse_duration_ms, parse_instant_ms
from otel_mqtrace._errors import UsageError
from spark_jobs.commands import parse_settings, repeat_options


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
def test_option_is_repeated_before_each_value_of_a_shell_expanded_list(words, expected):
    assert repeat_options(words.split()) == expected.split()


def test_last_setting_of_a_name_wins():
    assert parse_settings(["spark.a=1", "spark.b=x=y", "spark.a=2"]) == {"spark.a": "2", "spark.b": "x=y"}


@pytest.mark.parametrize(
    "text", ["spark.a", "shuffle.partitions=2", "spark.master=local", "spark.driver.memory=2g", "="]
)
def test_invalid_setting_and_one_with_its_own_option_are_refused(text):
    with pytest.raises(UsageError, match=r"^--conf '"):
        parse_settings([text])


@pytest.mark.parametrize("text", ["-1", "253402300800000", "9" * 5_000, "10" + "0" * 22, "0001-01-01", "--5", "1e400"])
def test_instant_out_of_range_is_refused(text):
    with pytest.raises(UsageError, match=r"--begin( '.*' is not between the years 1970 and 9999|: invalid time)"):
        parse_instant_ms(text, name="--begin")


@pytest.mark.parametrize("text", ["36501d", "10000000000000000000000ms", "9" * 400, "1e3"])
def test_duration_over_a_hundred_years_is_refused(text):
    with pytest.raises(UsageError, match=r"--grace: (invalid duration|duration '.*' is longer than a hundred years)"):
        parse_duration_ms(text, name="--grace")
    assert parse_duration_ms("36500d", name="--grace") == 36_500 * 86_400_000
