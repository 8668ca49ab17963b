"""This module knows how it shows that a message was not sampled although it left no span of its own.

A single delivery's span is the child of its send and sampled as that was; the span of a batch is a root that decides
for itself and lists, with their flags, messages that were not sampled. So the flag tells it of some messages, and of a
sender that it samples at all. Of that sender's other messages only those are excused of which no span exists anywhere:
head sampling takes all of a message's spans or none, while a loss takes one here and one there. Likewise a batch whose
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
        .when(follows_send & unseen & (_count("sampler", "unsampled") > 0), "whole_message")
        .when(alone & of_batch & whole_call & (_count("run", "unsampled") > 0), "whole_call")
    )


def _count(question: str, measure: str) -> Column:
    return F.coalesce(heard(question, measure), F.lit(0))
