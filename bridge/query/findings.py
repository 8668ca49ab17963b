"""Find what a reader should look at in a message timeline, and summarise it in one sentence.

Each stage of a message's life yields the codes and texts of its findings, in the order of ``FINDING_CODES``. No trace
is complete: texts call missing events missing "in the trace".
"""

from __future__ import annotations

from collections import Counter
from itertools import chain
from typing import TYPE_CHECKING, Final

from bridge.page.wording import UNKNOWN_GROUP, join_words, plural, visible
from bridge.query.timeline import STATES, Finding, Half, Outcome
from otel_mqtrace.model import ContextCode, MessageType, TransactionState

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from bridge.query.timeline import GroupTimeline, MessageTimeline, Step

    Found = Iterator[tuple[str, str]]

_IS_PROBLEM: Final = {
    "no_send": False,
    "send_failed": True,
    "stored_again": True,
    "transaction_undecided": True,
    "rolled_back": False,
    "consumed_all_the_same": True,
    "not_consumed": False,
    "consumed_early": False,
    "group_failed": True,
    "unfinished": True,
    "abandoned": True,
    "begin_missing": False,
    "timed_out": True,
    "consumed_again": True,
    "bad_records": True,
}
FINDING_CODES: Final = tuple(_IS_PROBLEM)
"""Every code that a finding may have."""


def findings(story: MessageTimeline) -> tuple[Finding, ...]:
    """Return everything worth knowing about ``story``, in the order of a message's life."""
    found = chain(_of_sends(story), _of_transaction(story), _of_groups(story), _of_attempts(story), _of_bad(story))
    return tuple(Finding(code, text, _IS_PROBLEM[code]) for code, text in found)


def summarise(story: MessageTimeline) -> str:
    """Return how the message fared: its sends, its transaction, its consumers."""
    parts = (_sent(story), _transaction(story), "recalled" if _recalled(story) else "", _consumed(story))
    sentence = "; ".join(filter(None, parts))
    return f"{sentence[0].upper()}{sentence[1:]}."


def describe_bad(story: MessageTimeline) -> str:
    """Return how many bad records lie beside the message's, and how many of them have its id."""
    with_id = sum(story.msg_id in bad.names for bad in story.bad)
    its_own = f", {with_id:,} with its id" if with_id else ""
    return f"{plural(len(story.bad), 'bad record')} beside this message's{its_own}"


def _sent(story: MessageTimeline) -> str:
    if not story.sends:
        return "no send in the trace"
    good = [send for send in story.sends if send.outcome is not Outcome.FAILED]
    if not good:
        return f"{plural(len(story.sends), 'send attempt')}, none successful"
    topics = {send.topic for send in good}
    if len(topics) > 1:
        bad = len(story.sends) - len(good)
        failed = f", {plural(bad, 'failed attempt')}" if bad else ""
        return f"sent to {len(topics)} topics{failed}"
    if len(story.sends) == 1:
        return "sent as a half message" if _is_half(story) else "sent once"
    return f"{plural(len(story.sends), 'send attempt')}, {len(good)} successful"


def _transaction(story: MessageTimeline) -> str:
    if not story.transaction_ends:
        return ""
    checks = sum(end.from_check is True for end in story.transaction_ends)
    after = f" after {plural(checks, 'check')}" if checks else ""
    return f"transaction {STATES[story.transaction_ends[-1].state][0]}{after}"


def _consumed(story: MessageTimeline) -> str:
    if not story.groups:
        return "no consume in the trace"
    good = [group for group in story.groups if group.outcome is Outcome.SUCCESS]
    again = sum(len(group.attempts) - 1 for group in story.groups)
    repeated = f", {plural(again, 'redelivery', 'redeliveries')}" if again else ""
    if not good:
        counts = Counter(group.outcome.value for group in story.groups)
        how = next(iter(counts)) if len(story.groups) == 1 else ", ".join(f"{n} {word}" for word, n in counts.items())
        return f"delivered to {plural(len(story.groups), 'group')}: {how}{repeated}"
    of = "" if len(good) == len(story.groups) else f" of {len(story.groups)}"
    noun = "group" if len(story.groups) == 1 or (len(good) == 1 and not of) else "groups"
    return f"consumed by {len(good)}{of} {noun}{repeated}"


def _of_sends(story: MessageTimeline) -> Found:
    sends, failed = len(story.sends), sum(send.outcome is Outcome.FAILED for send in story.sends)
    if not sends and any(story.msg_id in bad.names for bad in story.bad):
        yield "no_send", "No send can be read in what was searched; a bad record with this message's id may be one."
    elif not sends:
        why = "it was one-way, its producer is not traced, its record was lost or lies outside of the range."
        yield "no_send", f"No send is in what was searched: {why}"
    elif failed == sends:
        yield "send_failed", f"No send attempt succeeded ({plural(failed, 'attempt')})."
    elif failed:
        yield "send_failed", f"{failed} of {sends} send attempts did not succeed."
    # A copy on another topic, such as one for retries, is not a repeat.
    by_topic: dict[str | None, dict[tuple[str, str | None], None]] = {}
    for send in _stored(story):
        if send.offset_msg_id:
            by_topic.setdefault(send.topic, {})[send.offset_msg_id, send.store_host] = None
    places = [place for stored in by_topic.values() if len(stored) > 1 for place, _ in stored]
    if places:
        yield "stored_again", f"It was stored {len(places)} times ({_names(places)}): consumers may see it again."


def _of_transaction(story: MessageTimeline) -> Found:
    if _is_undecided(story):
        why = "The transaction is undecided: the broker goes on asking its producer, and consumers do not see it."
        if story.groups:
            why = "It was consumed, so its transaction was committed, and that commit is not in the trace."
        elif not story.transaction_ends:
            why = "A half message whose transaction's end is not in the trace: consumers do not see it before a commit."
        yield "transaction_undecided", why
    if _is_rolled_back(story):
        yield "rolled_back", "The transaction was rolled back: no consumer is meant to see it."


def _of_groups(story: MessageTimeline) -> Found:
    withdrawn = "rolled back" if _is_rolled_back(story) else "recalled" if _recalled(story) else None
    if story.groups and withdrawn:
        yield "consumed_all_the_same", f"It was consumed although it was {withdrawn}."
    is_expected = not (withdrawn or _is_undecided(story)) and (not story.sends or _stored(story))
    if not story.groups and is_expected:
        why = "no group reads it, none is traced, or it is still waiting."
        yield "not_consumed", f"No consumer group in what was searched: {why}"


def _of_attempts(story: MessageTimeline) -> Found:
    attempts = [one for group in story.groups for one in group.attempts]
    sent_ms = min((send.begin_ms for send in story.sends if send.begin_ms is not None), default=None)
    used_ms = min((one.from_ms for one in attempts if one.from_ms is not None), default=None)
    if sent_ms is not None and used_ms is not None and used_ms < sent_ms:
        why = "the clocks of the two hosts disagree."
        yield "consumed_early", f"It was consumed {sent_ms - used_ms} ms before it was sent: {why}"
    if failed := [group for group in story.groups if group.outcome is Outcome.FAILED]:
        yield "group_failed", f"The last delivery to {_group_names(failed)} failed."
    lost = "its process died, or the record was lost"
    if open_ended := [group for group in story.groups if group.attempts[-1].missing is Half.END]:
        names = _group_names(open_ended)
        yield "unfinished", f"{names} began and no end is in the trace: still in progress, {lost}."
    # Deliveries without an end that a later one followed are over.
    if followed := [group for group in story.groups if any(one.missing is Half.END for one in group.attempts[:-1])]:
        names = _group_names(followed)
        yield "abandoned", f"A delivery to {names} has no end, and another one followed: {lost}."
    if missing := sum(one.missing is Half.BEGIN for one in attempts):
        yield "begin_missing", f"The begin of {plural(missing, 'consume')} is not in the trace."
    if late := sum(one.context_code is ContextCode.TIME_OUT for one in attempts):
        why = "took longer than the consumer's time-out (TIME_OUT), whatever it returned."
        yield "timed_out", f"{plural(late, 'consume')} {why}"
    if twice := [group for group in story.groups if sum(one.outcome is Outcome.SUCCESS for one in group.attempts) > 1]:
        yield "consumed_again", f"{_group_names(twice)} consumed it successfully more than once."


def _of_bad(story: MessageTimeline) -> Found:
    if story.bad:
        yield "bad_records", f"{describe_bad(story)}: {'its' if len(story.bad) == 1 else 'their'} content is lost."


def _stored(story: MessageTimeline) -> list[Step]:
    """Return the sends after which a broker has the message, also those that failed on a slave or its disk only."""
    return [send for send in story.sends if send.outcome is not Outcome.FAILED or send.offset_msg_id]


def _is_half(story: MessageTimeline) -> bool:
    return any(send.msg_type is MessageType.TRANS_HALF for send in story.sends)


def _is_undecided(story: MessageTimeline) -> bool:
    """Return whether it is a half message without a commit or a rollback in the trace."""
    ends = story.transaction_ends
    return _is_half(story) and not (ends and ends[-1].state is not TransactionState.UNKNOW)


def _is_rolled_back(story: MessageTimeline) -> bool:
    return bool(story.transaction_ends) and story.transaction_ends[-1].state is TransactionState.ROLLBACK_MESSAGE


def _recalled(story: MessageTimeline) -> bool:
    return any(recall.outcome is Outcome.SUCCESS for recall in story.recalls)


def _group_names(groups: list[GroupTimeline]) -> str:
    return _names(group.group or UNKNOWN_GROUP for group in groups)


def _names(texts: Iterable[str]) -> str:
    return join_words([visible(text, limit=80) for text in texts])
