"""How many spans may be missing because the policy says that only a share of messages is sampled.

Up to the bound that chance keeps in 99 of 100 runs, missing spans are NOT_SAMPLED; what goes beyond is not.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from spark_jobs.explain.budgets.allocation import Covered

if TYPE_CHECKING:
    from collections.abc import Iterable

    from spark_jobs.explain.budgets.allocation import Loss

__all__ = ["DETAIL", "allow_missing", "limit_missing", "share_out"]

DETAIL: Final = "policy_sampling_ratio"
"""The ``reason_detail`` of a key that the ratio covers."""

_Z_99_ONE_SIDED: Final = 2.3263478740408408


def limit_missing(both: int, still_open: int, unsampled: int, messages: int, *, ratio: float) -> int:
    """Return how many open keys without a span the sampling ratio leaves to chance.

    Args:
        both: keys on both sides.
        still_open: keys without a span and without a reason.
        unsampled: keys that are known not to be sampled.
        messages: distinct messages of the open and the unsampled keys.
        ratio: the share of messages that is sampled.
    """
    lost = still_open + unsampled
    most = allow_missing(both + lost, ratio, keys_per_message=lost / max(messages, 1))
    return max(0, min(still_open, most - unsampled))


def allow_missing(keys: int, ratio: float, *, keys_per_message: float = 1.0) -> int:
    """Return how many of ``keys`` may have no span when ``ratio`` of messages are sampled, in 99 of 100 runs.

    Whether a message is sampled is one throw of a coin for all of its keys: their number spreads as that of messages
    does, times the keys a message has.
    """
    spread = math.sqrt(keys * ratio * (1 - ratio) * max(keys_per_message, 1.0))
    return min(keys, math.floor(keys * (1 - ratio) + _Z_99_ONE_SIDED * spread)) if ratio < 1 else 0


def share_out(losses: Iterable[Loss], most: int) -> list[Covered]:
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
