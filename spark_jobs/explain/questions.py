"""Questions of the residue to the whole run: asked as 64-bit keys, answered by every task, added up per key.

A residue row asks under families of keys (``process``, ``message``, ``next3``, …). Every verdict of the run, and every
span in which trace messages were sent, has measures under the keys that concern it. What no row asks for is dropped
at once. Nothing of it depends on the order of rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from spark_jobs.explain.answers import COUNTS, EARLIEST, UNKNOWN_LEAST, Answers, merge_answers
from spark_jobs.explain.keys import Keys, NamedRows
from spark_jobs.judging.columns import NullableInts, equals, flatten_sides, is_known, is_true
from spark_jobs.policy.profiles import BATCH_SENT, CALL_WITHOUT_REGION, NO_TRACE_CONTEXT, TRACE_OFF
from spark_jobs.taxonomy import Kind

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    import pyarrow as pa

    from spark_jobs.judging.columns import Ints, Mask
    from spark_jobs.policy.policy import Policy

__all__ = [
    "NEXT_IDS",
    "TRAFFIC_COLUMNS",
    "Questions",
    "answer",
    "answer_traffic",
    "asked_keys",
    "rules_that_ask",
    "wanted_questions",
]

NEXT_IDS: Final = 8
"""How many of the ids after a send's own are asked for."""

TRAFFIC_COLUMNS: Final = ("msg_id", "start_ms", "end_ms")
"""The columns of ``EVENT`` that ``answer_traffic`` reads."""

_ROWS_AT_ONCE: Final = 1 << 16
_RULES: Final = (NO_TRACE_CONTEXT, CALL_WITHOUT_REGION, TRACE_OFF)
_ALWAYS: Final = (
    *("kind", "msg_id", "topic", "group", "reason_detail", "event_ms"),
    *(f"native.{name}" for name in ("start_ms", "end_ms", "cost_ms", "batch_size", "attempt_id")),
    *(f"otlp.{name}" for name in ("start_ms", "end_ms", "batch_size", "service", "sent_sampled")),
)
_OF_RULES: Final[Mapping[str, tuple[str, ...]]] = {
    NO_TRACE_CONTEXT.rule: tuple(
        f"{side}.{name}" for side in ("native", "otlp") for name in ("client_host", "group_name")
    ),
    CALL_WITHOUT_REGION.rule: tuple(
        f"otlp.{name}" for name in ("trace_id", "span_id", "parent_span_id", "writer", "record_index")
    ),
}


@dataclass(frozen=True, slots=True)
class Questions:
    """What is asked of a run.

    Attributes:
        keys: sorted, each once.
        rules: the names of the rules whose questions are among them.
    """

    keys: npt.NDArray[np.uint64]
    rules: frozenset[str]

    @property
    def columns(self) -> list[str]:
        """The columns of ``VERDICT`` that ``answer`` reads, fields of a side as ``native.topic``."""
        return [*_ALWAYS, *(name for rule in sorted(self.rules) for name in _OF_RULES.get(rule, ()))]


def wanted_questions(residue: pa.Table, policy: Policy) -> Questions:
    """Return what the rows of ``residue`` (``RESIDUE``, some 100,000 rows at most) ask of the whole run."""
    rules = rules_that_ask(policy)
    asked = asked_keys(NamedRows(flatten_sides(residue)), rules).values()
    every = [keys.values[keys.known] for keys in asked]
    return Questions(np.unique(np.concatenate(every)), rules)


def rules_that_ask(policy: Policy) -> frozenset[str]:
    """Return the names of the rules that hold for this run's writers and have questions of their own."""
    return frozenset(rule.rule for rule in _RULES if policy.is_concerned_by(rule))


def asked_keys(rows: NamedRows, rules: frozenset[str]) -> dict[str, Keys]:
    """Return by the name of each question the keys that residue rows ask under."""
    asked = {
        "run": rows.all_rows(),
        "name": rows.names(),
        "process": rows.processes(),
        "sampler": rows.samplers(),
        "stretch": rows.stretches(),
        "service": rows.services(),
        "place": rows.places(),
        "message": rows.messages(),
        "attempt": rows.attempts(),
    }
    if NO_TRACE_CONTEXT.rule in rules:
        asked |= _asked_of_sends(rows)
    if CALL_WITHOUT_REGION.rule in rules:
        asked["span"] = rows.listener_spans()
    if TRACE_OFF.rule in rules:
        asked["delivery"] = rows.deliveries()
    return asked


def _asked_of_sends(rows: NamedRows) -> dict[str, Keys]:
    """Return the questions of sends without a native record: for the ids behind their own, and for what took some."""
    is_sent = rows.is_publish & ~is_true(rows.columns["on_native"])
    has_span = is_sent & is_known(rows.columns["otlp.span_id"])
    over_ms, after = rows.number("otlp.end_ms").coalesce(rows.number("otlp.start_ms")), _drawn_behind(rows)
    steps = [NullableInts.constant(rows.rows, step) for step in range(1, NEXT_IDS + 1)]
    found = {
        **{f"next{step}": rows.ids(rows.sender, after + steps[step - 1]) for step in range(1, NEXT_IDS + 1)},
        **{f"idless{later}": rows.idless(over_ms, later) for later in (0, 1)},
        **{f"end{later}": rows.ends(over_ms, later) for later in (0, 1)},
    }
    named = {"producer": rows.producers("otlp"), "producer group": rows.producer_groups("otlp")}
    return {
        **{name: keys.where(has_span) for name, keys in found.items()},
        **{name: keys.where(is_sent) for name, keys in named.items()},
    }


def _drawn_behind(rows: NamedRows) -> NullableInts:
    """Return how many ids a send drew after this message's own: those of the rest of its batch.

    A batch of the agent's old convention lists its ids in the order they were drawn; a ``create`` span does not tell.
    """
    size, place = rows.number("otlp.batch_size"), rows.number("otlp.record_index")
    alone = NullableInts(np.zeros(rows.rows, np.int64), size.known & (size.values == 1))
    return alone.coalesce((size - NullableInts.constant(rows.rows, 1) - place).where(size.exceeds(1)))


def answer(verdicts: pa.Table, questions: Questions) -> Answers:
    """Return what ``verdicts`` answer.

    Args:
        verdicts: ``VERDICT`` with at least ``questions.columns``, settled rows and residue alike.
        questions: what is asked.
    """
    sieve = _Sieve(questions.keys)
    parts = [_NOTHING]
    for begin in range(0, len(verdicts), _ROWS_AT_ONCE):
        rows = NamedRows(flatten_sides(verdicts.slice(begin, _ROWS_AT_ONCE)))
        parts.append(_add_up(_told_keys(rows, questions.rules), _measures_of(rows, questions.rules), sieve))
    return merge_answers(parts)


def answer_traffic(events: pa.Table, questions: Questions) -> Answers:
    """Return what the spans answer in which trace messages were sent.

    The id of a trace message is one of its process's, and its span shows how long the spans of that process went on.

    Args:
        events: ``EVENT`` with at least ``TRAFFIC_COLUMNS``, the rows of scope ``TRACE_TRAFFIC``.
        questions: what is asked.
    """
    if not len(events):
        return _NOTHING
    columns = flatten_sides(events.select(TRAFFIC_COLUMNS))
    rows = NamedRows(columns)
    unknown = NullableInts.constant(rows.rows, None)
    drawn_ms = NullableInts(rows.sender.drawn_ms, rows.sender.known)
    told = [(rows.senders(), unknown), (rows.ids(rows.sender), drawn_ms)]
    over_ms = rows.number("end_ms").coalesce(rows.number("start_ms")).believable()
    measures = {name: np.zeros(rows.rows, np.int64) for name in COUNTS} | _no_times(rows.rows)
    return _add_up(told, {**measures, "otlp_ms": over_ms.filled(EARLIEST)}, _Sieve(questions.keys))


class _Sieve:
    """Finds the wanted ones among many keys: a table by their low bits turns most away."""

    def __init__(self, wanted: npt.NDArray[np.uint64]) -> None:
        self._wanted = wanted
        bits = min(max(len(wanted) * 8, 1 << 10).bit_length(), 24)
        self._mask = np.uint64((1 << bits) - 1)
        self._table = np.zeros(1 << bits, bool)
        self._table[wanted & self._mask] = True

    def find(self, keys: Keys) -> Ints:
        """Return the rows whose key is wanted."""
        rows = np.flatnonzero(keys.known & self._table[keys.values & self._mask])
        values = keys.values[rows]
        places = np.searchsorted(self._wanted, values)
        inside = places < len(self._wanted)
        inside[inside] = self._wanted[places[inside]] == values[inside]
        return rows[inside]


_Told = tuple[Keys, NullableInts]
"""Keys, and of each the moment that is collected under it."""


def _told_keys(rows: NamedRows, rules: frozenset[str]) -> Iterator[_Told]:
    """Yield the keys under which each verdict has its measures."""
    unknown = NullableInts.constant(rows.rows, None)
    says_sampled = is_known(rows.columns["otlp.sent_sampled"])
    yield rows.all_rows().where(equals(rows.columns["otlp.sent_sampled"], value=False)), unknown
    yield rows.samplers().where(rows.is_publish | says_sampled), unknown
    yield rows.stretches().where(rows.is_publish), unknown
    for keys in (rows.names(), rows.processes(), rows.services(), rows.places(), rows.messages(), rows.attempts()):
        yield keys, unknown
    if NO_TRACE_CONTEXT.rule in rules:
        yield from _told_of_sends(rows)
    if CALL_WITHOUT_REGION.rule in rules:
        yield rows.listener_spans(), unknown
    if TRACE_OFF.rule in rules:
        yield rows.deliveries().where(rows.is_consume), unknown


def _told_of_sends(rows: NamedRows) -> Iterator[_Told]:
    unknown = NullableInts.constant(rows.rows, None)
    for drawn in (rows.sender, rows.listener):
        yield rows.ids(drawn), NullableInts(drawn.drawn_ms, drawn.known)
    event_ms = rows.number("event_ms").believable()
    is_idless = rows.is_publish & ~is_known(rows.columns["msg_id"])
    yield rows.idless(rows.number("otlp.start_ms")).where(is_idless), event_ms
    on_native = is_true(rows.columns["on_native"])
    is_end = equals(rows.columns["kind"], Kind.TRANSACTION_END.value) & on_native
    yield rows.ends(event_ms).where(is_end), event_ms
    yield rows.producers("native", "otlp").where(on_native), unknown
    yield rows.producer_groups("native", "otlp").where(on_native & ~rows.has_host("native", "otlp")), unknown


def _measures_of(rows: NamedRows, rules: frozenset[str]) -> dict[str, Ints]:
    columns = rows.columns
    on_native, on_otlp = is_true(columns["on_native"]), is_true(columns["on_otlp"])
    said = columns["otlp.sent_sampled"]
    is_sampled, is_unsampled = is_true(said), equals(said, value=False)
    follows_send = rows.is_publish | _is_one(rows.number("otlp.batch_size"))
    batch_size = rows.number("native.batch_size")
    sent_alone = rows.is_publish & is_known(columns["native.start_ms"]) & (_is_one(batch_size) | ~batch_size.known)
    counts = {
        "keys": np.ones(rows.rows, bool),
        "native": on_native,
        "otlp": on_otlp,
        "following": on_otlp & follows_send,
        "sent": sent_alone,
        "unseen": sent_alone & ~on_otlp,
        "linked": is_sampled & ~follows_send,
        "sampled": is_sampled,
        "unsampled": is_unsampled,
        "native_deliveries": rows.is_consume & on_native,
    }
    times = {
        "first_ms": rows.number("event_ms").believable().filled(UNKNOWN_LEAST),
        "native_ms": _over_ms(rows, "native").filled(EARLIEST),
        "otlp_ms": _over_ms(rows, "otlp").filled(EARLIEST),
        "cost_ms": rows.number("native.cost_ms").filled(EARLIEST),
    }
    measures = {**_no_times(rows.rows), **times, **{name: of.astype(np.int64) for name, of in counts.items()}}
    if CALL_WITHOUT_REGION.rule in rules:
        measures["place_ms"] = rows.number("otlp.start_ms").filled(EARLIEST)
        measures["place_at"] = rows.number("otlp.record_index").filled(EARLIEST)
        measures["place_recorded"] = (~equals(columns["reason_detail"], BATCH_SENT)).astype(np.int64)
    return measures


def _is_one(numbers: NullableInts) -> Mask:
    is_one: Mask = numbers.known & (numbers.values == 1)
    return is_one


def _over_ms(rows: NamedRows, side: str) -> NullableInts:
    return rows.number(f"{side}.end_ms").coalesce(rows.number(f"{side}.start_ms")).believable()


def _no_times(rows: int) -> dict[str, Ints]:
    return {
        "first_ms": np.full(rows, UNKNOWN_LEAST),
        **{name: np.full(rows, EARLIEST) for name in ("native_ms", "otlp_ms", "cost_ms")},
        **{name: np.zeros(rows, np.int64) for name in ("place_ms", "place_at", "place_recorded")},
    }


def _add_up(told: Iterable[_Told], measures: Mapping[str, Ints], sieve: _Sieve) -> Answers:
    """Return the sums of ``measures`` under each wanted key."""
    parts = [_NOTHING]
    for keys, moments in told:
        rows = sieve.find(keys)
        if len(rows):
            parts.append(_part(keys, moments, measures, rows).grouped())
    return merge_answers(parts)


def _part(keys: Keys, moments: NullableInts, measures: Mapping[str, Ints], rows: Ints) -> Answers:
    has_moment = moments.known[rows]
    return Answers(
        keys=keys.values[rows],
        measures={**{name: of[rows] for name, of in measures.items()}, "moment_count": has_moment.astype(np.int64)},
        moments=moments.values[rows][has_moment],
        moment_starts=np.concatenate([[0], np.cumsum(has_moment)]),
    )


def _nothing() -> Answers:
    none: Any = np.zeros(0, np.int64)
    names = (*COUNTS, *_no_times(0), "moment_count")
    return Answers(np.zeros(0, np.uint64), dict.fromkeys(names, none), none, np.zeros(1, np.int64))


_NOTHING: Final = _nothing()
