"""Compare one field of the two sides: each rule is a function of both values that returns a field verdict.

A rule is called for values that are there on both sides and differ. What was put into one form before (letter case of
hexadecimal ids, the order of keys, words for nothing: ``normalise.text_rules``) arrives equal and is EQUAL.
"""

from __future__ import annotations

import re
from hashlib import sha256
from typing import TYPE_CHECKING, Final

from spark_jobs.schemas import bare
from spark_jobs.taxonomy import FieldVerdict

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spark_jobs.judging.plan import Plan

HASH_DIGITS: Final = 16
"""So much of a hash is written, and so much of one is needed to be recognised: 64 bits, in hex."""
_UNREADABLE: Final = "\ufffd"
_RUN: Final = re.compile(f"{_UNREADABLE}+")
_REPLACED: Final = str.maketrans(dict.fromkeys("\x01\x02" + _UNREADABLE, "_"))
# Java's $ also matches before a final line end: it makes no difference.
_HEX: Final = re.compile(r"[0-9A-Fa-f]{16,}(?:\r\n|[\n\r\x85\u2028\u2029])?\Z")
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
    return FieldVerdict.EQUAL_NORMALISED if bare(native) == bare(otlp) else compare_texts(native, otlp, plan)


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


def compare_outcomes(native: bool, otlp: bool, context_code: str | None) -> FieldVerdict:  # noqa: FBT001 - two values
    """A listener that took too long is a success to RocketMQ (code TIME_OUT) and an error to a span."""
    late = context_code == "TIME_OUT" and native and not otlp
    return FieldVerdict.EQUAL_NORMALISED if late else FieldVerdict.DIFFERENT


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
    return trimmed.upper() if _HEX.match(trimmed) else trimmed


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
