"""Decide the status and the reason of a key from what is known of it: one plain function of its evidence."""

from __future__ import annotations

from typing import Final, NamedTuple

from spark_jobs.taxonomy import Kind, Reason, Status

_ONE_SIDED: Final = frozenset({Status.NATIVE_ONLY, Status.OTLP_ONLY})
_SETTLED_AT_ONCE: Final = frozenset({Reason.BY_DESIGN, Reason.IN_FLIGHT})


class KeyEvidence(NamedTuple):
    """What decides about one key.

    ``is_outside``: of the window, and not carried over from an earlier run. ``native_excess``: that side has copies.
    ``differs`` and ``all_equal``: as ``compare.Compared``. ``is_young``: a delivery may still end. ``is_damaged``:
    a malformed record of the missing side names this message. ``is_unsettled``: its other side may still arrive.
    ``rule``: the by-design rule that holds for a one-sided key.
    """

    kind: str | None
    on_native: bool
    on_otlp: bool
    is_outside: bool
    native_excess: bool
    otlp_excess: bool
    differs: bool
    all_equal: bool
    has_before: bool
    has_after: bool
    is_young: bool
    is_damaged: bool
    is_unsettled: bool
    rule: str | None


class Decision(NamedTuple):
    """The columns of ``VERDICT`` of these names."""

    status: str
    reason: str | None
    reason_detail: str | None


def decide(key: KeyEvidence) -> Decision:
    """Return status, reason and its detail; the order of the conditions is the definition."""
    sided = _decide_sided(key)
    reason = _find_reason(key, sided)
    if sided in _ONE_SIDED and key.is_unsettled and reason not in _SETTLED_AT_ONCE:
        return Decision(Status.PENDING.value, None, None)
    return Decision(sided.value, None if reason is None else reason.value, _find_detail(key, sided, reason))


def _decide_sided(key: KeyEvidence) -> Status:  # noqa: PLR0911 - a table of statuses, one a line
    """Return the status as far as the key itself decides it."""
    if key.is_outside:
        return Status.OUT_OF_SCOPE
    if not key.on_otlp:
        return Status.NATIVE_ONLY
    if not key.on_native:
        return Status.OTLP_ONLY
    if key.native_excess and key.otlp_excess:
        return Status.DUPLICATED_BOTH
    if key.native_excess:
        return Status.DUPLICATED_NATIVE
    if key.otlp_excess:
        return Status.DUPLICATED_OTLP
    if key.differs or _is_half(key):
        return Status.MISMATCHED
    return Status.MATCHED_EXACT if key.all_equal else Status.MATCHED_NORMALISED


def _is_half(key: KeyEvidence) -> bool:
    return key.kind == Kind.CONSUME.value and key.on_native and key.has_before != key.has_after


def _find_reason(key: KeyEvidence, sided: Status) -> Reason | None:
    """Return why a key is one-sided or half recorded; the first hit wins."""
    if sided not in _ONE_SIDED:
        return Reason.HALF_RECORD if _is_half(key) and sided is not Status.OUT_OF_SCOPE else None
    if key.rule is not None:
        return Reason.BY_DESIGN
    if sided is Status.NATIVE_ONLY and key.has_before and not key.has_after:
        return Reason.IN_FLIGHT if key.is_young else Reason.ABANDONED
    return Reason.COUNTERPART_MALFORMED if key.is_damaged else Reason.UNEXPLAINED


def _find_detail(key: KeyEvidence, sided: Status, reason: Reason | None) -> str | None:
    if reason is Reason.BY_DESIGN:
        return key.rule
    if sided is Status.OUT_OF_SCOPE:
        return "WINDOW"
    if reason is Reason.HALF_RECORD:
        return "before" if key.has_before else "after"
    return None
