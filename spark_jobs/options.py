"""The options of the reconciling commands: an alias each, with its text in ``--help``.

A command names them in its signature, where typer reads them; the default stands there.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = [
    "AsJson",
    "Begin",
    "Charset",
    "ClientConfig",
    "Complete",
    "Conf",
    "DriverMemory",
    "End",
    "EngineName",
    "Every",
    "Grace",
    "History",
    "Ledger",
    "LinkTemplate",
    "Master",
    "MsgTypeMap",
    "Native",
    "NativeWriter",
    "Otlp",
    "OtlpFormat",
    "Out",
    "PolicyFile",
    "PrintPolicy",
    "ProfileName",
    "Samples",
    "Stream",
    "Strict",
]

INPUT, JUDGEMENT, SPARK, OUTPUT = "Input", "Judgement", "Spark", "Output"
"""The panels of ``--help``."""

Native = Annotated[
    list[str] | None,
    typer.Option(
        show_default="required",
        help="Native trace: file, directory, glob or kafka://BOOTSTRAP/TOPIC; several may follow.",
        metavar="SRC…",
        rich_help_panel=INPUT,
    ),
]
Otlp = Annotated[
    list[str] | None,
    typer.Option(
        show_default="required",
        help="OTLP spans: file, directory, glob, kafka://BOOTSTRAP/TOPIC or jaeger://HOST:PORT?service=NAME; "
        "several may follow.",
        metavar="SRC…",
        rich_help_panel=INPUT,
    ),
]
Out = Annotated[
    Path | None,
    typer.Option(
        show_default="required",
        help="Directory for the verdicts and the reports.",
        metavar="DIR",
        rich_help_panel=OUTPUT,
    ),
]
Ledger = Annotated[
    list[str] | None,
    typer.Option(
        help="Counted losses: MQTRACE_LEDGER_DIR, Prometheus text, OTLP metrics; several may follow.",
        metavar="FILE…",
        rich_help_panel=INPUT,
    ),
]
PolicyFile = Annotated[
    Path | None,
    typer.Option("--policy", help="TOML file with tolerances and gates.", metavar="FILE", rich_help_panel=JUDGEMENT),
]
ProfileName = Annotated[
    str,
    typer.Option(
        "--profile", help="Who wrote the spans.", metavar="auto|mqtrace|java-agent", rich_help_panel=JUDGEMENT
    ),
]
NativeWriter = Annotated[
    str,
    typer.Option(
        help="Who wrote the native trace.", metavar="auto|mqtrace|rocketmq[-VERSION]", rich_help_panel=JUDGEMENT
    ),
]
Grace = Annotated[
    str | None,
    typer.Option(
        help="How late a record may arrive, as in 60s or 5m; a bare number is seconds.",
        metavar="DURATION",
        rich_help_panel=JUDGEMENT,
    ),
]
Complete = Annotated[
    bool,
    typer.Option(
        "--complete",
        help="Nothing more will arrive: wait for no record, in place of --grace.",
        rich_help_panel=JUDGEMENT,
    ),
]
Begin = Annotated[
    str | None,
    typer.Option(help="Start of the window: ISO 8601 or epoch milliseconds.", metavar="TIME", rich_help_panel=INPUT),
]
End = Annotated[str | None, typer.Option(help="End of the window.", metavar="TIME", rich_help_panel=INPUT)]
Strict = Annotated[bool, typer.Option("--strict", help="Let warnings fail the run.", rich_help_panel=JUDGEMENT)]
EngineName = Annotated[
    str | None,
    typer.Option(
        "--engine",
        help="Where to judge: on Spark, or in this process without Java (local).",
        show_default="spark where pyspark and a Java are found, else local",
        metavar="spark|local",
        rich_help_panel=SPARK,
    ),
]
Master = Annotated[
    str | None,
    typer.Option(
        help="Spark's master URL, sc://HOST:PORT included.",
        show_default="spark-submit's, else local[*]",
        metavar="URL",
        rich_help_panel=SPARK,
    ),
]
DriverMemory = Annotated[str, typer.Option(help="Memory of Spark's driver.", metavar="SIZE", rich_help_panel=SPARK)]
Conf = Annotated[
    list[str] | None,
    typer.Option(metavar="KEY=VALUE", help="A further setting of Spark's; may be repeated.", rich_help_panel=SPARK),
]
MsgTypeMap = Annotated[str, typer.Option(help="Ordinals of message types.", metavar="a|b", rich_help_panel=INPUT)]
OtlpFormat = Annotated[
    str | None, typer.Option(help="Layout of the spans in place of detection.", metavar="NAME", rich_help_panel=INPUT)
]
Charset = Annotated[
    str,
    typer.Option(help="Of native bodies: RocketMQ 4.x writes in its JVM's own.", metavar="NAME", rich_help_panel=INPUT),
]
ClientConfig = Annotated[
    Path | None,
    typer.Option(
        help="Properties of the Kafka client (TLS, SASL) for kafka:// sources.", metavar="FILE", rich_help_panel=INPUT
    ),
]
History = Annotated[
    Path | None,
    typer.Option(
        help="Where runs leave to the next one what is open.",
        show_default="history under --out",
        metavar="DIR",
        rich_help_panel=JUDGEMENT,
    ),
]
Stream = Annotated[
    bool,
    typer.Option(
        "--stream", help="Read only what is new since the last such run, and judge everything.", rich_help_panel=SPARK
    ),
]
Every = Annotated[
    str | None,
    typer.Option(
        help="With --stream: again and again, as in 30s, until SIGINT or SIGTERM.",
        metavar="DURATION",
        rich_help_panel=SPARK,
    ),
]
Samples = Annotated[
    int,
    typer.Option(
        min=0,
        max=10_000,
        help="Events laid open in the report; above 400 it grows to 10 MB.",
        metavar="N",
        rich_help_panel=OUTPUT,
    ),
]
LinkTemplate = Annotated[
    str | None,
    typer.Option(
        help="Address behind a sample, as in https://jaeger.example/trace/{trace_id}.",
        metavar="URL",
        rich_help_panel=OUTPUT,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print result.json instead of a table.", rich_help_panel=OUTPUT)]
PrintPolicy = Annotated[
    bool,
    typer.Option(
        "--print-policy", help="Print the whole policy as TOML, with comments, and stop.", rich_help_panel=JUDGEMENT
    ),
]
