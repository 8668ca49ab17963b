"""Spans that were never made because their message was not sampled, told by the flags of links.

A single delivery's span is the child of its send and sampled as that was. The span of a batch is a root that decides
for itself and lists, with their flags, messages that were not sampled. So the flag tells it of some messages, and of
a sender that it samples at all. Of that sender's other messages only those are excused of which no span exists: head
sampling takes all of a message's spans or none, a loss takes one here and one there. And only as many as chance may
leave out: an outage takes all spans for a while, a sampler its share at any time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from spark_jobs.taxonomy import Kind

if TYPE_CHECKING:
    import numpy.typing as npt

    from spark_jobs.explain.answered import AnsweredRows
    from spark_jobs.judging.columns import Ints, Mask

__all__ = ["UNSAMPLED", "find_unsampled"]

UNSAMPLED: Final = ("link_flags", "whole_message", "whole_call")
"""What shows that a span was never made: the details of NOT_SAMPLED that links give."""

_SINGLE: Final = 1
_SPREADS: Final = 3  # chance keeps within so many standard deviations in 999 of 1 000 stretches


def find_unsampled(rows: AnsweredRows) -> npt.NDArray[np.int8]:
    """Return which of ``UNSAMPLED`` shows that a span was never made: 0 none, else its place counted from 1."""
    size = rows.number("native.batch_size").filled(_SINGLE)
    of_batch = rows.is_kind(Kind.CONSUME) & (size > _SINGLE)
    message, attempt, sampler = (rows.hear(question) for question in ("message", "attempt", "sampler"))
    follows_send = rows.on_native & ~of_batch & (message.count("following") == 0) & (message.count("sampled") == 0)
    is_whole_call = (attempt.count("otlp") == 0) & (attempt.count("keys") > _SINGLE)
    chosen = np.select(
        [
            follows_send & (message.count("unsampled") > 0),
            follows_send & (sampler.count("unsampled") > 0) & _is_its_share(rows),
            rows.on_native & of_batch & is_whole_call & (rows.hear("run").count("unsampled") > 0),
        ],
        [1, 2, 3],
        0,
    )
    return chosen.astype(np.int8)


def _is_its_share(rows: AnsweredRows) -> Mask:
    """Tell whether no more sends lack their span than chance allows: in this stretch, and of the process in all.

    What the links say of the sampler, and for a stretch how it went outside of it, is the evidence of its share.
    """
    sampler, stretch = rows.hear("sampler"), rows.hear("stretch")
    linked, unlinked = sampler.count("linked"), sampler.count("unsampled")
    sent, unseen = sampler.count("sent"), sampler.count("unseen")
    here, missing = stretch.count("sent"), stretch.count("unseen")
    elsewhere_seen, elsewhere_unseen = (sent - unseen) - (here - missing), unseen - missing
    overall = unseen <= _most(sent, unsampled=unlinked, sampled=linked)
    within = missing <= _most(here, unsampled=unlinked + elsewhere_unseen, sampled=linked + elsewhere_seen)
    is_share: Mask = overall & within
    return is_share


def _most(sends: Ints, *, unsampled: Ints, sampled: Ints) -> npt.NDArray[np.float64]:
    """Return how many of ``sends`` may go unsampled after so many others did: the beta-binomial's mean and spread."""
    off, on = unsampled + 1.0, sampled + 1.0
    both = off + on
    spread = np.sqrt(sends * off * on * (both + sends) / (both * both * (both + 1)))
    most: npt.NDArray[np.float64] = sends * off / both + _SPREADS * spread
    return most
