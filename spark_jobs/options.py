"""The options that ``reconcile`` and ``graph`` share, one alias each, and the parsers of their values.

A command names the aliases in its signature, where typer reads them; the defaults stand there.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

from bridge.addresses import parse_directory, parse_duration_ms, parse_instant_ms
from bridge.options import option
from otel_mqtrace._errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from bridge.storage import AnyPath

_OWN_OPTIONS: Final = {"spark.master": "--master", "spark.remote": "--master", "spark.driver.memory": "--driver-memory"}
_SOURCES: Final = frozenset({"--native", "--otlp", "--ledger"})


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
    """Parse Spark settings like ``spark-submit --conf``; the last one of a name counts.

    Raises:
        UsageError: a text is not ``KEY=VALUE``, or an option sets it.
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


def instant_ms(name: str) -> Callable[[str], int]:
    """Return the parser of the option ``name`` that is a time; see :func:`~bridge.addresses.parse_instant_ms`."""
    return partial(parse_instant_ms, name=name)


def duration_ms(name: str) -> Callable[[str], int]:
    """Return the parser of the option ``name`` that is a duration, as in 60s or 5m, in milliseconds."""
    return partial(parse_duration_ms, name=name)


def directory(name: str) -> Callable[[str], AnyPath]:
    """Return the parser of the option ``name`` that is a directory, of this machine or of a store."""
    return lambda text: parse_directory(text, option=name)


# -- the options -------------------------------------------------------------------------------------------------------
Native = Annotated[
    list[str] | None,
    option(
        "Input",
        "Required. Native trace: file, directory, glob or kafka://BOOTSTRAP/TOPIC; several may follow.",
        show_default=False,
        metavar="SRC…",
    ),
]
Otlp = Annotated[
    list[str] | None,
    option(
        "Input",
        "Required. OTLP spans: file, directory, glob, kafka://BOOTSTRAP/TOPIC or jaeger://HOST:PORT?service=NAME; "
        "several may follow.",
        show_default=False,
        metavar="SRC…",
    ),
]
Out = Annotated[
    Path | None,
    option(
        "Output",
        "Required. Directory for the verdicts and the reports.",
        parser=directory("--out"),
        show_default=False,
        metavar="DIR",
    ),
]
Ledger = Annotated[
    list[str] | None,
    option(
        "Input",
        "Counted losses: MQTRACE_LEDGER_DIR, Prometheus text, OTLP metrics; several may follow.",
        metavar="FILE…",
    ),
]
PolicyFile = Annotated[
    str | None, option("Judgement", "TOML file with tolerances and gates.", "--policy", metavar="FILE")
]
ProfileName = Annotated[
    str, option("Judgement", "Who wrote the spans.", "--profile", metavar="auto|mqtrace|java-agent")
]
NativeWriter = Annotated[
    str, option("Judgement", "Who wrote the native trace.", metavar="auto|mqtrace|rocketmq[-VERSION]")
]
Grace = Annotated[
    int | None,
    option(
        "Judgement",
        "How late a record may arrive, as in 60s or 5m; a bare number is seconds.",
        "--grace",
        parser=duration_ms("--grace"),
        metavar="DURATION",
    ),
]
Complete = Annotated[
    bool, option("Judgement", "Nothing more will arrive: wait for no record, in place of --grace.", "--complete")
]
Begin = Annotated[
    int | None,
    option(
        "Input",
        "Start of the window: ISO 8601 or epoch milliseconds.",
        "--begin",
        parser=instant_ms("--begin"),
        metavar="TIME",
    ),
]
End = Annotated[int | None, option("Input", "End of the window.", "--end", parser=instant_ms("--end"), metavar="TIME")]
Strict = Annotated[bool, option("Judgement", "Let warnings fail the run.", "--strict")]
EngineName = Annotated[
    str | None,
    option(
        "Spark",
        "Where to judge: on Spark, or in this process without Java (local).",
        "--engine",
        show_default="spark where pyspark and a Java are found, else local",
        metavar="spark|local",
    ),
]
Master = Annotated[
    str | None,
    option(
        "Spark",
        "Spark's master URL, sc://HOST:PORT included.",
        show_default="spark-submit's, else local[*]",
        metavar="URL",
    ),
]
DriverMemory = Annotated[str, option("Spark", "Memory of Spark's driver.", metavar="SIZE")]
Conf = Annotated[
    list[str] | None, option("Spark", "A further setting of Spark's; may be repeated.", metavar="KEY=VALUE")
]
MsgTypeMap = Annotated[str, option("Input", "Ordinals of message types.", metavar="a|b")]
OtlpFormat = Annotated[str | None, option("Input", "Layout of the spans in place of detection.", metavar="NAME")]
Charset = Annotated[str, option("Input", "Of native bodies: RocketMQ 4.x writes in its JVM's own.", metavar="NAME")]
ClientConfig = Annotated[
    Path | None, option("Input", "Properties of the Kafka client (TLS, SASL) for kafka:// sources.", metavar="FILE")
]
History = Annotated[
    str | None,
    option(
        "Judgement", "Where runs leave to the next one what is open.", show_default="history under --out", metavar="DIR"
    ),
]
Stream = Annotated[
    bool, option("Spark", "Read only what is new since the last such run, and judge everything.", "--stream")
]
Every = Annotated[
    int | None,
    option(
        "Spark",
        "With --stream: again and again, as in 30s, until SIGINT or SIGTERM.",
        "--every",
        parser=duration_ms("--every"),
        metavar="DURATION",
    ),
]
Samples = Annotated[
    int,
    option("Output", "Events laid open in the report; above 400 it grows to 10 MB.", min=0, max=10_000, metavar="N"),
]
LinkTemplate = Annotated[
    str | None,
    option("Output", "Address behind a sample, as in https://jaeger.example/trace/{trace_id}.", metavar="URL"),
]
AsJson = Annotated[bool, option("Output", "Print result.json instead of a table.", "--json")]
PrintPolicy = Annotated[
    bool, option("Judgement", "Print the whole policy as TOML, with comments, and stop.", "--print-policy")
]
