"""This module knows how many spans may be missing because the policy says that only a share of messages is sampled.

Whether a message is sampled is a throw of a coin for the message, so its keys stand and fall together: the number of
missing keys spreads as that of messages does, times the keys a message has. Up to the bound that chance keeps in 99 of
100 runs, missing spans are NOT_SAMPLED; what goes beyond is not.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F

from spark_jobs.reconcile.budget import Covered
from spark_jobs.taxonomy import Reason, Status

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from pyspark.sql import DataFrame

    from spark_jobs.reconcile.budget import Loss

__all__ = ["DETAIL", "allowed", "missing_spans", "read_allowed", "shared_out"]

DETAIL: Final = "policy_sampling_ratio"
"""The ``reason_detail`` of a key that the ratio covers."""

_Z_99_ONE_SIDED: Final = 2.3263478740408408


def missing_spans(residue: DataFrame, settled: DataFrame) -> DataFrame:
    """Return one row: keys on both sides, keys without a span that are open, those known as not sampled, messages."""
    alone = F.col("status") == Status.NATIVE_ONLY.value
    rows = residue.unionByName(settled).select(
        (F.col("native").isNotNull() & F.col("otlp").isNotNull()).alias("both"),
        (alone & (F.col("reason") == Reason.UNEXPLAINED.value)).alias("open"),
        (alone & (F.col("reason") == Reason.NOT_SAMPLED.value)).alias("unsampled"),
        "msg_id",
    )
    lost = F.col("open") | F.col("unsampled")
    counts = [F.count_if(F.coalesce(F.col(name), F.lit(False))).alias(name) for name in ("both", "open", "unsampled")]
    return rows.agg(*counts, F.count_distinct(F.when(lost, F.col("msg_id"))).alias("messages"))


def read_allowed(rows: Iterable[Any], ratio: float) -> int:
    """Return how many open keys the collected row of ``missing_spans`` and the ratio leave to chance."""
    row = next(iter(rows))
    still_open, unsampled = int(row["open"]), int(row["unsampled"])
    lost = still_open + unsampled
    most = allowed(int(row["both"]) + lost, ratio, keys_per_message=lost / max(int(row["messages"]), 1))
    return max(0, min(still_open, most - unsampled))


def allowed(keys: int, ratio: float, *, keys_per_message: float = 1.0) -> int:
    """Return how many of ``keys`` may have no span when ``ratio`` of messages are sampled, in 99 of 100 runs."""
    spread = math.sqrt(keys * ratio * (1 - ratio) * max(keys_per_message, 1.0))
    return min(keys, math.floor(keys * (1 - ratio) + _Z_99_ONE_SIDED * spread)) if ratio < 1 else 0


def shared_out(losses: Iterable[Loss], most: int) -> list[Covered]:
    """Cover at most ``most`` keys that lack a span, of each slot its share, by largest remainder, then by name."""
    open_ = sorted((loss for loss in losses if loss.side == "otlp"), key=lambda loss: loss.slot)
    whole = sum(loss.count for loss in open_)
    if not whole:
        return []
    most = min(most, whole)
    shares = [divmod(loss.count * most, whole) for loss in open_]
    left = most - sum(share for share, _ in shares)
    by_remainder = sorted(range(len(open_)), key=lambda number: (-shares[number][1], open_[number].slot))
    favoured = set(by_remainder[:left])
    covered = [
        Covered(loss.slot, DETAIL, share + (number in favoured))
        for number, (loss, (share, _)) in enumerate(zip(open_, shares, strict=True))
    ]
    return [each for each in covered if each.count]
