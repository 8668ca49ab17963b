"""This module knows how it shows that a message was not sampled although it left no span of its own.

A single delivery's span is the child of its send and sampled as that was; the span of a batch is a root that decides
for itself and lists, with their flags, messages that were not sampled. So the flag tells it of some messages, and of a
sender that it samples at all. Of that sender's other messages only those are excused of which no span exists anywhere:
head sampling takes all of a message's spans or none, while a loss takes one here and one there. And only where chance
may leave out as many: an outage takes all spans for a while, a sampler its share at any time. Likewise a batch whose
own span was not sampled lacks the spans of all its messages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F

from spark_jobs.reconcile.testimony import heard
from spark_jobs.taxonomy import Kind, Status

if TYPE_CHECKING:
    from pyspark.sql import Column

__all__ = ["not_sampled"]

_SINGLE: Final = 1
_SPREADS: Final = 3  # chance keeps within so many standard deviations in 999 of 1 000 stretches


def not_sampled() -> Column:
    """Return what shows that a span was never made: ``link_flags``, ``whole_message`` or ``whole_call``."""
    size = F.coalesce(F.col("native")["batch_size"], F.lit(_SINGLE))
    alone = F.col("status") == Status.NATIVE_ONLY.value
    of_batch = (F.col("kind") == Kind.CONSUME.value) & (size > _SINGLE)
    follows_send = alone & ~of_batch
    denied = (_count("message", "unsampled") > 0) & (_count("message", "sampled") == 0)
    unseen = (_count("message", "following") == 0) & (_count("message", "sampled") == 0)
    whole_call = (_count("attempt", "otlp") == 0) & (_count("attempt", "keys") > _SINGLE)
    return (
        F.when(follows_send & denied & (_count("message", "following") == 0), "link_flags")
        .when(follows_send & unseen & (_count("sampler", "unsampled") > 0) & _is_its_share(), "whole_message")
        .when(alone & of_batch & whole_call & (_count("run", "unsampled") > 0), "whole_call")
    )


def _is_its_share() -> Column:
    """Say whether no more sends lack their span than chance allows: in this stretch, and of the process in all.

    What the links say of the sampler, and for a stretch how it went outside of it, is the evidence of its share.
    """
    linked, unlinked = _count("sampler", "linked"), _count("sampler", "unsampled")
    sent, unseen = _count("sampler", "sent"), _count("sampler", "unseen")
    here, missing = _count("stretch", "sent"), _count("stretch", "unseen")
    elsewhere_seen, elsewhere_unseen = (sent - unseen) - (here - missing), unseen - missing
    overall = unseen <= _most(sent, unsampled=unlinked, sampled=linked)
    within = missing <= _most(here, unsampled=unlinked + elsewhere_unseen, sampled=linked + elsewhere_seen)
    return overall & within


def _most(sends: Column, *, unsampled: Column, sampled: Column) -> Column:
    """Return how many of ``sends`` may go unsampled after so many others did: the beta-binomial's mean and spread."""
    off, on = unsampled + F.lit(1.0), sampled + F.lit(1.0)
    both = off + on
    spread = F.sqrt(sends * off * on * (both + sends) / (both * both * (both + 1)))
    return sends * off / both + _SPREADS * spread


def _count(question: str, measure: str) -> Column:
    return F.coalesce(heard(question, measure), F.lit(0))
