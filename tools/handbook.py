"""Print what is generated inside written pages, as Markdown: the tree of packages and tables."""

from __future__ import annotations

import ast
import re
import textwrap
from dataclasses import MISSING, Field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from otel_mqtrace.config import ENVIRONMENT_PREFIX, Settings
from spark_jobs.policy.policy import read_policy
from spark_jobs.policy.profiles import BY_DESIGN, ByDesign
from spark_jobs.policy.settings import (
    DEFAULT_GATES,
    FieldRule,
    GateRule,
    Setting,
    SilentRule,
    Tolerances,
    WriterRule,
    settings_of,
)
from spark_jobs.report.glossary import FIELD_VERDICTS, REASONS, STATUSES, Entry
from spark_jobs.report.prometheus import METRICS
from spark_jobs.schemas import COMPARED_FIELDS, TIMED_FIELDS
from spark_jobs.sources.loss_counters import LOSS_COUNTERS
from spark_jobs.taxonomy import Status
from tools.monitoring import alert_table

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


MEANINGS: Final[Mapping[str, str]] = {
    "enabled": "`false` instruments nothing",
    "exporters": "which of our exporters are attached, separated by commas: `mqtrace_native`, `mqtrace_native_file`, "
    "`mqtrace_native_rocketmq`, `mqtrace_otlp`; in code also exporter objects",
    "trace_topic": "where trace records go; never traced itself",
    "create_trace_topic": "create the trace topic if it is missing",
    "bootstrap_servers": "brokers of the trace topic, separated by commas; in code also a list",
    "kafka_config": "a properties file with TLS and SASL settings for the trace topic; in code also a dict",
    "namesrv": "name servers of the RocketMQ that `mqtrace_native_rocketmq` writes to, `host:port[;host:port…]` "
    "([RocketMQ]({docs}rocketmq.md))",
    "rocketmq_access_key": "its access key, where the brokers have access control; never shown",
    "rocketmq_secret_key": "its secret key; never shown",
    "landing_dir": "where `mqtrace_native_file` writes",
    "dialect": "the release of RocketMQ whose record layout is written ([dialects]({docs}wire-format.md#dialects))",
    "region_id": "RocketMQ's region id",
    "region_name": "RocketMQ's region name; on spans only",
    "group_name": "the producer group",
    "preset": "`rocketmq4` or `rocketmq5`: queue, batch and linger of that generation",
    "queue_size": "spans that a lane holds",
    "batch_size": "spans per batch; our exporters take several full batches at once, up to 512 spans",
    "linger_ms": "longest wait for a batch to fill, in milliseconds",
    "export_timeout_ms": "how long an export may take, in milliseconds, where the exporter's `export` takes a bound",
    "shutdown_timeout_ms": "how long the end of the process waits for the last exports, in milliseconds",
    "drop_policy": "what a full lane drops: `newest` refuses what comes, `oldest` evicts what waited longest",
    "ledger_dir": "where each process keeps its drop ledger, `ledger-<host>-<pid>-<hex>.json`",
    "max_message_bytes": "most bytes of one trace message, encoded",
    "spool_dir": "where trace messages wait on disk while the trace broker does not answer",
    "spool_bytes": "most bytes that wait there, per process",
    "process_context": "how a process span refers to the sender: `link`, `parent` or `both`. `auto` links, and is "
    "a child too when no other span is current",
    "process_spans": "`explicit`: only `process(message)` creates process spans",
    "process_timeout_ms": "a handler that takes longer counts as timed out, in milliseconds",
    "receive_spans": "a `poll` span for every poll that returned something",
    "empty_poll_spans": "with receive spans: also one for every poll that returned nothing",
    "settle_spans": "a `commit` span for every commit and acknowledgement",
    "topic_include": "trace only topics that match these patterns, separated by commas",
    "topic_exclude": "do not trace topics that match these patterns, separated by commas",
    "topic_sampling": "`pattern=share` pairs, separated by commas (`audit.*=0,orders=0.1`): record only this share of "
    "the traces that begin at such a topic. The first matching pattern decides; a trace that began earlier is not cut",
    "propagation": "`false` writes no header at all (brokers before 0.11 refuse them). Send spans are then of kind "
    "CLIENT, and both sides identify messages by `{{topic}}-{{partition}}@{{offset}}`",
    "creation_context": "for a message that already carries a trace header. `replace` writes the send span's and links "
    "to the earlier one; `keep` leaves the message as it is, and the send span, of kind CLIENT, links to it",
    "headerless_sends": "for `produce_batch` and `AIOProducer`, which cannot send headers. `correlate` records them "
    "under `{{topic}}-{{partition}}@{{offset}}` from the delivery report; `leave` does not trace them",
    "retry_header": "the message header with the retry count, where the client itself does not report it",
    "capture_headers": "patterns of message headers that become attributes `messaging.header.<name>`, "
    "separated by commas",
    "redact_headers": "patterns (any case) of captured headers whose values are written as `REDACTED`",
    "client_metrics": "metrics from the client's own statistics: consumer lag and queue lengths",
    "client_metrics_interval_ms": "how often, where the application has not set `statistics.interval.ms`",
    "on_conflict": "when another instrumentation already wraps the client: `step_back` with a warning, or `wrap`",
}
"""Setting → its meaning, in the order of the pages; ``{docs}`` stands for the way to the folder of the documents."""
_DEFAULTS: Final = {
    "bootstrap_servers": "the application's",
    "queue_size": "`2048`",
    "batch_size": "`100`",
    "linger_ms": "`500`",
    "export_timeout_ms": "`30000`",
    "shutdown_timeout_ms": "`30000`",
    "drop_policy": "`newest`",
}
"""The fallback of a setting without a value; all but the first are the processor's."""


def settings_table() -> str:
    """Return the table of variables of ``operations.md``."""
    rows = [f"| `{_variable(each)}` | {_default(each)} | {_meaning(each, '')} |\n" for each in _settings()]
    return "| variable | default | meaning |\n| --- | --- | --- |\n" + "".join(rows)


def options_table() -> list[tuple[str, str, str, str]]:
    """Return option, type, default and meaning of every setting, for a page one folder below the documents."""
    return [(f"`{each.name}`", _type(each), _default(each), _meaning(each, "../")) for each in _settings()]


def _settings() -> list[Field[Any]]:
    known = {each.name: each for each in fields(Settings)}
    if known.keys() != MEANINGS.keys():
        raise SystemExit(f"MEANINGS and Settings differ: {sorted(known.keys() ^ MEANINGS.keys())}")
    return [known[name] for name in MEANINGS]


def _variable(setting: Field[Any]) -> str:
    return ENVIRONMENT_PREFIX + setting.name.upper()


def _meaning(setting: Field[Any], docs: str) -> str:
    return MEANINGS[setting.name].format(docs=docs)


def _type(setting: Field[Any]) -> str:
    return "`" + str(setting.type).removesuffix(" | None").replace(" | ", "`, `") + "`"


def _default(setting: Field[Any]) -> str:
    if setting.name in _DEFAULTS:
        return _DEFAULTS[setting.name]
    value = setting.default if setting.default is not MISSING else None
    match value:
        case bool():
            return f"`{str(value).lower()}`"
        case tuple() if value:
            return f"`{','.join(value)}`"
        case None | ():
            return "none"
        case _:
            return f"`{value}`"


PACKAGES: Final = ("otel_mqtrace", "bridge", "spark_jobs")
_ROOT: Final = Path(__file__).resolve().parent.parent
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
        f"| `{name}` | {policies[0].fields[name].severity} |"
        + "".join(f" {policy.tolerance(name) if name in TIMED_FIELDS else ''} |" for policy in policies)
        + "\n"
        for name in COMPARED_FIELDS
    ]
    return "| field | severity | ours | RocketMQ | Java agent |\n| --- | --- | ---: | ---: | ---: |\n" + "".join(rows)


def _policy_keys() -> str:
    tables = (
        ("", Tolerances),
        ("[fields.NAME]", FieldRule),
        ("[gates.NAME]", GateRule),
        ('[writers."NAME"]', WriterRule),
        ("[[silent]]", SilentRule),
    )
    policy = read_policy(None)
    rows = [
        f"| {_code(table) if table else ''} | `{setting.key}` | {setting.description} |"
        f" {'' if table else _written(setting, getattr(policy, setting.attribute))} |\n"
        for table, kind in tables
        for setting in settings_of(kind)
    ]
    return "| table | key | meaning | default |\n| --- | --- | --- | --- |\n" + "".join(rows)


def _written(setting: Setting, value: object) -> str:
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


def _tree() -> str:
    lines = [line for package in PACKAGES for line in _branch(_ROOT / package, depth=0)]
    return "\n".join(["```text", *lines, "```", ""])


def _branch(folder: Path, *, depth: int) -> list[str]:
    """One package: its own line, the names of its modules, then the packages in it."""
    inner = sorted(path for path in folder.iterdir() if (path / "__init__.py").is_file())
    modules = sorted(path.stem for path in folder.glob("*.py") if not path.name.startswith("__"))
    indent = "  " * (depth + 1)
    lines = [_line(folder.name + "/", folder / "__init__.py", depth)]
    lines += textwrap.wrap(" · ".join(modules), 120, initial_indent=indent, subsequent_indent=indent)
    for package in inner:
        lines += _branch(package, depth=depth + 1)
    return lines


def _line(name: str, source: Path, depth: int) -> str:
    stated = ast.get_docstring(ast.parse(source.read_text(encoding="utf-8"))) or ""
    first = stated.partition("\n")[0].rstrip(".")
    return f"{'  ' * depth + name:<32}{first}".rstrip()


BLOCKS: dict[str, str] = {
    "tree": _tree(),
    "alerts": alert_table(),
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
