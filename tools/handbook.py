"""Print the generated tables that stand among written text: findings, policy, metrics, settings, as Markdown."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from spark_jobs.policy.policy import read_policy
from spark_jobs.policy.profiles import BY_DESIGN, ByDesign
from spark_jobs.policy.settings import (
    DEFAULT_GATES,
    FIELD_SETTINGS,
    GATE_SETTINGS,
    SETTINGS,
    SILENT_SETTINGS,
    TIMED_FIELDS,
    WRITER_SETTINGS,
    Setting,
)
from spark_jobs.report.glossary import FIELD_VERDICTS, REASONS, STATUSES, Entry
from spark_jobs.report.machine_files import METRICS
from spark_jobs.schemas import COMPARED_FIELDS
from spark_jobs.sources.loss_counters import LOSS_COUNTERS
from spark_jobs.taxonomy import Status
from tools.settings_table import settings_table

if TYPE_CHECKING:
    from collections.abc import Iterable


_BLOCK = re.compile(r"(<!-- generated: ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def _entries(entries: Iterable[Entry]) -> str:
    columns = ("problem", "definition", "example", "cause", "action")
    rows = [f"| `{entry.name}` | {' | '.join(getattr(entry, column) for column in columns)} |\n" for entry in entries]
    head = "| word | a problem? | meaning | example | likely cause | what to do |\n|" + " --- |" * 6 + "\n"
    return head + "".join(rows)


def _metrics() -> str:
    rows = [f"| `{metric.name}` | {', '.join(map(_code, metric.labels))} | {metric.help} |\n" for metric in METRICS]
    return "| name | labels | meaning |\n| --- | --- | --- |\n" + "".join(rows)


def _code(word: str) -> str:
    return f"`{word}`"


def _gates() -> str:
    rows = [
        f"| `{name}` | {gate.explanation} | {gate.op} {gate.threshold:g} | {gate.severity} |\n"
        for name, gate in DEFAULT_GATES.items()
    ]
    return "| gate | measures | holds when | severity |\n| --- | --- | --- | --- |\n" + "".join(rows)


_WRITERS = (("mqtrace", "mqtrace"), ("mqtrace", "rocketmq"), ("java-agent", "rocketmq"))
"""Profile and native writer of the columns of tolerances."""


def _fields() -> str:
    policies = [read_policy(None, profile=profile, native_writer=native) for profile, native in _WRITERS]
    rows = [
        f"| `{name}` | {policies[0].severity[name]} |"
        + "".join(f" {policy.tolerance(name) if name in TIMED_FIELDS else ''} |" for policy in policies)
        + "\n"
        for name in COMPARED_FIELDS
    ]
    return "| field | severity | ours | RocketMQ | Java agent |\n| --- | --- | ---: | ---: | ---: |\n" + "".join(rows)


def _policy_keys() -> str:
    tables = (
        ("", SETTINGS),
        ("[fields.NAME]", FIELD_SETTINGS),
        ("[gates.NAME]", GATE_SETTINGS),
        ('[writers."NAME"]', WRITER_SETTINGS),
        ("[[silent]]", SILENT_SETTINGS),
    )
    policy = read_policy(None)
    rows = [
        f"| {_code(table) if table else ''} | `{setting.key}` | {setting.description} |"
        f" {'' if table else _default(setting, getattr(policy, setting.attribute))} |\n"
        for table, settings in tables
        for setting in settings
    ]
    return "| table | key | meaning | default |\n| --- | --- | --- | --- |\n" + "".join(rows)


def _default(setting: Setting, value: object) -> str:
    return "none" if value is None else _code(setting.write(value))


def _loss_counters() -> str:
    rows = []
    for counter in LOSS_COUNTERS:
        with_label = f"`{counter.label}`" + (f' = "{counter.value}"' if counter.value else "") if counter.label else ""
        rows.append(f"| `{counter.name}` | {with_label} | {_code(counter.cause) if counter.cause else 'the label'} |\n")
    return "| counter | only with the label | cause |\n| --- | --- | --- |\n" + "".join(rows)


def _by_design() -> str:
    rows = [
        f"| `{rule.rule}` | {_MISSING[rule.status]} | {rule.description} | {_writers(rule)} |\n" for rule in BY_DESIGN
    ]
    head = "| rule | what is missing | of what | for `--profile`, `--native-writer` |\n|" + " --- |" * 4 + "\n"
    return head + "".join(rows)


_MISSING = {Status.NATIVE_ONLY: "the span", Status.OTLP_ONLY: "the native record"}


def _writers(rule: ByDesign) -> str:
    """Return the writers that a rule is limited to; empty for a rule for all."""
    names = [name for name in sorted(rule.profiles) if len(rule.profiles) == 1]
    names += [name for name in sorted(rule.native_writers) if len(rule.native_writers) == 1]
    since, until = (".".join(map(str, version or ())) for version in (rule.since, rule.until))
    return ", ".join(map(_code, names)) + (f" from {since}" if since else "") + (f" before {until}" if until else "")


BLOCKS: dict[str, str] = {
    "statuses": _entries(STATUSES),
    "reasons": _entries(REASONS),
    "by-design": _by_design(),
    "field-verdicts": _entries(FIELD_VERDICTS),
    "gates": _gates(),
    "metrics": _metrics(),
    "policy-keys": _policy_keys(),
    "policy-fields": _fields(),
    "loss-counters": _loss_counters(),
    "settings": settings_table(),
}
"""Name of a block → its Markdown."""


def filled_in(text: str) -> str:
    """Return ``text`` with every block between ``<!-- generated: NAME -->`` and ``<!-- end -->`` written anew."""
    return _BLOCK.sub(lambda block: f"{block[1]}{BLOCKS[block[2]]}{block[3]}", text)
