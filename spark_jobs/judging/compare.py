"""Compare the fields of both sides: a rule is a function of two values, called once per distinct pair of a column."""

from __future__ import annotations

import re
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from otel_mqtrace.model import strip_prefixes
from spark_jobs.columns import apply_to_distinct, as_scalars, find_groups, is_known, is_true, join_codes, take_rows
from spark_jobs.judging.columns import NullableInts, is_equal, is_near, maximum
from spark_jobs.judging.identity import CONSUME, KINDS, PUBLISH
from spark_jobs.schemas import COMPARED_FIELDS, TIMED_FIELDS, VERDICT
from spark_jobs.taxonomy import FieldVerdict

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

    from spark_jobs.columns import Column, Ints, Mask
    from spark_jobs.judging.merge import Sides
    from spark_jobs.judging.plan import Plan

HASH_DIGITS: Final = 16
"""So much of a hash is written, and so much of one is needed to be recognised: 64 bits, in hex."""
_UNREADABLE: Final = "\ufffd"
_RUN: Final = re.compile(f"{_UNREADABLE}+")
_REPLACED: Final = str.maketrans(dict.fromkeys("\x01\x02" + _UNREADABLE, "_"))
# Java's $ also matches before a final line end: it makes no difference.
_HEX: Final = re.compile(r"[0-9A-Fa-f]{16,}(?:\r\n|[\n\r\u0085\u2028\u2029])?")
_HOST_NAME: Final = re.compile(r"^[^/]*/")


def compare_texts(native: str, otlp: str, plan: Plan) -> FieldVerdict:
    """Compare trimmed and with hex folded; then with characters replaced; then as cut or hidden by the span's side."""
    if _fold(native) == _fold(otlp):
        return FieldVerdict.EQUAL_NORMALISED
    if is_same_but_replaced(native, otlp):
        return FieldVerdict.SANITISED
    if plan.value_length_limit is not None and len(otlp) == plan.value_length_limit and native.startswith(otlp):
        return FieldVerdict.TRUNCATED
    if _is_redacted(native, otlp, plan):
        return FieldVerdict.REDACTED
    return FieldVerdict.DIFFERENT


def compare_resources(native: str, otlp: str, plan: Plan) -> FieldVerdict:
    """Compare a topic or group without RocketMQ's namespace, retry and dead-letter prefixes."""
    same = strip_prefixes(native) == strip_prefixes(otlp)
    return FieldVerdict.EQUAL_NORMALISED if same else compare_texts(native, otlp, plan)


def compare_hosts(native: str, otlp: str, plan: Plan) -> FieldVerdict:
    """Compare ``host:port``, regardless of Java's ``name/address`` form and letter case."""
    addresses = {_HOST_NAME.sub("", host).lower() for host in (native, otlp)}
    return FieldVerdict.EQUAL_NORMALISED if len(addresses) == 1 else compare_texts(native, otlp, plan)


def compare_keys(native: Sequence[str], otlp: Sequence[str], plan: Plan) -> FieldVerdict:
    """Compare two sets of keys, each sorted and distinct."""
    if _all_replaced(native, otlp) and _all_replaced(otlp, native):
        return FieldVerdict.SANITISED
    limit = plan.value_length_limit
    if limit is not None and sorted({key[:limit] for key in native}) == list(otlp):
        return FieldVerdict.TRUNCATED
    masked = any(all(_is_masked(key, plan) for key in keys) for keys in (native, otlp))
    if masked or _all_hashes(native, otlp, plan) or _all_hashes(otlp, native, plan):
        return FieldVerdict.REDACTED
    return FieldVerdict.DIFFERENT


def compare_outcomes(
    native: bool,  # noqa: FBT001
    otlp: bool,  # noqa: FBT001
    native_code: str | None,
    otlp_code: str | None,
    writer: str,
) -> FieldVerdict:
    """A listener that took too long (code TIME_OUT) may be a success to RocketMQ, and is an error to a span.

    The Java agent's span of such a delivery has the code alone, which does not say what the listener answered.
    """
    is_unanswered = otlp_code == native_code and writer != "mqtrace"
    is_late = native_code == "TIME_OUT" and ((native and not otlp) or is_unanswered)
    return FieldVerdict.EQUAL_NORMALISED if is_late else FieldVerdict.DIFFERENT


def is_same_but_replaced(one: str, other: str) -> bool:
    """Return whether two texts are equal but where one shows a replacement.

    The native encoder writes its separators as ``_``. Non-UTF-8 bytes (clients up to 4.9.8 write in their JVM's
    own charset) are read as U+FFFD, one or several for a character: a run of them stands for any text.
    """
    replaced = one.translate(_REPLACED) == other.translate(_REPLACED)
    return replaced or _is_legible_part(one, other) or _is_legible_part(other, one)


def _is_legible_part(damaged: str, whole: str) -> bool:
    """Return whether what can be read of ``damaged`` stands in ``whole``, in order, and something for every run."""
    if _UNREADABLE not in damaged:
        return False
    first, *between, last = _RUN.split(damaged)
    if not (whole.startswith(first) and whole.endswith(last)):
        return False
    end = len(first)
    for piece in between:
        at = whole.find(piece, end + 1)  # one character at least is what could not be read
        if at < 0:
            return False
        end = at + len(piece)
    return len(whole) - len(last) > end


def digest(value: str, plan: Plan) -> str:
    """Return the salted SHA-256 of a value, in hex."""
    return sha256((plan.mask_salt + value).encode()).hexdigest()


def _fold(text: str) -> str:
    trimmed = text.strip(" ")
    return trimmed.upper() if _HEX.fullmatch(trimmed) else trimmed


def _is_masked(value: str, plan: Plan) -> bool:
    return bool(plan.mask_text) and value == plan.mask_text


def _is_hash(value: str, original: str, plan: Plan) -> bool:
    return len(value) >= HASH_DIGITS and digest(original, plan).startswith(value.lower())


def _is_redacted(native: str, otlp: str, plan: Plan) -> bool:
    masked = _is_masked(native, plan) or _is_masked(otlp, plan)
    return masked or _is_hash(native, otlp, plan) or _is_hash(otlp, native, plan)


def _all_replaced(keys: Sequence[str], others: Sequence[str]) -> bool:
    return all(any(is_same_but_replaced(key, other) for other in others) for key in keys)


def _all_hashes(keys: Sequence[str], originals: Sequence[str], plan: Plan) -> bool:
    known = all(any(_is_hash(key, other, plan) for other in originals) for key in keys)
    return known and len(keys) == len(originals)


_WORDS: Final = (None, *(verdict.value for verdict in FieldVerdict))
_CODE: Final = {verdict: place for place, verdict in enumerate((None, *FieldVerdict))}
_INSTANT_MS: Final = 3
_OTHER_END: Final = {"start_ms": "end_ms", "end_ms": "start_ms"}
_AGREE: Final = frozenset({None, FieldVerdict.EQUAL.value, FieldVerdict.NOT_COMPARABLE.value})
_RULES: Final[dict[str, Callable[[Any, Any, Plan], FieldVerdict]]] = {
    "topic": compare_resources,
    "group_name": compare_resources,
    "store_host": compare_hosts,
    "client_host": compare_hosts,
    "keys": compare_keys,
}
"""The rules of fields that hold texts, beside ``compare_texts``."""
_EXACT: Final = frozenset({"retry_times", "from_transaction_check"})


@dataclass(frozen=True, slots=True)
class Compared:
    """How the fields of some keys compare.

    ``field_verdicts`` as in ``VERDICT``; ``differs``: a field's verdict makes the key MISMATCHED; ``all_equal``: no
    rule, tolerance or omission was needed.
    """

    field_verdicts: Column
    differs: Mask
    all_equal: Mask


def compare_sides(sides: Sides, plan: Plan) -> Compared:
    """Return the field verdicts of the keys that both sides have."""
    if plan.other is None:
        return _compare(sides, plan)
    own, other, is_other = _compare(sides, plan), _compare(sides, plan.other), find_other(sides, plan)
    rows = np.arange(len(sides)) + np.where(is_other, len(sides), 0)
    return Compared(
        pa.concat_arrays([own.field_verdicts, other.field_verdicts]).take(pa.array(rows)),
        np.where(is_other, other.differs, own.differs),
        np.where(is_other, other.all_equal, own.all_equal),
    )


def find_other(sides: Sides, plan: Plan) -> Mask:
    """Return which keys are not of ours, where sources mix writers: by the span, else by the native record."""
    if plan.other is None:
        return np.zeros(len(sides), bool)
    is_span = ~is_equal(sides.otlp("writer"), "mqtrace") if plan.has_mixed_spans else plan.are_spans_other
    is_record = is_true(pc.starts_with(sides.native("writer"), "rocketmq"))
    by_span = sides.on_otlp & (plan.has_mixed_spans | ~sides.on_native)
    return np.where(by_span, is_span, is_record)


def _compare(sides: Sides, plan: Plan) -> Compared:
    codes = np.zeros((len(sides), len(COMPARED_FIELDS)), np.uint8)
    both = sides.on_native & sides.on_otlp
    if both.any():
        comparison = _Comparison(sides, plan)
        for place, name in enumerate(COMPARED_FIELDS):
            codes[:, place] = comparison.compare_field(name)
    examples, pattern = find_groups(join_codes(*((of_field, len(_WORDS)) for of_field in codes.T)))
    rows = [[_WORDS[code] for code in row] for row in codes[examples].tolist()]  # a run shows dozens
    wrong = [plan.wrong[name] for name in COMPARED_FIELDS]
    differs = np.array([any(word in some for word, some in zip(row, wrong, strict=True)) for row in rows], bool)
    all_equal = np.array([_AGREE.issuperset(row) for row in rows], bool)
    return Compared(_lay_out(rows, pattern, both), differs[pattern] & both, all_equal[pattern])


class _Comparison:
    """The fields of keys that both sides have, and what else of a key decides how they compare."""

    def __init__(self, sides: Sides, plan: Plan) -> None:
        self._sides, self._plan = sides, plan
        self._both = sides.on_native & sides.on_otlp
        sizes = maximum(*(NullableInts.of(side("batch_size")) for side in (sides.native, sides.otlp)))
        self._batch_size = sizes.coalesce(NullableInts.constant(1))
        # The agent's old convention puts no error on a failed delivery, and ends the spans of a batch before the
        # listener starts: they measure nothing. Nor do the new one's ``create`` spans of the messages of a batch.
        writer, is_sized = sides.otlp("writer"), is_known(sides.otlp("batch_size"))
        self._is_old_delivery = (sides.kind == CONSUME) & is_equal(writer, "java-agent-old")
        is_created = (sides.kind == PUBLISH) & is_equal(writer, "java-agent-new") & ~is_sized
        took = NullableInts.of(sides.otlp("end_ms")) - NullableInts.of(sides.otlp("start_ms"))
        is_instant = took.known & (took.values <= _INSTANT_MS)
        self._is_unmeasured = (self._is_old_delivery | is_created) & is_instant

    def compare_field(self, name: str) -> npt.NDArray[np.uint8]:
        """Return the code of the field's verdict for each key."""
        codes = np.zeros(len(self._sides), np.uint8)
        native, otlp = self._sides.native(name), self._sides.otlp(name)
        on_native, on_otlp = is_known(native), is_known(otlp)
        for mask, lacks, missing in (
            (self._both & on_otlp & ~on_native, self._plan.native_lacks, FieldVerdict.MISSING_NATIVE),
            (self._both & on_native & ~on_otlp, self._plan.otlp_lacks, FieldVerdict.MISSING_OTLP),
        ):
            if mask.any():
                no_place = np.isin(self._sides.kind, [KINDS.index(kind) for kind in lacks[name]])
                codes[mask] = np.where(no_place, _CODE[FieldVerdict.NOT_COMPARABLE], _CODE[missing])[mask]
        two = self._both & on_native & on_otlp
        same = is_true(pc.equal(as_scalars(native), as_scalars(otlp)))
        codes[two & same] = _CODE[FieldVerdict.EQUAL]
        rows = np.flatnonzero(two & ~same)
        if len(rows):
            codes[rows] = self._compare_values(name, take_rows(native, rows), take_rows(otlp, rows), rows)
        return codes

    def _compare_values(self, name: str, native: Column, otlp: Column, rows: Ints) -> Ints:
        """Return the codes of the verdicts on values that differ."""
        different, not_comparable = _CODE[FieldVerdict.DIFFERENT], _CODE[FieldVerdict.NOT_COMPARABLE]
        if name in TIMED_FIELDS:
            return self._compare_times(name, native, otlp, rows)
        if name == "body_length":  # the native length of a batch is the whole batch's, a span's may be one message's
            return np.where(self._batch_size.values[rows] > 1, not_comparable, different)
        if name in {"success", "context_code"}:
            found = np.full(len(rows), different)
            if name == "success":
                codes = (side("context_code") for side in (self._sides.native, self._sides.otlp))
                of_call = (*codes, self._sides.otlp("writer"))
                found = _answers(compare_outcomes, native, otlp, *(take_rows(each, rows) for each in of_call))
            return np.where(self._is_old_delivery[rows], not_comparable, found)
        if name in _EXACT:
            return np.full(len(rows), different)
        rule = _RULES.get(name, compare_texts)
        return _answers(lambda one, other: rule(one, other, self._plan), native, otlp)

    def _compare_times(self, name: str, native: Column, otlp: Column, rows: Ints) -> Ints:
        one, other = NullableInts.of(native), NullableInts.of(otlp)
        tolerance_ms = self._plan.tolerance_ms[name]
        near = is_near(one, other, tolerance_ms)
        size = self._batch_size.take(rows)
        if name == "cost_ms":  # a listener's cost is divided by its batch, rounded down; a duration may be the whole
            near |= is_near(one * size, other, size.values + tolerance_ms)
        else:  # computed from such a cost where no record has it; the forwarder takes the cost of one message
            at, cost = (NullableInts.of(self._sides.native(each)).take(rows) for each in (_OTHER_END[name], "cost_ms"))
            computed = at - cost if name == "start_ms" else at + cost
            is_ours = is_equal(self._sides.otlp("writer"), "mqtrace")[rows]
            close = is_near(one, other, size.values - 1 + tolerance_ms)
            close |= is_near(computed, other, tolerance_ms) & is_ours
            near |= close & ~self._sides.has_native(name)[rows]
        unmeasured = self._is_unmeasured[rows] & (name != "start_ms")
        otherwise = np.where(unmeasured, _CODE[FieldVerdict.NOT_COMPARABLE], _CODE[FieldVerdict.DIFFERENT])
        return np.where(near, _CODE[FieldVerdict.WITHIN_TOLERANCE], otherwise)


def _answers(rule: Callable[..., FieldVerdict], *columns: Column) -> Ints:
    verdicts, answer_of = apply_to_distinct(rule, *columns)
    return np.array([_CODE[verdict] for verdict in verdicts])[answer_of]


def _lay_out(rows: Sequence[Sequence[str | None]], pattern: Ints, both: Mask) -> Column:
    """Return the map of each key: the fields that have a verdict; null on one-sided keys."""
    shown = [[(name, word) for name, word in zip(COMPARED_FIELDS, row, strict=True) if word] for row in rows]
    return pa.array(shown, VERDICT.field("field_verdicts").type).take(pa.array(pattern, mask=~both))
