"""Find messages in an archive: which ones first, then every record of those that are shown."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from typing import TYPE_CHECKING, Final

from bridge.addresses import parse_instant_ms
from bridge.page.wording import plural
from bridge.query.matching import MOST_BAD, Evidence, OutcomeFilter, Query, gather, is_wanted
from bridge.query.timeline import Outcome, build_timeline
from otel_mqtrace._errors import UsageError
from otel_mqtrace.wire.native import absent, explode

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

    from bridge.codec.files import BodyDecoder
    from bridge.query.matching import BadSighting
    from bridge.query.timeline import MessageTimeline, Step
    from otel_mqtrace.landing import LandedMessage

PRODUCER: Final = "producer"
CONSUMER: Final = "consumer"
_OUTCOMES: Final = {
    OutcomeFilter.OK: Outcome.SUCCESS,
    OutcomeFilter.FAILED: Outcome.FAILED,
    OutcomeFilter.UNFINISHED: Outcome.UNFINISHED,
    OutcomeFilter.UNKNOWN: Outcome.UNKNOWN,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One message and one group.

    ``time_ms`` is when the last attempt began, ``outcome`` how it ended; ``failed`` of the ``attempts`` did not
    succeed. ``role`` is ``producer`` or ``consumer``.
    """

    time_ms: int | None
    msg_id: str
    topic: str | None
    group: str | None
    role: str
    outcome: Outcome
    attempts: int
    failed: int


def rows_of(story: MessageTimeline, query: Query) -> tuple[Row, ...]:
    """Return the rows of ``story`` that have the topic, group and outcome of ``query``."""
    return tuple(row for row, topics in _rows(story) if _has(row, topics, query))


def fits(story: MessageTimeline, query: Query) -> bool:
    """Return whether ``story`` meets ``query``; ids and prefixes are matched when records are read."""
    if query.key is not None:
        steps = [*story.sends, *story.transaction_ends, *story.recalls]
        steps += [attempt for group in story.groups for attempt in group.attempts]
        if not any(query.has_key(sighting.bean) for step in steps for sighting in step.evidence):
            return False
    return bool(rows_of(story, query))


def _has(row: Row, topics: Sequence[str], query: Query) -> bool:
    if not (is_wanted(query.group, row.group) and any(is_wanted(query.topic, each) for each in topics or (None,))):
        return False
    if query.outcome is OutcomeFilter.RETRIED:
        return row.attempts > 1
    return query.outcome is None or row.outcome is _OUTCOMES[query.outcome]


def _rows(story: MessageTimeline) -> Iterator[tuple[Row, Sequence[str]]]:
    """Yield each row with the topics that any of its attempts names, else those of the message."""
    by_producer: dict[tuple[str | None, str | None], list[Step]] = {}
    for send in story.sends:
        by_producer.setdefault((send.group, send.topic), []).append(send)
    for (group, _), sends in by_producer.items():
        yield _row(story, PRODUCER, group, sends, sends[-1].begin_ms)
    for consumer in story.groups:
        yield _row(story, CONSUMER, consumer.group, consumer.attempts, consumer.attempts[-1].from_ms)
    sent_by = {send.group for send in story.sends}
    without_send: dict[str | None, int | None] = {}
    for event in (*story.transaction_ends, *story.recalls):
        if event.group not in sent_by:
            without_send.setdefault(event.group, event.at_ms)
    is_unknown = not (story.sends or story.groups or any(without_send))
    for group, at_ms in without_send.items():
        if group or is_unknown:
            yield _row(story, PRODUCER, group, (), at_ms)


def _row(
    story: MessageTimeline, role: str, group: str | None, attempts: Sequence[Step], time_ms: int | None
) -> tuple[Row, Sequence[str]]:
    named = [attempt.topic for attempt in attempts if attempt.topic]
    topics = named or story.topics
    row = Row(
        time_ms=time_ms,
        msg_id=story.msg_id,
        # of a delivery that names none: where it was first sent, not a retry topic that another group may have used
        topic=named[-1] if named else next(iter(topics), None),
        group=group,
        role=role,
        outcome=attempts[-1].outcome if attempts else Outcome.UNKNOWN,
        attempts=len(attempts),
        failed=sum(attempt.outcome is Outcome.FAILED for attempt in attempts),
    )
    return row, topics


MOST_EXAMINED: Final = 50_000
"""Messages whose records are held at a time to find their outcome; about 200 MB. Older ones are a remark."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Searched:
    """The extent of the search: trace messages read or offered, their bytes, the range of their arrivals, and warnings.

    ``remarks`` name what could not be read.
    """

    where: str
    messages: int = 0
    body_bytes: int = 0
    first_arrival_ms: int | None = None
    last_arrival_ms: int | None = None
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Answer:
    """The stories of one page, oldest message first, and the extent of the search.

    ``left_off`` messages are older than those of the page, of ``total`` in ``pages`` pages. Page 1 has the newest.
    ``query`` is the request.
    """

    stories: tuple[MessageTimeline, ...]
    left_off: int
    searched: Searched
    query: Query = field(default_factory=Query)
    page: int = 1
    pages: int = 1
    total: int = 0
    link_template: str | None = None


@dataclass(slots=True)
class _Matches:
    """Message ids, oldest first; what was found of them; remarks on what was not examined."""

    msg_ids: list[str]
    evidence: Evidence
    notes: list[str] = field(default_factory=list)


def search(archive: Archive, query: Query, decoder: BodyDecoder, *, limit: int, page: int = 1) -> Answer:
    """Return the stories of the messages that ``query`` means: the ``limit`` newest, or those of a later page."""
    archive.charset = decoder.charset
    matches = _by_text(archive, query, decoder) if query.is_indexed else _by_field(archive, query, decoder)
    if query.needs_story and matches.msg_ids:
        matches = _examine(archive, matches, query, decoder)
    msg_ids = matches.msg_ids
    older = max(len(msg_ids) - limit * page, 0)
    kept = msg_ids[older : max(len(msg_ids) - limit * (page - 1), 0)]
    evidence = matches.evidence
    named = _list_searchable(kept)
    if named and not (query.msg_ids and named <= query.texts):  # a search for ids has found every record
        further = gather(archive.find_messages(named), Query(named), decoder)
        evidence.by_msg_id.update(further.by_msg_id)
        evidence.bad = {**evidence.bad, **further.bad}  # a story needs the ids that they name, not the key
        evidence.bad_records = max(evidence.bad_records, further.bad_records)
    if evidence.bad_records > MOST_BAD:
        count = f"{evidence.bad_records:,} bad records lie beside what was found"
        matches.notes.append(f"{count}; the first {MOST_BAD:,} are kept")
    known = (msg_id for msg_id in kept if msg_id in evidence.by_msg_id)  # retention may have removed it between passes
    bad = [evidence.bad[rank] for rank in sorted(evidence.bad)]
    stories = tuple(build_timeline(msg_id, evidence.by_msg_id[msg_id], bad) for msg_id in known)
    searched = archive.searched
    remarks = [*searched.remarks, *matches.notes]
    naming = [one for one in bad if one.names]
    if naming and not msg_ids:
        remarks.insert(0, _naming_remark(naming, query, archive.decoder))
    pages = max(math.ceil(len(msg_ids) / limit), 1)
    searched = replace(searched, remarks=tuple(remarks))
    return Answer(stories, older, searched, query, page=page, pages=pages, total=len(msg_ids))


def _list_searchable(msg_ids: Iterable[str]) -> frozenset[str]:
    """Return the ids that can be searched for: a placeholder is none."""
    return frozenset(msg_id for msg_id in msg_ids if not absent(msg_id))


def _naming_remark(naming: Sequence[BadSighting], query: Query, decoder: str) -> str:
    verb, what = "has" if len(naming) == 1 else "have", "id" if query.msg_ids else "text"  # a number may equal a key
    why = ", ".join(filter(None, (naming[0].field_name, naming[0].reason)))
    return f"{plural(len(naming), 'bad record')} {verb} that {what}, which {decoder} shows: {why}"


def _by_text(archive: Archive, query: Query, decoder: BodyDecoder) -> _Matches:
    evidence = gather(archive.find_messages(query.texts), query, decoder)
    found = [
        msg_id
        for msg_id in _oldest_first(evidence)
        if query.key is None or any(query.has_key(sighting.bean) for sighting in evidence.by_msg_id[msg_id])
    ]
    return _Matches(found, evidence)


def _by_field(archive: Archive, query: Query, decoder: BodyDecoder) -> _Matches:
    """Return the messages of a prefix, topic or group, of which only the ids are kept: there may be very many."""
    first_ms: dict[str, float] = {}
    nameless = bad = 0
    for message in archive.find_messages(query.texts):
        decoded = decoder.decode(message.body)
        bad += len(decoded.errors)
        for trace_ctx in chain.from_iterable(map(explode, decoded.contexts)):
            msg_id = trace_ctx.beans[0].msg_id
            if not query.matches_text(trace_ctx):
                continue
            if msg_id is None or absent(msg_id):
                nameless += 1
                continue
            stamp_ms = math.inf if trace_ctx.timestamp_ms is None else trace_ctx.timestamp_ms
            first_ms[msg_id] = min(first_ms.get(msg_id, math.inf), stamp_ms)
    ordered = sorted(
        first_ms, key=lambda msg_id: (first_ms[msg_id] if first_ms[msg_id] < math.inf else -math.inf, msg_id)
    )
    matches = _Matches(ordered, Evidence())
    if nameless:
        nouns = "matching record without a message id is", "matching records without a message id are"
        matches.notes.append(f"{plural(nameless, *nouns)} not listed; --key finds such records")
    if bad:
        where = "" if "" in query.texts else " of the trace messages that contain the text"
        matches.notes.append(f"{plural(bad, 'bad record')}{where} cannot be searched; {archive.decoder} shows them")
    return matches


def _examine(archive: Archive, matches: _Matches, query: Query, decoder: BodyDecoder) -> _Matches:
    """Return those of ``matches`` that meet the whole query, of the newest ``MOST_EXAMINED``."""
    kept = matches.msg_ids[-MOST_EXAMINED:]
    by_msg_id = dict(matches.evidence.by_msg_id)
    if named := _list_searchable(kept):
        by_msg_id.update(gather(archive.find_messages(named), Query(named), decoder).by_msg_id)
    if len(kept) < len(matches.msg_ids):
        matches.notes.append(
            f"only the newest {len(kept):,} of {len(matches.msg_ids):,} messages were examined: "
            "narrow --begin and --end for older ones"
        )
    fitting = [
        msg_id for msg_id in kept if msg_id in by_msg_id and fits(build_timeline(msg_id, by_msg_id[msg_id]), query)
    ]
    return replace(matches, msg_ids=fitting)


def _oldest_first(evidence: Evidence) -> list[str]:
    def first_ms(msg_id: str) -> tuple[float, str]:
        stamps = [sighting.trace_ctx.timestamp_ms for sighting in evidence.by_msg_id[msg_id]]
        return (min((stamp for stamp in stamps if stamp is not None), default=-math.inf), msg_id)

    return sorted(evidence.by_msg_id, key=first_ms)


@dataclass(frozen=True, slots=True)
class ArrivalRange:
    """From ``begin_ms`` to ``end_ms``, both included, in epoch milliseconds; ``None`` is open."""

    begin_ms: int | None = None
    end_ms: int | None = None

    def __contains__(self, instant_ms: int) -> bool:
        return self.overlaps(instant_ms, instant_ms)

    def overlaps(self, first_ms: int, last_ms: int) -> bool:
        """Return whether any instant from ``first_ms`` to ``last_ms`` is inside."""
        return (self.begin_ms is None or last_ms >= self.begin_ms) and (self.end_ms is None or first_ms <= self.end_ms)


ALWAYS: Final = ArrivalRange()


def arrival_range(begin: str | None, end: str | None, *, now_ms: int) -> ArrivalRange:
    """Return the range that ``--begin`` and ``--end`` name.

    Raises:
        UsageError: a text is not a time, or the range ends before it begins.
    """
    begin_ms = None if begin is None else parse_instant_ms(begin, name="--begin", now_ms=now_ms)
    end_ms = None if end is None else parse_instant_ms(end, name="--end", now_ms=now_ms)
    if begin_ms is not None and end_ms is not None and end_ms < begin_ms:
        raise UsageError(f"--end {end} is before --begin {begin}: exchange them")
    return ArrivalRange(begin_ms, end_ms)


MOST_REMARKS: Final = 20
"""Limit of the remarks on what could not be read; the number of further ones is added."""


class Archive(ABC):
    """Trace messages that lie somewhere and can be read again, the counts of the last pass, and remarks on all passes.

    ``where`` is the archive's name for people; ``on_progress`` gets the bytes or offsets read and their total now and
    then. :func:`search` sets ``charset``, that of the bodies. ``decoder`` names the command that shows bad records.
    """

    charset = "utf-8"
    decoder = "mqtrace decode of a landing"  # it reads files, no topics

    def __init__(
        self, where: str, *, arrivals: ArrivalRange = ALWAYS, on_progress: Callable[[int, int], None] | None = None
    ) -> None:
        self._where = where
        self._arrivals = arrivals
        self._on_progress = on_progress or (lambda _done, _all: None)
        self._remarks: dict[str, None] = {}  # in order, each once: two passes may meet the same obstacle
        self._begin(0)

    @abstractmethod
    def find_messages(self, texts: Collection[str]) -> Iterator[LandedMessage]:
        """Yield at least every trace message that may contain one of ``texts``, in any order."""

    def close(self) -> None:  # noqa: B027 - not every archive holds a connection
        """Close the connections, if there are any."""

    def _begin(self, whole: int) -> None:
        self._done, self._whole = 0, whole
        self._seen_messages = self._body_bytes = 0
        self._arrivals_ms: tuple[int, ...] = ()  # the first and the last

    def _count_message(self, message: LandedMessage) -> None:
        self._seen_messages += 1
        self._body_bytes += len(message.body)
        if message.arrival_ms:  # some files have no arrival times
            known_ms = (*self._arrivals_ms, message.arrival_ms)
            self._arrivals_ms = min(known_ms), max(known_ms)

    def _advance(self, units: int) -> None:
        self._done += units
        self._on_progress(min(self._done, self._whole), self._whole)

    def _remark(self, text: str) -> None:
        self._remarks[text] = None

    @property
    def searched(self) -> Searched:
        """What the last pass read, and what could not be read."""
        more = len(self._remarks) - MOST_REMARKS
        return Searched(
            where=self._where,
            messages=self._seen_messages,
            body_bytes=self._body_bytes,
            first_arrival_ms=min(self._arrivals_ms, default=None),
            last_arrival_ms=max(self._arrivals_ms, default=None),
            remarks=(*islice(self._remarks, MOST_REMARKS), *([f"and {more} more"] if more > 0 else [])),
        )
