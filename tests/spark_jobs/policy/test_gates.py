"""When a run passes: gates, bounds, verdicts and exit codes, from plain numbers."""

import math
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_jobs.history.carried import CarriedOver
from spark_jobs.jobs.reading import EventSide
from spark_jobs.jobs.summarise import balance_inputs
from spark_jobs.judging.counts import Tally, add_judgement, add_unjudged
from spark_jobs.judging.facts import Facts
from spark_jobs.policy.gates import count_losses, decide_verdict, evaluate_gates, find_doubt, upper_bound_95_ppm
from spark_jobs.policy.policy import read_policy
from spark_jobs.policy.settings import DEFAULT_GATES
from spark_jobs.report.result import Offsets
from spark_jobs.sources.kafka import PartitionRange, topic_address

POLICY = read_policy(None)
FACTS = Facts(first_ms=0, data_end_ms=600_000, horizon_ms=540_000, in_scope={"native": 100, "otlp": 100})


def tally(**parts) -> Tally:
    clean = {
        "status": Counter(MATCHED_EXACT=100),
        "keys": Counter(native=100, otlp=100, both=100),
        "sums": Counter(native_records=100, otlp_records=100),
        "fields": {"success": Counter(EQUAL=100), "tags": Counter(EQUAL=100)},
        "timing": Counter(on_time=100),
    }
    return Tally(**{**clean, **parts})


def outcomes(counts: Tally, facts: Facts = FACTS, policy=None) -> dict[str, str]:
    return {gate.name: gate.outcome for gate in evaluate_gates(counts, facts, policy or read_policy(None))}


def test_clean_run_passes_every_gate():
    gates = evaluate_gates(tally(), FACTS, POLICY)
    assert [gate.name for gate in gates] == [*DEFAULT_GATES]
    assert {gate.outcome for gate in gates} == {"pass"}
    assert decide_verdict(gates, POLICY, holds=True, conclusive=True) == ("PASS", 0)


@pytest.mark.parametrize(
    ("gate", "outcome", "parts", "facts"),
    [
        ("unexplained_loss_native", "fail", {"findings": {("OTLP_ONLY", "UNEXPLAINED"): Counter(consume=1)}}, {}),
        ("unexplained_loss_otlp", "fail", {"findings": {("NATIVE_ONLY", "UNEXPLAINED"): Counter(consume=1)}}, {}),
        ("conflicting_duplicates", "fail", {"duplicates": Counter(conflicting=1)}, {}),
        ("malformed", "fail", {}, {"malformed": {"native": 0, "otlp": 1}}),
        ("critical_field_agreement", "fail", {"fields": {"success": Counter(EQUAL=99, DIFFERENT=1)}}, {}),
        ("field_agreement", "warn", {"fields": {"success": Counter(EQUAL=9), "tags": Counter(MISSING_OTLP=1)}}, {}),
        ("late", "warn", {"timing": Counter(on_time=98, late_native=2)}, {}),
        ("attributed_loss_native", "warn", {"findings": {("OTLP_ONLY", "DROP_ATTRIBUTED"): Counter(consume=2)}}, {}),
        ("attributed_loss_otlp", "warn", {"findings": {("NATIVE_ONLY", "SHUTDOWN_WINDOW"): Counter(consume=2)}}, {}),
        ("writer_silent", "warn", {"reason": Counter(WRITER_SILENT=1)}, {}),
        ("duplicate_excess", "fail", {"sums": Counter(native_records=1_000, otlp_exact_duplicates=3)}, {}),
    ],
)
def test_fault_fails_its_gate_and_no_other(gate, outcome, parts, facts):
    gates = outcomes(tally(**parts), replace(FACTS, **facts))
    assert {name for name, result in gates.items() if result not in {"pass", "inconclusive"}} == {gate}
    assert gates[gate] == outcome


def test_duplicate_excess_is_a_rate_with_an_inclusive_bound():
    for copies, outcome in ((1, "pass"), (2, "fail")):
        sums = Counter(native_records=1_000, otlp_records=0, native_exact_duplicates=copies)
        assert outcomes(tally(sums=sums))["duplicate_excess"] == outcome


def conclusive_verdict(counts, policy, facts=FACTS):
    return decide_verdict(evaluate_gates(counts, facts, policy), policy, holds=True, conclusive=True)


@pytest.mark.parametrize(
    ("parts", "strict", "expected"),
    [
        ({"findings": {("NATIVE_ONLY", "DROP_ATTRIBUTED"): Counter(consume=900)}}, False, ("WARN", 0)),
        ({"findings": {("NATIVE_ONLY", "DROP_ATTRIBUTED"): Counter(consume=1)}}, False, ("PASS", 0)),
        ({"timing": Counter(on_time=1, late_otlp=1)}, False, ("WARN", 0)),
        ({"timing": Counter(on_time=1, late_otlp=1)}, True, ("FAIL", 1)),
        ({"timing": Counter(no_time=100)}, False, ("PASS", 0)),  # nothing to measure
        ({"timing": Counter(no_time=100)}, True, ("PASS", 0)),
    ],
)
def test_warning_gate_warns_and_fails_a_strict_run(parts, strict, expected):
    assert conclusive_verdict(tally(**parts), replace(POLICY, strict=strict)) == expected


def test_broken_balance_outranks_doubt_and_doubt_outranks_a_failed_gate():
    gates = evaluate_gates(tally(duplicates=Counter(conflicting=1)), FACTS, POLICY)
    assert decide_verdict(gates, POLICY, holds=False, conclusive=False) == ("FAIL", 3)
    assert decide_verdict(gates, POLICY, holds=True, conclusive=False) == ("INCONCLUSIVE", 4)
    assert decide_verdict(gates, POLICY, holds=True, conclusive=True) == ("FAIL", 1)


@pytest.mark.parametrize("in_scope", [{}, {"native": 3, "otlp": 0}, {"native": 0, "otlp": 3}, {"native": 0, "otlp": 0}])
def test_empty_side_is_inconclusive(in_scope):
    doubt = find_doubt(tally(), replace(FACTS, in_scope=in_scope), POLICY)
    assert doubt is not None
    unreadable = find_doubt(tally(), replace(FACTS, in_scope=in_scope, malformed={"native": 1, "otlp": 1}), POLICY)
    assert "swapped" not in doubt
    assert "--charset, and that --native and --otlp are not swapped" in unreadable
    assert "no new events" in doubt  # there are keys: a history brought them
    for side, name in (("native", "the native side"), ("otlp", "the OTLP side")):
        assert (name in doubt) is (not in_scope.get(side))


def test_run_without_a_settled_key_is_inconclusive():
    """All keys pending; or a horizon before the first event while anything is still one-sided."""
    pending = tally(status=Counter(PENDING=4), keys=Counter(native=2, otlp=2, both=0))
    assert "both sides" in find_doubt(pending, FACTS, POLICY)
    young = replace(FACTS, horizon_ms=-1)
    one_pending = tally(status=Counter(MATCHED_EXACT=99, PENDING=1))
    doubt = "and 1 one-sided key may still be matched: add more data, or give --complete if nothing more will arrive"
    assert doubt in find_doubt(one_pending, young, POLICY)
    assert find_doubt(tally(), young, POLICY) is None


def test_inputs_without_a_common_key_are_inconclusive():
    """Both sides have records, no key is on both: the wrong file, not a loss of everything and never a pass."""
    status, keys = Counter(NATIVE_ONLY=5, OTLP_ONLY=5), Counter(native=5, otlp=5, both=0)
    strangers = tally(status=status, keys=keys, fields={}, reason=Counter(WRITER_SILENT=10))
    assert "no event is on both sides" in find_doubt(strangers, FACTS, POLICY)
    outside = tally(keys=Counter(otlp=5))
    assert "no events are in scope in the native side: check the sources, the w" in find_doubt(outside, FACTS, POLICY)


@pytest.mark.parametrize(("end_ms", "conclusive"), [(540_000, True), (540_001, False), (4_200_000, False)])
def test_window_that_ends_after_the_horizon_is_inconclusive(end_ms, conclusive):
    assert (find_doubt(tally(), FACTS, replace(POLICY, end_ms=end_ms)) is None) is conclusive
    assert find_doubt(tally(), FACTS, replace(POLICY, end_ms=end_ms, is_complete=True)) is None


@pytest.mark.parametrize("strict", [False, True])
def test_failing_gate_with_nothing_to_measure_is_inconclusive(strict):
    """No critical field could be compared: exit 4, unless another gate failed; strictness asks no more of warnings."""
    policy = replace(POLICY, strict=strict)
    mute = tally(fields={"tags": Counter(EQUAL=100)}, timing=Counter(no_time=100))
    assert conclusive_verdict(mute, policy) == ("INCONCLUSIVE", 4)
    assert conclusive_verdict(mute, policy, replace(FACTS, malformed={"native": 1, "otlp": 0})) == ("FAIL", 1)
    assert outcomes(mute, policy=policy)["late"] == "inconclusive"


def test_bound_without_losses_is_three_over_n():
    assert upper_bound_95_ppm(0, 3_000) == pytest.approx(1_000)
    assert upper_bound_95_ppm(0, 0) is None
    assert upper_bound_95_ppm(0, 1) == 1_000_000


@given(seen=st.integers(1, 500), more=st.integers(0, 100_000))
def test_bound_lies_between_the_seen_rate_and_one(seen, more):
    checked = seen + more
    bound = upper_bound_95_ppm(seen, checked)
    assert seen / checked * 1e6 <= bound * (1 + 1e-12) <= 1e6 * (1 + 1e-9)
    assert math.isfinite(bound)


def test_loss_is_counted_on_the_side_that_lacks_it():
    reasons = {"UNEXPLAINED": 2, "COUNTERPART_MALFORMED": 3, "BY_DESIGN": 50}
    findings = {("OTLP_ONLY", reason): Counter(publish=1, consume=count - 1) for reason, count in reasons.items()}
    lost = count_losses(tally(findings=findings | {("NATIVE_ONLY", "IN_FLIGHT"): Counter(consume=1)}))
    assert (lost["native"].unexplained, lost["native"].attributed, lost["native"].checked) == (2, 3, 105)
    assert (lost["otlp"].unexplained, lost["otlp"].attributed, lost["otlp"].checked) == (0, 0, 100)


ROW = {
    "kind": "consume",
    "status": "MATCHED_EXACT",
    "timing": "no_time",
    "key_level": 1,
    "bucket_ms": 0,
    **dict.fromkeys(("reason", "reason_detail", "duplicates", "age", "lifecycle", "open_break_age")),
    **dict.fromkeys(("on_native", "on_otlp"), True),
    **dict.fromkeys(("native_count", "otlp_count", "otlp_records", "half_merged", "keys"), 2),
    "native_records": 4,
    **{f"{side}_{kind}_duplicates": 0 for side in ("native", "otlp") for kind in ("exact", "other")},
}
DUPLICATE = {**ROW, "keys": 1, "native_records": 3, "half_merged": 1, "native_exact_duplicates": 1, "otlp_records": 1}
GONE = {"status": "NATIVE_ONLY", "on_otlp": False, "otlp_records": 0}
LOST = {**ROW, **GONE, "keys": 1, "native_records": 2, "half_merged": 1}


def balanced(*, native_read: int, otlp_read: int):
    facts = replace(FACTS, scopes={"native": {}, "otlp": {"TRACE_TRAFFIC": 5}}, malformed={"native": 1, "otlp": 0})
    counts = Tally()
    for row in (ROW, DUPLICATE, LOST, {**ROW, "keys": 1, "native_records": 2}):
        add_judgement(counts, row)
    add_unjudged(counts, malformed=1, scopes=facts.scopes.values())
    one = PartitionRange(address=topic_address("h:1", "t"), partition=3, first=5, end=9)
    of_topic = {"offsets": (one,), "offsets_without_message": 1}
    sides = EventSide(records_read=native_read, exploded=1), EventSide(records_read=otlp_read, exploded=0, **of_topic)
    return counts, *balance_inputs(sides, CarriedOver(), counts, facts)


def test_balance_holds_when_every_record_is_accounted_for():
    counts, inputs, conservation = balanced(native_read=11, otlp_read=10)
    assert conservation.holds
    assert (inputs.native.canonical_keys, inputs.native.half_merged, inputs.native.exact_duplicates) == (5, 5, 1)
    assert (inputs.otlp.canonical_keys, inputs.otlp.half_merged, inputs.otlp.out_of_scope) == (4, 1, 5)
    assert inputs.otlp.offsets == (Offsets(source="kafka://h:1/t", partition=3, first=5, end=9),)
    assert (inputs.otlp.offsets_without_message, inputs.native.offsets) == (1, ())
    assert counts.reason["TRACE_TRAFFIC"] == 5


@pytest.mark.parametrize(("native", "otlp"), [(12, 10), (11, 9)])
def test_one_record_unaccounted_for_breaks_the_balance(native, otlp):
    _, _, conservation = balanced(native_read=native, otlp_read=otlp)
    assert not conservation.holds
    assert "≠" in conservation.native + conservation.otlp


def test_gate_below_its_minimum_sample_is_inconclusive():
    lost = tally(findings={("OTLP_ONLY", "UNEXPLAINED"): Counter(consume=1)})
    for minimum, expected in ((101, "fail"), (102, "inconclusive")):
        gates = {**DEFAULT_GATES}
        gates["unexplained_loss_native"] = replace(gates["unexplained_loss_native"], minimum_sample=minimum)
        policy = replace(POLICY, gates=gates)
        evaluated = evaluate_gates(lost, FACTS, policy)
        assert (evaluated[0].outcome, evaluated[0].sample, evaluated[0].value) == (expected, 101, 1)
        assert decide_verdict(evaluated, policy, holds=True, conclusive=True)[0].value == expected.upper()


def test_field_severity_and_single_verdicts_decide_the_agreement_gates():
    counts = tally(fields={"success": Counter(EQUAL=90, DIFFERENT=10), "tags": Counter(EQUAL=90, TRUNCATED=10)})
    for success, verdicts, critical, other in (
        ("fail", {}, "fail", "pass"),
        ("warn", {}, "inconclusive", "warn"),
        ("ignore", {}, "inconclusive", "pass"),
        ("fail", {"success": {"DIFFERENT": "ok"}, "tags": {"TRUNCATED": "fail"}}, "fail", "pass"),
        ("fail", {"success": {"DIFFERENT": "ok"}, "tags": {"TRUNCATED": "warn"}}, "pass", "warn"),
    ):
        fields = {name: replace(rule, verdicts=verdicts.get(name)) for name, rule in POLICY.fields.items()}
        policy = replace(POLICY, fields=fields | {"success": replace(fields["success"], severity=success)})
        gates = outcomes(counts, policy=policy)
        assert (gates["critical_field_agreement"], gates["field_agreement"]) == (critical, other)
