"""This module knows how values are hidden: masked or hashed in what is written, and recognised when a side did so."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from spark_jobs.reconcile.policy import Policy

__all__ = ["hidden", "is_hash", "is_masked", "masked_keys"]

_DIGITS: Final = 16
"""So much of a hash is written, and so much of one is needed to be recognised: 64 bits, in hex."""


def masked_keys(verdicts: DataFrame, policy: Policy) -> DataFrame:
    """Return ``VERDICT`` rows with the message keys of both sides hidden as the policy wants it."""
    if policy.mask_keys == "none":
        return verdicts
    hide = _MASKS[policy.mask_keys]
    sides = {
        side: F.col(side).withField(
            "keys", F.array_sort(F.transform(F.col(side)["keys"], lambda key: hide(key, policy)))
        )
        for side in ("native", "otlp")
    }
    return verdicts.withColumns(sides)


def _mask(_value: Column, policy: Policy) -> Column:
    return F.lit(policy.mask_text)


def _hash(value: Column, policy: Policy) -> Column:
    return F.substring(_digest(value, policy), 1, _DIGITS)


_MASKS: Final = {"mask": _mask, "hash": _hash}


def hidden(text: str, policy: Policy) -> str:
    """Return a text that may hold keys, such as that of a damaged record, as the policy lets it be shown."""
    return text if policy.mask_keys == "none" else policy.mask_text


def is_masked(value: Column, policy: Policy) -> Column:
    """Say whether a text is the policy's mask; an empty mask is none."""
    return value == policy.mask_text if policy.mask_text else F.lit(False)


def is_hash(value: Column, original: Column, policy: Policy) -> Column:
    """Say whether a text is the salted SHA-256 of another, in hex, whole or its beginning."""
    return (F.length(value) >= _DIGITS) & F.startswith(_digest(original, policy), F.lower(value))


def _digest(value: Column, policy: Policy) -> Column:
    return F.sha2(F.concat(F.lit(policy.mask_salt), value), 256)
