"""The rows of a list of messages: the sends of each producer group, the deliveries to each consumer group."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from bridge.query.story import Outcome
from bridge.query.wanted import OutcomeFilter

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from bridge.query.story import Consume, MessageStory, Recall, Send, TransactionEnd
    from bridge.query.wanted import Wanted
    from otel_mqtrace.model import TraceBean

__all__ = ["CONSUMER", "PRODUCER", "Row", "fits", "rows_of"]

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


def rows_of(story: MessageStory, sought: Wanted) -> tuple[Row, ...]:
    """Return the rows of ``story`` that have the topic, group and outcome of ``sought``."""
    return tuple(row for row, topics in _rows(story) if _has(row, topics, sought))


def fits(story: MessageStory, sought: Wanted) -> bool:
    """Whether all that ``sought`` asks for holds for ``story``; ids and prefixes are matched when records are read."""
    if sought.key is not None and not any(sought.has_key(bean) for bean in _beans(story)):
        return False
    asks_rows = (sought.topic, sought.group, sought.outcome) != (None, None, None)
    return not asks_rows or bool(rows_of(story, sought))


def _has(row: Row, topics: Sequence[str], sought: Wanted) -> bool:
    if sought.topic is not None and sought.topic not in topics:
        return False
    if sought.group is not None and sought.group != row.group:
        return False
    if sought.outcome is OutcomeFilter.RETRIED:
        return row.attempts > 1
    return sought.outcome is None or row.outcome is _OUTCOMES[sought.outcome]


def _rows(story: MessageStory) -> Iterator[tuple[Row, Sequence[str]]]:
    """Yield each row with the topics that any of its attempts names, else those of the message."""
    by_producer: dict[tuple[str | None, str | None], list[Send]] = {}
    for send in story.sends:
        by_producer.setdefault((send.group, send.topic), []).append(send)
    for (group, _), sends in by_producer.items():
        yield _row(story, PRODUCER, group, sends, sends[-1].begin_ms)
    for consumer in story.groups:
        yield _row(story, CONSUMER, consumer.group, consumer.attempts, consumer.attempts[-1].from_ms)
    if not story.sends and not story.groups:
        others: tuple[TransactionEnd | Recall, ...] = (*story.transaction_ends, *story.recalls)
        group = next((event.group for event in others if event.group), None)
        yield _row(story, PRODUCER, group, (), next((event.at_ms for event in others), None))


def _row(
    story: MessageStory, role: str, group: str | None, attempts: Sequence[Send | Consume], time_ms: int | None
) -> tuple[Row, Sequence[str]]:
    topics = [attempt.topic for attempt in attempts if attempt.topic] or list(story.topics)
    row = Row(
        time_ms=time_ms,
        msg_id=story.msg_id,
        topic=topics[-1] if topics else None,
        group=group,
        role=role,
        outcome=attempts[-1].outcome if attempts else Outcome.UNKNOWN,
        attempts=len(attempts),
        failed=sum(attempt.outcome is Outcome.FAILED for attempt in attempts),
    )
    return row, topics


def _beans(story: MessageStory) -> Iterable[TraceBean]:
    events: list[Send | TransactionEnd | Recall | Consume] = [*story.sends, *story.transaction_ends, *story.recalls]
    events += [attempt for group in story.groups for attempt in group.attempts]
    return (sighting.bean for event in events for sighting in event.evidence)
