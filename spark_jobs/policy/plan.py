"""Make the plan of a run: its policy and what is known of its input, as plain data for the kernel."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from otel_mqtrace._clock import LAST_MS
from spark_jobs.judging.plan import Plan, SideRule
from spark_jobs.policy.profiles import NATIVE_CARRIES, by_design_rules
from spark_jobs.schemas import COMPARED_FIELDS
from spark_jobs.taxonomy import FieldVerdict, Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from spark_jobs.judging.plan import Alone
    from spark_jobs.policy.policy import Policy

_TIMED: Final = ("start_ms", "end_ms", "cost_ms")


def make_plan(policy: Policy, *, data_end_ms: int | None, horizon_ms: int | None) -> Plan:
    """Return the plan of a run.

    ``data_end_ms`` is the end of the later side's data; until ``horizon_ms`` both sides are complete, ``None`` if a
    side is empty. If the policy calls the data complete, every believable time is before it.
    """
    own = Plan(
        tolerance_ms={name: policy.tolerance(name) for name in _TIMED},
        native_lacks=_find_lacking(policy, "native", NATIVE_CARRIES),
        otlp_lacks=_find_lacking(policy, "otlp", policy.profile.carries, policy.profile.may_carry),
        wrong={
            name: frozenset(
                verdict.value for verdict in FieldVerdict if policy.judgement(name, verdict.value) in {"warn", "fail"}
            )
            for name in COMPARED_FIELDS
        },
        side_rules=_side_rules(policy),
        late_after_ms=policy.late_after_ms,
        consume_timeout_ms=policy.consume_timeout_ms,
        value_length_limit=policy.value_length_limit,
        mask_keys=policy.mask_keys,
        mask_text=policy.mask_text,
        mask_salt=policy.mask_salt,
        begin_ms=policy.begin_ms,
        end_ms=policy.end_ms,
        data_end_ms=data_end_ms,
        horizon_ms=LAST_MS if policy.is_complete and horizon_ms is not None else horizon_ms,
        grace_ms=policy.grace_ms,
        forget_after_ms=policy.forget_after_ms,
    )
    return own if policy.other is None else _mix(own, policy, policy.other)


def _side_rules(policy: Policy) -> tuple[SideRule, ...]:
    rules = (*by_design_rules(policy.profile.name, policy.native_writer), *policy.declared)
    return tuple(SideRule(rule.rule, rule.status.value, rule.when) for rule in rules if rule.when is not None)


@dataclass(frozen=True, slots=True)
class _OfOneWriter:
    """A rule for the keys of ours, or for the others."""

    holds: Callable[[Alone], bool]
    is_other: bool

    def __call__(self, key: Alone) -> bool:
        return key.is_other is self.is_other and self.holds(key)


def _mix(own: Plan, policy: Policy, other: Policy) -> Plan:
    """Return the plan of a run whose sources mix writers."""
    has_profiles = policy.profile is not other.profile
    # A field that the Java agent may leave out is nothing to compare: gates go by what our spans must have.
    carried = (other.profile.carries,) if has_profiles else (other.profile.carries, other.profile.may_carry)
    rules = ((each, is_other) for is_other, one in ((False, policy), (True, other)) for each in _side_rules(one))
    return replace(
        own,
        side_rules=tuple(rule._replace(holds=_OfOneWriter(rule.holds, is_other)) for rule, is_other in rules),
        other=replace(
            own,
            tolerance_ms={name: other.tolerance(name) for name in _TIMED},
            native_lacks=_find_lacking(other, "native", NATIVE_CARRIES),
            otlp_lacks=_find_lacking(other, "otlp", *carried),
        ),
        has_mixed_spans=has_profiles,
        are_spans_other=policy.profile.name != "mqtrace",
    )


def _find_lacking(policy: Policy, side: str, *carried: Mapping[Kind, frozenset[str]]) -> dict[str, frozenset[str]]:
    """Return per field the kinds for which this side's writer never records it."""
    never = policy.never_recorded(side)
    return {
        name: frozenset(
            kind.value for kind in Kind if name in never or not any(name in table.get(kind, ()) for table in carried)
        )
        for name in COMPARED_FIELDS
    }
