"""Residue rows with what the run answers to their questions: what an explainer looks at."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from spark_jobs.explain.answers import EARLIEST, GREATEST, MOST_MOMENTS, UNKNOWN_LEAST
from spark_jobs.explain.keys import NamedRows
from spark_jobs.explain.questions import asked_keys, rules_that_ask
from spark_jobs.judging.columns import NullableInts, equals, flatten_sides, greatest
from spark_jobs.taxonomy import Kind, Status

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from spark_jobs.explain.answers import Answers
    from spark_jobs.explain.keys import Keys
    from spark_jobs.judging.columns import Column, Ints, Mask
    from spark_jobs.judging.facts import Facts
    from spark_jobs.policy.policy import Policy
    from spark_jobs.policy.profiles import ByDesign

__all__ = ["AnsweredRows", "Heard"]


@dataclass(frozen=True, slots=True)
class Heard:
    """The answers to one question of each residue row.

    Attributes:
        answers: of the whole run.
        places: the place of each row's key in ``answers``; -1 where there is no answer.
    """

    answers: Answers
    places: Ints

    @property
    def is_answered(self) -> Mask:
        """Which rows have an answer at all."""
        return self.places >= 0

    def value(self, measure: str) -> NullableInts:
        """Return a measure, unknown where nothing is answered or no event had it."""
        if measure == "last_ms":
            return greatest(self.value("native_ms"), self.value("otlp_ms"))
        column = NullableInts(self.answers.measures[measure], self._is_known(measure))
        return column.take(self.places)

    def _is_known(self, measure: str) -> Mask:
        unknown = {"first_ms": UNKNOWN_LEAST, **dict.fromkeys(GREATEST, EARLIEST)}.get(measure)
        values = self.answers.measures[measure]
        is_known: Mask = np.ones(len(values), bool) if unknown is None else values != unknown
        return is_known

    def count(self, measure: str) -> Ints:
        """Return a count, 0 where nothing is answered."""
        return self.value(measure).filled(0)

    def has_none(self, measure: str) -> Mask:
        """Tell where there is an answer and its count is 0."""
        is_none: Mask = self.is_answered & (self.count(measure) == 0)
        return is_none

    def moments(self, row: int) -> Sequence[int] | None:
        """Return the moments that one row's key was told with; ``None`` where they are too many to tell."""
        place = self.places[row]
        if place < 0:
            return ()
        if self.answers.measures["moment_count"][place] > MOST_MOMENTS:
            return None
        begin, end = self.answers.moment_starts[place : place + 2]
        found: list[int] = self.answers.moments[begin:end].tolist()
        return found


class AnsweredRows:
    """Some rows of the residue, the answers to their questions, and what is known of the whole input.

    Args:
        residue: ``RESIDUE``.
        answers: of the whole run to the questions of these rows.
        policy: what the run tolerates.
        facts: what is known of the run's whole input.
    """

    def __init__(self, residue: pa.Table, answers: Answers, policy: Policy, facts: Facts) -> None:
        self.named = NamedRows(flatten_sides(residue))
        self.policy, self.facts = policy, facts
        self._answers = answers

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return self.named.rows

    @cached_property
    def asked(self) -> dict[str, Keys]:
        """The keys of each question."""
        return asked_keys(self.named, rules_that_ask(self.policy))

    def hear(self, question: str) -> Heard:
        """Return the answers to one question."""
        keys, asked = self._answers.keys, self.asked[question]
        places = np.searchsorted(keys, asked.values)
        found = asked.known & (places < len(keys))
        found[found] = keys[places[found]] == asked.values[found]
        return Heard(self._answers, np.where(found, places, -1))

    def holds(self, rule: ByDesign) -> bool:
        """Tell whether a rule is about this run's writers."""
        return self.policy.is_concerned_by(rule)

    def may_concern(self, rule: ByDesign) -> Mask:
        """Tell which keys a rule may be about: where sources mix writers, not those with a span of ours."""
        own = self.policy.other is not None and not rule.holds(self.policy.profile.name, self.policy.native_writer)
        return ~(equals(self.column("otlp.writer"), "mqtrace") & own)

    def none(self) -> Mask:
        """Return a mask of no rows."""
        return np.zeros(self.rows, bool)

    def column(self, name: str) -> Column:
        """Return a column of ``RESIDUE``."""
        return self.named.columns[name]

    def number(self, name: str) -> NullableInts:
        """Return a column of integers."""
        return self.named.number(name)

    def over_ms(self, side: str) -> NullableInts:
        """Return when the event was over, as one side says."""
        return self.number(f"{side}.end_ms").coalesce(self.number(f"{side}.start_ms"))

    @cached_property
    def on_native(self) -> Mask:
        """Which keys lack their span."""
        return equals(self.column("status"), Status.NATIVE_ONLY.value)

    @cached_property
    def on_otlp(self) -> Mask:
        """Which keys lack their native record."""
        return equals(self.column("status"), Status.OTLP_ONLY.value)

    def is_alone(self, side: str) -> Mask:
        """Tell which keys are on this side only."""
        return self.on_native if side == "native" else self.on_otlp

    def is_kind(self, kind: Kind) -> Mask:
        """Tell which keys are of this kind."""
        return equals(self.column("kind"), kind.value)

    @cached_property
    def is_lost_delivery(self) -> Mask:
        """Which keys are deliveries without a native record."""
        return self.on_otlp & self.is_kind(Kind.CONSUME)
