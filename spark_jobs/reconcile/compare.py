"""This module knows how a field of one side compares with the same field of the other: one verdict from a closed list.

Every rule here that calls unequal values equal has a name in ``FieldVerdict``. What was put into one form before
(``spark_jobs.normalise.text_rules``: letter case of hexadecimal ids, the order of keys, words for nothing) arrives
equal and is EQUAL.
"""

from __future__ import annotations

import operator
from functools import reduce
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F

from spark_jobs.names import PREFIXES
from spark_jobs.reconcile.instants import between, minus, times
from spark_jobs.reconcile.masking import is_hash, is_masked
from spark_jobs.reconcile.profiles import NATIVE_CARRIES
from spark_jobs.reconcile.replaced import same_but_replaced
from spark_jobs.schemas import COMPARED_FIELDS
from spark_jobs.taxonomy import FieldVerdict, Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pyspark.sql import Column, DataFrame

    from spark_jobs.reconcile.policy import Policy

__all__ = ["compared"]

_AGREE: Final = (FieldVerdict.EQUAL, FieldVerdict.NOT_COMPARABLE)


def compared(rows: DataFrame, policy: Policy) -> DataFrame:
    """Add ``field_verdicts`` (map; null on one-sided rows), ``differs`` and ``all_equal``.

    A field that both sides leave out has no verdict. ``differs`` is true when a field is DIFFERENT, or missing on a
    side that should have it; ``all_equal`` when no rule, tolerance or omission was needed.
    """
    both = F.col("native").isNotNull() & F.col("otlp").isNotNull()
    names = {f"v_{name}": F.when(both, _verdict(name, policy)) for name in COMPARED_FIELDS}
    judged = rows.withColumns(names)
    pairs = [part for name in COMPARED_FIELDS for part in (F.lit(name), F.col(f"v_{name}"))]
    known = F.map_filter(F.create_map(*pairs), lambda _, verdict: verdict.isNotNull())
    added = {
        "field_verdicts": F.when(both, known),
        "differs": _any(_is_wrong(name, policy) for name in COMPARED_FIELDS),
        "all_equal": ~_any(~F.col(f"v_{name}").isin(*(v.value for v in _AGREE)) for name in COMPARED_FIELDS),
    }
    return judged.withColumns(added).drop(*names)


def _any(conditions: Iterable[Column]) -> Column:
    return reduce(operator.or_, (F.coalesce(each, F.lit(False)) for each in conditions))


def _is_wrong(name: str, policy: Policy) -> Column:
    """Say whether this field's verdict makes the key MISMATCHED."""
    wrong = [verdict.value for verdict in FieldVerdict if policy.judgement(name, verdict.value) in {"warn", "fail"}]
    return F.col(f"v_{name}").isin(*wrong)


def _verdict(name: str, policy: Policy) -> Column:
    native, otlp = F.col("native")[name], F.col("otlp")[name]
    unheard = _kind_in(name, NATIVE_CARRIES) | F.lit(name in policy.never_recorded("native"))
    unsaid = _kind_in(name, policy.profile.carries) & _kind_in(name, policy.profile.may_carry)
    unsaid = unsaid | F.lit(name in policy.never_recorded("otlp"))
    return (
        F.when(native.isNull() & otlp.isNull(), F.lit(None).cast("string"))
        .when(native.isNull(), F.when(unheard, _lit(FieldVerdict.NOT_COMPARABLE)).otherwise(_lit(_MISSING_NATIVE)))
        .when(otlp.isNull(), F.when(unsaid, _lit(FieldVerdict.NOT_COMPARABLE)).otherwise(_lit(_MISSING_OTLP)))
        .when(native == otlp, _lit(FieldVerdict.EQUAL))
        .otherwise(_COMPARATORS.get(name, _text)(name, native, otlp, policy))
    )


_DIFFERENT: Final = FieldVerdict.DIFFERENT
_MISSING_NATIVE: Final = FieldVerdict.MISSING_NATIVE
_MISSING_OTLP: Final = FieldVerdict.MISSING_OTLP


def _kind_in(name: str, carries: dict[Kind, frozenset[str]]) -> Column:
    """Say whether a row's kind has no place for this field."""
    kinds = [kind.value for kind in Kind if name not in carries.get(kind, ())]
    return F.col("kind").isin(*kinds) if kinds else F.lit(False)


def _lit(verdict: FieldVerdict) -> Column:
    return F.lit(verdict.value)


def _text(_name: str, native: Column, otlp: Column, policy: Policy) -> Column:
    """Compare text exactly; then trimmed, hex folded; then with separator characters as our encoder replaces them."""
    verdict = F.when(_folded(native) == _folded(otlp), _lit(FieldVerdict.EQUAL_NORMALISED)).when(
        same_but_replaced(native, otlp), _lit(FieldVerdict.SANITISED)
    )
    if policy.value_length_limit is not None:
        short = F.length(otlp) == policy.value_length_limit
        verdict = verdict.when(short & F.startswith(native, otlp), _lit(FieldVerdict.TRUNCATED))
    return verdict.when(_redacted(native, otlp, policy), _lit(FieldVerdict.REDACTED)).otherwise(_lit(_DIFFERENT))


def _redacted(native: Column, otlp: Column, policy: Policy) -> Column:
    """Say whether one text is the policy's mask, or the salted hash (or its beginning) of the other."""
    return (
        is_masked(native, policy)
        | is_masked(otlp, policy)
        | is_hash(native, otlp, policy)
        | is_hash(otlp, native, policy)
    )


def _folded(text: Column) -> Column:
    trimmed = F.trim(text)
    return F.when(trimmed.rlike("^[0-9A-Fa-f]{16,}$"), F.upper(trimmed)).otherwise(trimmed)


def _resource(_name: str, native: Column, otlp: Column, policy: Policy) -> Column:
    """Compare a topic or group: RocketMQ's namespace, retry and dead-letter prefixes are no part of the name."""
    stripped = F.regexp_replace(native, PREFIXES, "") == F.regexp_replace(otlp, PREFIXES, "")
    return F.when(stripped, _lit(FieldVerdict.EQUAL_NORMALISED)).otherwise(_text(_name, native, otlp, policy))


def _host(_name: str, native: Column, otlp: Column, policy: Policy) -> Column:
    """Compare ``host:port``: Java's ``name/address`` form and letter case are no difference."""

    def address(text: Column) -> Column:
        return F.lower(F.regexp_replace(text, r"^[^/]*/", ""))

    same = F.when(address(native) == address(otlp), _lit(FieldVerdict.EQUAL_NORMALISED))
    return same.otherwise(_text(_name, native, otlp, policy))


def _keys(_name: str, native: Column, otlp: Column, policy: Policy) -> Column:
    def all_known(keys: Column, others: Column) -> Column:
        return F.forall(keys, lambda key: F.exists(others, lambda other: same_but_replaced(key, other)))

    def all_masked(keys: Column) -> Column:
        return F.forall(keys, lambda key: is_masked(key, policy))

    def hashes_of(keys: Column, others: Column) -> Column:
        known = F.forall(keys, lambda key: F.exists(others, lambda other: is_hash(key, other, policy)))
        return known & (F.size(keys) == F.size(others))

    redacted = all_masked(native) | all_masked(otlp) | hashes_of(native, otlp) | hashes_of(otlp, native)
    same = F.when(all_known(native, otlp) & all_known(otlp, native), _lit(FieldVerdict.SANITISED))
    if policy.value_length_limit is not None:
        limit = policy.value_length_limit
        cut = F.array_sort(F.array_distinct(F.transform(native, lambda key: F.left(key, F.lit(limit)))))
        same = same.when(cut == otlp, _lit(FieldVerdict.TRUNCATED))
    return same.when(redacted, _lit(FieldVerdict.REDACTED)).otherwise(_lit(_DIFFERENT))


def _exact(_name: str, _native: Column, _otlp: Column, _policy: Policy) -> Column:
    return _lit(FieldVerdict.DIFFERENT)


def _body_length(_name: str, _native: Column, _otlp: Column, _policy: Policy) -> Column:
    """The native length of a batch is the whole batch's, a span's may be one message's."""
    return F.when(_batch_size() > 1, _lit(FieldVerdict.NOT_COMPARABLE)).otherwise(_lit(FieldVerdict.DIFFERENT))


def _batch_size() -> Column:
    return F.coalesce(F.greatest(F.col("native")["batch_size"], F.col("otlp")["batch_size"]), F.lit(1))


def _time(name: str, native: Column, otlp: Column, policy: Policy) -> Column:
    tolerance_ms = policy.tolerance(name)
    verdict = F.when(between(native, otlp, tolerance_ms), _lit(FieldVerdict.WITHIN_TOLERANCE))
    if name == "cost_ms":  # a listener's cost is divided by its batch, rounded down; a duration may be the whole
        size = _batch_size()
        whole = between(times(native, size), otlp, size + tolerance_ms)
        verdict = verdict.when(whole, _lit(FieldVerdict.WITHIN_TOLERANCE))
    if name != "start_ms":
        verdict = verdict.when(_is_instant_child(), _lit(FieldVerdict.NOT_COMPARABLE))
    return verdict.otherwise(_lit(FieldVerdict.DIFFERENT))


_INSTANT_MS: Final = 3


def _is_instant_child() -> Column:
    """The agent's old convention ends the spans of a batch before the listener starts: they measure nothing."""
    otlp = F.col("otlp")
    return (
        (F.col("kind") == Kind.CONSUME.value)
        & (otlp["writer"] == "java-agent-old")
        & F.coalesce(minus(otlp["end_ms"], otlp["start_ms"]) <= _INSTANT_MS, F.lit(False))
    )


def _outcome(_name: str, native: Column, otlp: Column, _policy: Policy) -> Column:
    """A listener that took too long is a success to RocketMQ (code TIME_OUT) and an error to a span."""
    late = (F.col("native")["context_code"] == "TIME_OUT") & native & ~otlp
    silent = _speaks_no_outcome()
    return (
        F.when(silent, _lit(FieldVerdict.NOT_COMPARABLE))
        .when(late, _lit(FieldVerdict.EQUAL_NORMALISED))
        .otherwise(_lit(FieldVerdict.DIFFERENT))
    )


def _code(_name: str, _native: Column, _otlp: Column, _policy: Policy) -> Column:
    silent = F.when(_speaks_no_outcome(), _lit(FieldVerdict.NOT_COMPARABLE))
    return silent.otherwise(_lit(FieldVerdict.DIFFERENT))


def _speaks_no_outcome() -> Column:
    """The agent's old convention puts no error on a failed delivery."""
    return (F.col("kind") == Kind.CONSUME.value) & (F.col("otlp")["writer"] == "java-agent-old")


_COMPARATORS: Final[dict[str, Callable[[str, Column, Column, Policy], Column]]] = {
    "topic": _resource,
    "group_name": _resource,
    "keys": _keys,
    "store_host": _host,
    "client_host": _host,
    "body_length": _body_length,
    "retry_times": _exact,
    "start_ms": _time,
    "end_ms": _time,
    "cost_ms": _time,
    "success": _outcome,
    "context_code": _code,
    "from_transaction_check": _exact,
}
