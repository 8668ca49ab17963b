"""Evaluate the gates of a run: each gate's value, the bound on unseen losses, verdict and exit code."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, Final

from bridge.page.wording import plural
from spark_jobs.policy.profiles import LACKING
from spark_jobs.report.result import Gate, Loss
from spark_jobs.taxonomy import ExitCode, Outcome, Reason, Status, Verdict

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spark_jobs.judging.counts import Tally
    from spark_jobs.judging.facts import Facts
    from spark_jobs.policy.policy import Policy
    from spark_jobs.policy.settings import GateRule

ATTRIBUTED: Final = frozenset(
    reason.value
    for reason in (
        *(Reason.COUNTERPART_MALFORMED, Reason.NOT_SAMPLED, Reason.WRITER_SILENT, Reason.SHUTDOWN_WINDOW),
        *(Reason.LATE_BEYOND_RETENTION, Reason.KEY_DEGRADED, Reason.DROP_ATTRIBUTED),
    )
)
"""Reasons that name a loss: what a side lacks because of them is lost, but not silently."""

_OR_COMPLETE: Final = ", or give --complete if nothing more will arrive"
_SIDE_NAMES: Final = {"native": "the native side", "otlp": "the OTLP side"}
_ZERO_SEEN: Final = 3.0
_Z_95_ONE_SIDED: Final = 1.6448536269514722
_MILLION: Final = 1_000_000
_PER_CENT: Final = 100.0
_MS_PER_S: Final = 1_000


def count_losses(tally: Tally) -> dict[str, Loss]:
    """Return what each side lacks; ``checked`` are the keys it should have had, settled."""
    found, keys = {}, Counter({finding: kinds.total() for finding, kinds in tally.findings.items()})
    for side, status in LACKING.items():
        unexplained = keys[status.value, Reason.UNEXPLAINED.value]
        attributed = sum(keys[status.value, reason] for reason in ATTRIBUTED)
        checked = tally.keys["both"] + unexplained + attributed
        found[side] = Loss(
            unexplained=unexplained,
            attributed=attributed,
            checked=checked,
            upper_bound_95_ppm=upper_bound_95_ppm(unexplained, checked),
        )
    return found


def upper_bound_95_ppm(seen: int, checked: int) -> float | None:
    """Return a bound the true rate is below with 95 % confidence: 3/n when none was seen, else Wilson's."""
    if checked <= 0:
        return None
    if seen == 0:
        return min(1.0, _ZERO_SEEN / checked) * _MILLION
    rate, square = seen / checked, _Z_95_ONE_SIDED**2
    middle = rate + square / (2 * checked)
    spread = _Z_95_ONE_SIDED * math.sqrt(rate * (1 - rate) / checked + square / (4 * checked**2))
    return min(1.0, (middle + spread) / (1 + square / checked)) * _MILLION


def evaluate_gates(tally: Tally, facts: Facts, policy: Policy) -> tuple[Gate, ...]:
    """Return every gate of the policy with its value; a strict policy lets warnings fail."""
    measured = _measure(tally, facts, policy)
    gates = []
    for name, rule in policy.gates.items():
        severity = "fail" if policy.strict else rule.severity
        value, sample = measured[name]
        gates.append(
            Gate(
                name=name,
                op=rule.op,
                threshold=rule.threshold,
                value=value,
                outcome=_outcome(value if sample >= rule.minimum_sample else None, rule, severity).value,
                severity=severity,
                explanation=rule.explanation,
                sample=sample,
                minimum_sample=rule.minimum_sample,
            )
        )
    return tuple(gates)


def _outcome(value: float | None, rule: GateRule, severity: str) -> Outcome:
    if value is None:
        return Outcome.INCONCLUSIVE
    holds = value <= rule.threshold if rule.op == "<=" else value >= rule.threshold
    if holds:
        return Outcome.PASS
    return Outcome.FAIL if severity == "fail" else Outcome.WARN


def _measure(tally: Tally, facts: Facts, policy: Policy) -> dict[str, tuple[float | None, int]]:
    """Return each gate's value, and on how many keys, records or comparisons it was measured."""
    lost = count_losses(tally)
    sums = tally.sums
    excess = sum(sums[f"{side}_{kind}_duplicates"] for side in ("native", "otlp") for kind in ("exact", "other"))
    late = sum(count for flag, count in tally.timing.items() if flag.startswith("late"))
    timed = sum(count for flag, count in tally.timing.items() if flag != "no_time")
    keys = sum(tally.keys[side] for side in ("native", "otlp")) - tally.keys["both"]
    malformed = sum(facts.malformed.values())
    records = sums["native_records"] + sums["otlp_records"]
    return {
        "unexplained_loss_native": (lost["native"].unexplained, lost["native"].checked),
        "unexplained_loss_otlp": (lost["otlp"].unexplained, lost["otlp"].checked),
        "conflicting_duplicates": (tally.duplicates["conflicting"], keys),
        "malformed": (malformed, malformed + records),
        "critical_field_agreement": _agreement(tally, policy, "fail"),
        "duplicate_excess": (_per_cent(excess, records), records),
        "field_agreement": _agreement(tally, policy, "warn"),
        "late": (_per_cent(late, timed), timed),
        **{
            f"attributed_loss_{side}": (_per_cent(loss.attributed, loss.checked), loss.checked)
            for side, loss in lost.items()
        },
        "writer_silent": (tally.reason[Reason.WRITER_SILENT.value], keys),
    }


def _agreement(tally: Tally, policy: Policy, severity: str) -> tuple[float | None, int]:
    """Return the per cent of agreeing comparisons of fields whose disagreement has this severity, and their number.

    Values that a side may or must omit are not compared; the policy decides the outcome of each verdict.
    """
    agreed = wrong = 0
    for name, verdicts in tally.fields.items():
        for verdict, count in verdicts.items():
            judgement = policy.judgement(name, verdict)
            wrong += count * (judgement == severity)
            agreed += count * (judgement == "ok" and policy.fields[name].severity == severity)
    return _per_cent(agreed, agreed + wrong), agreed + wrong


def _per_cent(part: int, whole: int) -> float | None:
    return _PER_CENT * part / whole if whole else None


def find_doubt(tally: Tally, facts: Facts, policy: Policy) -> str | None:
    """Return why the run proves nothing and how to fix it, as one sentence; ``None`` if it is conclusive.

    Causes: two inputs without a common key (wrong file, wrong day); a window that ends after the horizon; a horizon
    before every event, with a pending key, which makes missing and late indistinguishable.
    """
    empty = {side: name for side, name in _SIDE_NAMES.items() if not (facts.in_scope.get(side) and tally.keys[side])}
    if empty:
        new = " new" if any(tally.keys[side] for side in empty) else ""  # a history has added events
        are_read = not all(map(facts.malformed.get, empty))
        rest = " and the trace topics" if are_read else ", --charset, and that --native and --otlp are not swapped"
        return f"no{new} events are in scope in {' or '.join(empty.values())}: check the sources, the window{rest}"
    if not tally.keys["both"]:
        return "no event is on both sides: check that the two inputs are of the same system and the same time"
    if (
        policy.end_ms is not None
        and not policy.is_complete
        and (facts.horizon_ms is None or policy.end_ms > facts.horizon_ms)
    ):
        return (
            "--end is later than the data is settled: run again when more has arrived, choose an earlier --end"
            f"{_OR_COMPLETE}"
        )
    unsettled = tally.status[Status.PENDING.value]
    if sum(tally.keys[side] for side in ("native", "otlp")) - tally.keys["both"] - unsettled <= 0:
        return f"nothing is settled in the window: widen it{_OR_COMPLETE if unsettled else ''}"
    if unsettled and (facts.horizon_ms is None or facts.first_ms is None or facts.horizon_ms < facts.first_ms):
        return (
            f"no event lies more than the grace of {policy.grace_ms / _MS_PER_S:g} s before the end of the side that "
            f"ends first, and {plural(unsettled, 'one-sided key')} may still be matched: add more data{_OR_COMPLETE}"
        )
    return None


def decide_verdict(gates: Sequence[Gate], policy: Policy, *, holds: bool, conclusive: bool) -> tuple[Verdict, ExitCode]:
    """Return verdict and exit code: a broken identity outranks everything, then doubt, then a failed gate.

    A gate that may fail a run but had nothing to measure leaves the run undecided. Strictness does not extend that to
    the gates that only warn: it makes warnings fail, and such a gate has none.
    """
    outcomes = {gate.outcome for gate in gates}
    if not holds:
        return Verdict.FAIL, ExitCode.IDENTITY_BROKEN
    if not conclusive:
        return Verdict.INCONCLUSIVE, ExitCode.INCONCLUSIVE
    if Outcome.FAIL.value in outcomes:
        return Verdict.FAIL, ExitCode.GATE_FAILED
    if any(gate.outcome == Outcome.INCONCLUSIVE.value and policy.gates[gate.name].severity == "fail" for gate in gates):
        return Verdict.INCONCLUSIVE, ExitCode.INCONCLUSIVE
    return (Verdict.WARN if Outcome.WARN.value in outcomes else Verdict.PASS), ExitCode.PASS
