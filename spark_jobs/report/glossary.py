"""Every status, reason and field verdict: label, definition, example, likely cause, action, group and colour.

The report and the tables of ``docs/reconciliation/findings.md`` are made from these entries.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from bridge.page.markup import AMBER, GREEN, GREY, RED, SKY, SLATE
from spark_jobs.taxonomy import FieldVerdict, Outcome, Reason, Status, Verdict

SIDE_NAME: Final = {"native": "native trace", "otlp": "OTLP"}


@dataclass(frozen=True, slots=True)
class Entry:
    """One word of a verdict.

    ``label`` is shown in place of the identifier ``name``; the label of a reason follows that of its status.
    ``problem`` is ``yes``, ``no`` or the condition under which it counts against the run.
    """

    name: str
    label: str
    problem: str
    definition: str
    example: str
    cause: str
    action: str


def _entries(text: str) -> tuple[Entry, ...]:
    """Return the entries of ``text``, five lines each: name, label and problem, then a line for each other field."""
    lines = text.strip().splitlines()
    return tuple(Entry(*lines[at].split(" | "), *lines[at + 1 : at + 5]) for at in range(0, len(lines), 5))


STATUSES: Final = _entries("""
MATCHED_EXACT | Equal | no
Both sides recorded it once, and every comparable field is equal.
One Pub record and one PRODUCER span with the same message id, topic, group, times and outcome.
Both writers saw the same call.
Nothing.
MATCHED_NORMALISED | Equal after normalisation | no
Both sides recorded it once; the fields are equal after a named rule, a tolerance or a known replacement.
Store host “/10.0.0.5:10911” against “10.0.0.5:10911”; a start that differs by 3 ms.
The two formats spell the same fact differently.
Nothing; read the field table to see which rule fired how often.
MISMATCHED | Differs | yes
Both sides recorded it once, and at least one field differs or is missing against the policy.
The native record has a successful consume, the span an error.
One writer sets a field from another source, at another moment, or not at all.
Open one of its samples: the differing part is marked. Fix the writer, or relax the field in the policy.
DUPLICATED_NATIVE | Duplicated in the native trace | yes, above the gate
The native side holds more than one record for this key, OTLP at most one.
The same Pub record twice: the client retried its trace message after a timeout.
At-least-once delivery of trace messages; a trace topic forwarded twice.
Exact copies are harmless for counting; conflicting ones mean that two writers share an id.
DUPLICATED_OTLP | Duplicated in OpenTelemetry | yes, above the gate
The OTLP side holds more than one span for this key, native at most one.
A Collector retried a batch that had been stored; two exporters write to the same file.
Retries of an exporter or Collector; two instrumentations active at once.
Compare span ids in a sample: equal ids are a retry, different ids a second instrumentation.
DUPLICATED_BOTH | Duplicated on both sides | yes, above the gate
Both sides hold more than one record for this key.
A process that ran twice with the same message ids.
The application repeated the call under the same identity.
Look for a replay of the application before suspecting the writers.
NATIVE_ONLY | Missing in OpenTelemetry | only when UNEXPLAINED
Settled, and only the native side has it.
A SubAfter record without a process span.
Span dropped by a full queue, a sampler or the Collector; see the reason.
Follow the reason. UNEXPLAINED is a span lost without a trace of why.
OTLP_ONLY | Missing in the native trace | only when UNEXPLAINED
Settled, and only the OTLP side has it.
A PRODUCER span whose Pub record never reached the trace topic.
Trace message refused, dropped by a full queue or lost at shutdown; see the reason.
Follow the reason. UNEXPLAINED is a native record lost without a trace of why.
PENDING | Not settled yet | no
One-sided, but newer than the settled horizon: the other side may still arrive.
A message sent in the last seconds before the export was taken.
The two pipelines have different delays.
Reconcile again later, or take the inputs after both pipelines were flushed.
OUT_OF_SCOPE | Not compared | no
Read and counted, but not part of the comparison.
An HTTP span in the same file; a message outside --begin/--end.
Window, filter, or a span that is not about a message.
Nothing; the details of the reason name the rule.
MALFORMED | Unreadable | yes
A piece of input that could not be mapped to an event.
A record with too few fields; a line that is not JSON.
A separator inside a value, a crash while writing, an unknown writer.
Open the file at the given position; fix its writer.
""")

REASONS: Final = _entries("""
TRACE_TRAFFIC | a send of the trace topic itself | no
The span is about a send of the trace topic itself.
A “send RMQ_SYS_TRACE_TOPIC” span of a foreign instrumentation.
An instrumentation that does not exclude trace topics.
Nothing; exclude the trace topic there to save the traffic.
BY_DESIGN | this writer never records it | no
This writer never records this kind or outcome; the rule is named.
RocketMQ writes no Pub record for a send that failed.
Documented behaviour of that writer version.
Nothing. If you expected it, check --profile and --native-writer.
IN_FLIGHT | its handler is still running | no
Native has SubBefore, no SubAfter yet, and the consume timeout has not passed.
A handler still running when the input was taken; its span is exported only at its end.
Work in progress.
Reconcile again later.
ABANDONED | its handler never ended | about the application
As IN_FLIGHT, but older than the consume timeout.
SubBefore written, then the process was killed.
The consumer died or its handler hangs.
Look at the consumer, not at the trace: this half record is the evidence that it was there.
HALF_RECORD | half of its native record is missing | reported
One half of a native consume is missing while the span is complete.
SubAfter without SubBefore.
A trace message holding the other half was lost.
The span completes the story; look for native drops around that time.
COUNTERPART_MALFORMED | its counterpart could not be read | through MALFORMED
A bad record of the other side names this message.
The Pub record is there but its cost is not a number.
Damaged input.
Fix the input or its writer; the record is listed under “Unreadable input”.
NOT_SAMPLED | its span was not sampled | no
The span was not sampled: by a link's flags, a whole message without spans, or the policy's ratio.
A batch lists the message with the sampled flag off.
A sampler.
Nothing; sample everything for the time of a migration to prove more.
WRITER_SILENT | its service shows nothing on the other side | warn; fail with --strict
This topic, group, service or process shows nothing at all on the other side.
A service that was never instrumented.
Instrumentation missing, trace switched off, or one input forgotten.
Run mqtrace doctor in that service; check that all inputs were given.
SHUTDOWN_WINDOW | its process was ending | reported
In the last moments of an instance that ended; its other side shows nothing that ended later.
The last batch of a process that was killed.
A known race of both exporters at exit.
Flush on shutdown; give the process time to.
LATE_BEYOND_RETENTION | the other input begins later | reported
The other side's input begins more than late_after after this event.
A span file of last week against a trace topic that keeps three days.
Retention shorter than the delay.
Land the trace topic continuously with mqtrace forward.
KEY_DEGRADED | a span without an id may be its own | reported
A span without an id would match by topic or group and time, but not for certain.
A process span without a message id beside a record of the same group and time.
A writer that does not carry the message id.
Use a writer that writes the message id.
DROP_ATTRIBUTED | a counted drop | no, but it is loss
The ledger counted drops of this side at that time; the budget covers this key.
queue_full: 12 in the same bucket.
An overloaded exporter that counts what it refuses.
Enlarge the queue or the batch; see mqtrace's own counters.
UNEXPLAINED | no explanation | yes
No rule and no counter explains it.
A span is there, the native record is not, and nothing counted a drop.
Silent loss: the number a migration is judged by.
Find the samples' positions and times in the logs of the pipeline that lost them.
""")

FIELD_VERDICTS: Final = _entries("""
EQUAL | equal | no
The same value on both sides.
“OrderTopic” and “OrderTopic”.
—
Nothing.
EQUAL_NORMALISED | equal after normalisation | no
Equal after a named canonicalisation.
Store host “/10.0.0.5:10911” and “10.0.0.5:10911”; topic “%RETRY%billing” and “billing”.
Two spellings of one fact.
Nothing.
WITHIN_TOLERANCE | within tolerance | no
Differs by no more than the tolerance of the field.
Start 3 ms apart.
Two clocks read one after the other.
Nothing, unless it grows.
TRUNCATED | cut off | reported
One side is a prefix of the other, as long as a known limit.
A key cut at 128 characters.
Attribute length limits.
Raise the limit if you search by this field.
SANITISED | characters replaced | reported
They differ only where a writer replaces characters it cannot carry.
U+0001 in a key became “_”.
Separators of the native format.
Nothing; avoid the separators.
REDACTED | masked | reported
One side shows the configured mask or hash of the other.
“***” against a key.
A redaction processor.
Nothing.
MISSING_NATIVE | native trace lacks it | by policy
Only OTLP carries a value.
A body length that the native record of this version lacks.
The native dialect has no such field, or the writer left it out.
Check the dialect.
MISSING_OTLP | OpenTelemetry lacks it | by policy
Only the native side carries a value.
A client host without a span attribute.
Attribute limits, or an instrumentation that does not set it.
Check dropped_attributes in the sample and the span's writer.
NOT_COMPARABLE | not comparable | no
Both values are right and mean different things, or neither side has one.
Body length of a batch.
The formats measure different things here.
Nothing.
DIFFERENT | different | yes
The values contradict each other.
retry_times 1 and 2.
A bug in one of the writers, or in the mapping.
See the most frequent pairs, then a sample.
""")

_ENTRIES = {entry.name: entry for entry in (*STATUSES, *REASONS, *FIELD_VERDICTS)}


def find_entry(name: str | None) -> Entry | None:
    """Return the entry of an identifier, or ``None`` if it is in no closed list."""
    return _ENTRIES.get(name or "")


def label_finding(status: str, reason: str | None = None) -> str:
    """Return the label of a status and its reason; an unknown identifier is its own label."""
    words = [entry.label if (entry := find_entry(name)) else name for name in (status, reason) if name]
    other = {Status.NATIVE_ONLY.value: "its span", Status.OTLP_ONLY.value: "its native record"}.get(status)
    return ": ".join(words).replace("its counterpart", other or "its counterpart")


# -- groups and colours
FINE, WAITING, EXPLAINED, PROBLEM = GROUPS = ("fine", "waiting", "explained", "problem")

GROUP_COLOUR: Final = {FINE: GREEN, WAITING: SKY, EXPLAINED: GREY, PROBLEM: RED}

_STATUS_GROUP: Final = {
    Status.MATCHED_EXACT.value: FINE,
    Status.MATCHED_NORMALISED.value: FINE,
    Status.PENDING.value: WAITING,
    Status.OUT_OF_SCOPE.value: EXPLAINED,
}
_REASON_GROUP: Final = {
    **{reason.value: EXPLAINED for reason in Reason},
    Reason.IN_FLIGHT.value: WAITING,
    Reason.UNEXPLAINED.value: PROBLEM,
    Reason.WRITER_SILENT.value: PROBLEM,
}
_ONE_SIDED: Final = (Status.NATIVE_ONLY.value, Status.OTLP_ONLY.value)
_AGREEING: Final = (FieldVerdict.EQUAL, FieldVerdict.EQUAL_NORMALISED, FieldVerdict.WITHIN_TOLERANCE)
_DISAGREEING: Final = (FieldVerdict.DIFFERENT, FieldVerdict.MISSING_NATIVE, FieldVerdict.MISSING_OTLP)

OUTCOME_COLOUR: Final = {
    Outcome.PASS.value: GREEN,
    Outcome.WARN.value: AMBER,
    Outcome.FAIL.value: RED,
    Outcome.INCONCLUSIVE.value: SLATE,
}
VERDICT_COLOUR: Final = {verdict.value: OUTCOME_COLOUR[verdict.value.lower()] for verdict in Verdict}


def group_finding(status: str, reason: str | None = None) -> str:
    """Return the group of an event, one of ``GROUPS``: by its reason where one side lacks it, else by its status."""
    if status in _ONE_SIDED:
        return _REASON_GROUP.get(reason or "", PROBLEM)
    return _STATUS_GROUP.get(status, PROBLEM)


def rank_finding(status: str, reason: str | None = None) -> tuple[bool, int, str, str]:
    """Return the key that sorts findings by what matters: the unexplained first, then other problems, then the rest."""
    is_explained = reason != Reason.UNEXPLAINED.value
    return is_explained, -GROUPS.index(group_finding(status, reason)), status, reason or ""


def group_field_verdict(verdict: str) -> str:
    """Return the group of a compared field, one of ``GROUPS``."""
    if verdict in _AGREEING:
        return FINE
    return PROBLEM if verdict in _DISAGREEING else EXPLAINED
