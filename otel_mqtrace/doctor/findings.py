"""What the doctor can find, in words, and what it has found."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, field
from string import Template
from typing import Any, Final

from otel_mqtrace.client_properties import without_password

_TABLE: Final = """
error client_missing: no client that could be traced is installed
  fix: $install
error client_missing/command: no client that could be traced is installed
  fix: run in its environment: $install
error client_broken: confluent-kafka is installed but cannot be imported: $error
  fix: pip install --force-reinstall confluent-kafka
error client_broken/command: $client cannot be imported: $why
  fix: fix what it lacks, pip install --force-reinstall $client, or leave it out with
  OTEL_PYTHON_DISABLED_INSTRUMENTATIONS
warning no_distro: nothing here sets up OpenTelemetry's SDK: under opentelemetry-instrument no span is recorded
  fix: pip install opentelemetry-distro, or call trace.set_tracer_provider() in the application
warning setting_wrong: $warning
  fix: give it one of the values that docs/operations.md names
warning setting_unknown: unknown setting $name; it is ignored
  fix: $fix
error switched_off: tracing is switched off
  fix: unset MQTRACE_ENABLED, or set it to true
error exporter_missing: exporter $name is not installed in this environment$effect
  fix: name one of $known
error exporter_broken: the exporter $name cannot be loaded: $error
  fix: install what it lacks: $install
error entry_point_missing: opentelemetry-instrument does not find mqtrace: its entry points are not installed
  fix: install otel-mqtrace with pip: a copy that is only on PYTHONPATH has no entry points
error instrumentation_disabled: $names is disabled
  fix: take it off that list
warning other_instrumentation: $name of $client is installed and not switched off: where it is started, mqtrace steps
  back for it
  fix: set $switch
error sdk_disabled: OpenTelemetry's SDK is switched off
  fix: unset OTEL_SDK_DISABLED
error sampled_out: the sampler drops every trace that begins here
  fix: set it to parentbased_always_on, or parentbased_traceidratio with OTEL_TRACES_SAMPLER_ARG
error config_file_missing: the declarative configuration is not there: OpenTelemetry starts without any
  fix: name a file that exists
error propagator_missing: the propagator $name is not installed: opentelemetry-instrument fails, and nothing is traced
  fix: install the package that has it, or take it off that list
error no_propagator: no trace context is written into messages: senders and handlers end up in separate traces
  fix: set OTEL_PROPAGATORS=tracecontext,baggage
error no_propagator/file: no trace context is written into messages: senders and handlers end up in separate traces
  fix: write propagator: {composite: [{tracecontext: {}}, {baggage: {}}]} into the file
error no_propagator/command: no trace context is written into messages: senders and handlers end up in separate traces
  fix: set OTEL_PROPAGATORS=tracecontext,baggage; under OTEL_CONFIG_FILE, write propagator: into that file
error landing_not_writable: records cannot be written to $directory: $problem
  fix: let this user write there, or name another directory
error spool_not_writable: what waits for the broker cannot be written to $directory: $problem
  fix: let this user write there, or name another directory
error ledger_not_writable: what was lost cannot be written to $directory: $problem
  fix: let this user write there, or name another directory
error otlp_unreachable: the OTLP endpoint $endpoint does not take spans: $problem
  fix: start the Collector, name its address, or set OTEL_TRACES_EXPORTER=none to send nothing there
error kafka_config_unreadable: $error
  fix: name a file of name=value lines that this user can read
error kafka_config_refused: the client refuses its properties, and every record is lost: $error
  fix: remove properties that librdkafka lacks, and give each one a valid value
error broker_unreachable: the brokers of the trace topic do not answer: $error
  fix: start them, name their address, or set TLS and SASL in the file of MQTRACE_KAFKA_CONFIG
error broker_unreachable/rocketmq: RocketMQ takes no records: $error
  fix: start the name server and the brokers, or set MQTRACE_NAMESRV to host:port of a name server
error trace_topic_missing: topic $topic does not exist: every record is lost
  fix: create $topic, or set MQTRACE_CREATE_TRACE_TOPIC=true
error trace_topic_missing/name: $system can have no topic named $topic: every record is lost
  fix: name one of at most $allowed
error trace_topic_missing/rocketmq: RocketMQ takes no records: $error
  fix: set traceTopicEnable=true at the brokers, or MQTRACE_CREATE_TRACE_TOPIC=true for another topic
warning trace_topic_compacted: the trace topic is compacted: of records with the same key only the last one stays
  fix: set cleanup.policy=delete on it
error trace_topic_too_small: the trace topic takes messages of $most bytes, and ours may have $ours
  fix: set MQTRACE_MAX_MESSAGE_BYTES below $most, or raise max.message.bytes of the topic
warning clock_skew: the brokers' clock is $skew_ms ms away from this machine's
  fix: synchronise both by NTP: latencies and the order of records are wrong by as much
error command_not_started: $error
  fix: name a program that can be run
error not_instrumented: the command ${failed}never switched mqtrace on
  fix: $fix
error not_instrumented/client: no client was instrumented
  fix: run in its environment: $install
warning nothing_recorded: not one span was recorded: no traced client sent or handled a message, or the sampler dropped
  all
  fix: see the other findings; check OTEL_TRACES_SAMPLER, MQTRACE_TOPIC_EXCLUDE and MQTRACE_TRACE_TOPIC
error stepped_back: mqtrace stepped back: $why wraps the client already
  fix: switch the other one off, or set MQTRACE_ON_CONFLICT=wrap
error exporter_not_attached: $error
  fix: install what it lacks, or name another in MQTRACE_EXPORTERS
warning warned: it warned: $warning
  fix: follow the warning
warning ended_abruptly: the process ended without its exit handlers: spans still queued are lost, and what it did is not
  known
  fix: let it end by itself or on SIGINT, and handle SIGTERM by sys.exit(), or under uvicorn call the
  TracerProvider's shutdown() at the end of its lifespan
error no_provider: no span is recorded: the TracerProvider is $provider, and no SDK was set up
  fix: install opentelemetry-distro and use opentelemetry-instrument, or call trace.set_tracer_provider()
error spans_lost: $lane lost spans: $lost of $offered ($causes)
  fix: $fix
warning unrecorded: $count never became a span: $reason
  fix: see 'What is counted' in docs/operations.md; report a 'failed in', unless a signal handler raised
warning name_bound_before: $name holds the client's own class, taken before instrument(): what it makes is not traced
  fix: call instrument() before the module that holds it is imported
warning untraceable_class: $name is not traced: this client lacks it, or its class was made before instrument(). Of such
  a class only a produce that names topic, headers and on_delivery (or callback), or *args and **kwargs, is traced
  fix: call instrument() before that module is imported, or let its produce name these, and its objects have a __dict__
error class_of_original: $name derives from the client's own class, by a name that was not rebound: its objects are not
  traced
  fix: derive it from confluent_kafka's name after instrument(), or define it before
error client_untraced: clients that are not traced are in use ($name): made before instrument(), or by a name taken
  before
  fix: make clients after instrument(), with confluent_kafka's own names
warning wrapped_twice: $name wraps the client on top of mqtrace: messages are traced twice, or by it alone
  fix: switch one of the two off
"""
"""Severity, code and words of each finding; the part after a slash distinguishes findings of one code.

``error`` means that messages go unrecorded, ``warning`` that some may, or that they are recorded twice.
"""
_ENTRY: Final = re.compile(r"^(error|warning) (\S+): (.+?)\n  fix: (.+?)\n(?=\S|\Z)", re.MULTILINE | re.DOTALL)
WORDS: Final = {
    name: (severity, Template(" ".join(what.split())), Template(" ".join(fix.split())))
    for severity, name, what, fix in _ENTRY.findall(_TABLE)
}
"""Code, with what stands behind its slash → severity, what is wrong and how to fix it."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong; ``code`` is stable."""

    code: str
    severity: str
    what: str
    where: str
    fix: str


@dataclass(slots=True)
class Checkup:
    """What was seen: ``facts`` by subject, ``findings`` in the order they were made, the same one once."""

    facts: dict[str, Any] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)

    @property
    def healthy(self) -> bool:
        """Return whether nothing was found."""
        return not self.findings

    def add(self, entry: str, /, *, where: str, **values: object) -> None:
        """Note the finding of an entry in the table, with ``values`` in its words: none that can be a secret."""
        severity, what, fix = WORDS[entry]
        code, text = entry.partition("/")[0], what.substitute(values)
        if all((code, text) != (each.code, each.what) for each in self.findings):
            self.findings.append(Finding(code, severity, text, where, fix.substitute(values)))

    def as_dict(self) -> dict[str, Any]:
        """Return ``healthy``, ``findings`` and ``facts``, as ``--json`` prints them; no address shows a password."""
        report = {"healthy": self.healthy, "findings": [asdict(each) for each in self.findings], "facts": self.facts}
        shown: dict[str, Any] = _hide_passwords(report)
        return shown


def _hide_passwords(report: Any) -> Any:
    if isinstance(report, str):
        return without_password(report)
    if isinstance(report, dict):
        return {without_password(str(name)): _hide_passwords(each) for name, each in report.items()}
    return [_hide_passwords(each) for each in report] if isinstance(report, list | tuple) else report
