"""The options that ``reconcile`` and ``graph`` share, one alias each, and the parsers of their values.

A command names the aliases in its signature, where typer reads them; the defaults stand there.
"""

from __future__ import annotations

import re
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from bridge.addresses import parse_directory
from otel_mqtrace._clock import LAST_MS
from otel_mqtrace._errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from bridge.storage import AnyPath

_OWN_OPTIONS: Final = {"spark.master": "--master", "spark.remote": "--master", "spark.driver.memory": "--driver-memory"}
_SOURCES: Final = frozenset({"--native", "--otlp", "--ledger"})
_WHOLE_NUMBER = re.compile(r"-?\d+")
_MOST_DIGITS: Final = 15  # those of LAST_MS
_BEYOND: Final = LAST_MS + 1


def repeat_options(arguments: Iterable[str], names: frozenset[str] = _SOURCES) -> list[str]:
    """Repeat an option before each of its values: ``--native a b`` becomes ``--native a --native b``.

    A shell expands ``--native landing/*.jsonl`` into many words; an option parser gives the option one of them.
    """
    repeated: list[str] = []
    current, fresh = None, False
    for word in arguments:
        if word.startswith("-") and word != "-":
            name, assigned, _ = word.partition("=")
            current, fresh = (name if name in names else None), not assigned
            repeated.append(word)
            continue
        if current is not None and not fresh:
            repeated.append(current)
        repeated.append(word)
        fresh = False
    return repeated


def parse_settings(texts: Iterable[str]) -> dict[str, str]:
    """Read settings of Spark as ``spark-submit --conf`` takes them; the last one of a name counts.

    Raises:
        UsageError: one is not ``KEY=VALUE``, or has an option of its own.
    """
    settings: dict[str, str] = {}
    for text in texts:
        name, assigned, value = text.partition("=")
        if not assigned or not name.startswith("spark."):
            raise UsageError(f"--conf '{text}' is not a setting of Spark: write spark.NAME=VALUE")
        if name in _OWN_OPTIONS:
            raise UsageError(f"--conf '{text}': use {_OWN_OPTIONS[name]} instead")
        settings[name] = value
    return settings


def parse_instant_ms(text: str, *, name: str) -> int:
    """Read epoch milliseconds or ISO 8601 (UTC unless it names an offset), from 1970 to 9999.

    Raises:
        UsageError: it is neither, or out of that range; the message contains ``name``, the option.
    """
    if not _WHOLE_NUMBER.fullmatch(text):
        return _in_range(_iso_ms(text, name), text, name)
    return _in_range(int(text) if len(text) <= _MOST_DIGITS else _BEYOND, text, name)


def _in_range(instant_ms: int, text: str, name: str) -> int:
    if not 0 <= instant_ms <= LAST_MS:
        raise UsageError(f"{name} '{text}' is not between the years 1970 and 9999")
    return instant_ms


def _iso_ms(text: str, name: str) -> int:
    try:
        instant = datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError as error:
        raise UsageError(f"{name}: invalid time '{text}': use 2026-11-21T09:30:00Z or epoch milliseconds") from error
    aware = instant if instant.tzinfo else instant.replace(tzinfo=timezone.utc)
    return round(aware.timestamp() * 1000)


def instant_ms(name: str) -> Callable[[str], int]:
    """Return the parser of the option ``name`` that is a time; see :func:`parse_instant_ms`."""
    return lambda text: parse_instant_ms(text, name=name)


def duration_ms(name: str) -> Callable[[str], int]:
    """Return the parser of the option ``name`` that is a duration, as in 60s or 5m, in milliseconds."""

    def parse(text: str) -> int:
        from spark_jobs.policy.settings import parse_duration_ms  # noqa: PLC0415  (a list of commands does without)

        return parse_duration_ms(text, name=name)

    return parse


def directory(name: str) -> Callable[[str], AnyPath]:
    """Return the parser of the option ``name`` that is a directory, of this machine or of a store."""
    return lambda text: parse_directory(text, option=name)


# -- the options -------------------------------------------------------------------------------------------------------
_input, _judgement, _spark, _output = (
    partial(typer.Option, rich_help_panel=panel) for panel in ("Input", "Judgement", "Spark", "Output")
)

Native = Annotated[
    list[str] | None,
    _input(
        show_default="required",
        help="Native trace: file, directory, glob or kafka://BOOTSTRAP/TOPIC; several may follow.",
        metavar="SRC…",
    ),
]
Otlp = Annotated[
    list[str] | None,
    _input(
        show_default="required",
        help="OTLP spans: file, directory, glob, kafka://BOOTSTRAP/TOPIC or jaeger://HOST:PORT?service=NAME; "
        "several may follow.",
        metavar="SRC…",
    ),
]
Out = Annotated[
    Path | None,
    _output(
        parser=directory("--out"),
        show_default="required",
        help="Directory for the verdicts and the reports.",
        metavar="DIR",
    ),
]
Ledger = Annotated[
    list[str] | None,
    _input(
        help="Counted losses: MQTRACE_LEDGER_DIR, Prometheus text, OTLP metrics; several may follow.", metavar="FILE…"
    ),
]
PolicyFile = Annotated[str | None, _judgement("--policy", help="TOML file with tolerances and gates.", metavar="FILE")]
ProfileName = Annotated[str, _judgement("--profile", help="Who wrote the spans.", metavar="auto|mqtrace|java-agent")]
NativeWriter = Annotated[str, _judgement(help="Who wrote the native trace.", metavar="auto|mqtrace|rocketmq[-VERSION]")]
Grace = Annotated[
    int | None,
    _judgement(
        "--grace",
        parser=duration_ms("--grace"),
        help="How late a record may arrive, as in 60s or 5m; a bare number is seconds.",
        metavar="DURATION",
    ),
]
Complete = Annotated[
    bool, _judgement("--complete", help="Nothing more will arrive: wait for no record, in place of --grace.")
]
Begin = Annotated[
    int | None,
    _input(
        "--begin",
        parser=instant_ms("--begin"),
        help="Start of the window: ISO 8601 or epoch milliseconds.",
        metavar="TIME",
    ),
]
End = Annotated[int | None, _input("--end", parser=instant_ms("--end"), help="End of the window.", metavar="TIME")]
Strict = Annotated[bool, _judgement("--strict", help="Let warnings fail the run.")]
EngineName = Annotated[
    str | None,
    _spark(
        "--engine",
        help="Where to judge: on Spark, or in this process without Java (local).",
        show_default="spark where pyspark and a Java are found, else local",
        metavar="spark|local",
    ),
]
Master = Annotated[
    str | None,
    _spark(
        help="Spark's master URL, sc://HOST:PORT included.", show_default="spark-submit's, else local[*]", metavar="URL"
    ),
]
DriverMemory = Annotated[str, _spark(help="Memory of Spark's driver.", metavar="SIZE")]
Conf = Annotated[list[str] | None, _spark(metavar="KEY=VALUE", help="A further setting of Spark's; may be repeated.")]
MsgTypeMap = Annotated[str, _input(help="Ordinals of message types.", metavar="a|b")]
OtlpFormat = Annotated[str | None, _input(help="Layout of the spans in place of detection.", metavar="NAME")]
Charset = Annotated[str, _input(help="Of native bodies: RocketMQ 4.x writes in its JVM's own.", metavar="NAME")]
ClientConfig = Annotated[
    Path | None, _input(help="Properties of the Kafka client (TLS, SASL) for kafka:// sources.", metavar="FILE")
]
History = Annotated[
    str | None,
    _judgement(
        help="Where runs leave to the next one what is open.", show_default="history under --out", metavar="DIR"
    ),
]
Stream = Annotated[
    bool, _spark("--stream", help="Read only what is new since the last such run, and judge everything.")
]
Every = Annotated[
    int | None,
    _spark(
        "--every",
        parser=duration_ms("--every"),
        help="With --stream: again and again, as in 30s, until SIGINT or SIGTERM.",
        metavar="DURATION",
    ),
]
Samples = Annotated[
    int, _output(min=0, max=10_000, help="Events laid open in the report; above 400 it grows to 10 MB.", metavar="N")
]
LinkTemplate = Annotated[
    str | None, _output(help="Address behind a sample, as in https://jaeger.example/trace/{trace_id}.", metavar="URL")
]
AsJson = Annotated[bool, _output("--json", help="Print result.json instead of a table.")]
PrintPolicy = Annotated[
    bool, _judgement("--print-policy", help="Print the whole policy as TOML, with comments, and stop.")
]
