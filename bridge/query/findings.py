"""Find what a reader should look at in a message timeline, and summarise it in one sentence.

Each rule is a function from the story to a finding's text, or ``None``; ``_RULES`` lists them with their stable codes,
in the order of a message's life. No trace is complete: texts call missing events missing "in the trace".
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from bridge.page.wording import listed, plural, visible
from bridge.query.timeline import Finding, Half, Outcome
from otel_mqtrace.model import ContextCode, MessageType, TransactionState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from bridge.query.timeline import Consume, GroupTimeline, MessageTimeline, Send


def findings(story: MessageTimeline) -> tuple[Finding, ...]:
    """Return everything worth knowing about ``story``, in the order of a message's life."""
    found = ((code, problem, rule(story)) for code, problem, rule in _RULES)
    return tuple(Finding(code, text, problem) for code, problem, text in found if text)


def in_one_sentence(story: MessageTimeline) -> str:
    """Return how the message fared: its sends, its transaction, its consumers."""
    parts = [_sent(story), *_transaction(story), *(["recalled"] if _recalled(story) else []), _consumed(story)]
    sentence = "; ".join(part for part in parts if part)
    return f"{sentence[0].upper()}{sentence[1:]}."


def _sent(story: MessageTimeline) -> str:
    if not story.sends:
        return "no send in the trace"
    good = _stored(story)
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


def _transaction(story: MessageTimeline) -> list[str]:
    if not story.transaction_ends:
        return []
    checks = sum(end.from_check is True for end in story.transaction_ends)
    after = f" after {plural(checks, 'check')}" if checks else ""
    return [f"{_STATE_WORDS[story.transaction_ends[-1].state]}{after}"]


_STATE_WORDS: Final[dict[TransactionState | None, str]] = {
    TransactionState.COMMIT_MESSAGE: "committed",
    TransactionState.ROLLBACK_MESSAGE: "rolled back",
    TransactionState.UNKNOW: "left undecided",
    None: "ended in a state the trace does not contain",
}


_NOT_CONSUMED: Final = {
    Outcome.FAILED: "failed",
    Outcome.UNFINISHED: "unfinished",
    Outcome.UNKNOWN: "outcome unknown",
}


def _consumed(story: MessageTimeline) -> str:
    if not story.groups:
        return "no consume in the trace"
    good = [group for group in story.groups if group.outcome is Outcome.SUCCESS]
    again = sum(len(group.attempts) - 1 for group in story.groups)
    repeated = f", {plural(again, 'redelivery', 'redeliveries')}" if again else ""
    if not good:
        counts = Counter(_NOT_CONSUMED[group.outcome] for group in story.groups)
        how = next(iter(counts)) if len(story.groups) == 1 else ", ".join(f"{n} {word}" for word, n in counts.items())
        return f"delivered to {plural(len(story.groups), 'group')}: {how}{repeated}"
    of = "" if len(good) == len(story.groups) else f" of {len(story.groups)}"
    noun = "group" if len(story.groups) == 1 or (len(good) == 1 and not of) else "groups"
    return f"consumed by {len(good)}{of} {noun}{repeated}"


def _no_send(story: MessageTimeline) -> str | None:
    if story.sends:
        return None
    if any(story.msg_id in bad.names for bad in story.bad):
        return "No send can be read in what was searched; a bad record with this message's id may be one."
    return (
        "No send is in what was searched: it was one-way, its producer is not traced, "
        "its record was lost or lies outside of the range."
    )


def _send_failed(story: MessageTimeline) -> str | None:
    bad = [send for send in story.sends if send.outcome is Outcome.FAILED]
    if not bad:
        return None
    if len(bad) == len(story.sends):
        return f"No send attempt succeeded ({plural(len(bad), 'attempt')})."
    return f"{len(bad)} of {len(story.sends)} send attempts did not succeed."


def _stored_again(story: MessageTimeline) -> str | None:
    """Report a topic that has it more than once; a copy on another topic, such as one for retries, is not a repeat."""
    by_topic: dict[str | None, dict[tuple[str, str | None], None]] = {}
    for send in _stored(story):
        if send.offset_msg_id:
            by_topic.setdefault(send.topic, {})[send.offset_msg_id, send.store_host] = None
    places = [place for stored in by_topic.values() if len(stored) > 1 for place, _ in stored]
    if not places:
        return None
    return f"It was stored {len(places)} times ({_names(places)}): consumers may see it again."


def _undecided(story: MessageTimeline) -> str | None:
    if not _is_half(story):
        return None
    if story.transaction_ends and story.transaction_ends[-1].state is not TransactionState.UNKNOW:
        return None
    if story.groups:
        return "It was consumed, so its transaction was committed, and that commit is not in the trace."
    if not story.transaction_ends:
        return "A half message whose transaction's end is not in the trace: consumers do not see it before a commit."
    return "The transaction is undecided: the broker goes on asking its producer, and consumers do not see it."


def _rolled_back(story: MessageTimeline) -> str | None:
    return "The transaction was rolled back: no consumer is meant to see it." if _is_rolled_back(story) else None


def _consumed_all_the_same(story: MessageTimeline) -> str | None:
    if not story.groups:
        return None
    why = "rolled back" if _is_rolled_back(story) else "recalled" if _recalled(story) else None
    return f"It was consumed although it was {why}." if why else None


def _not_consumed(story: MessageTimeline) -> str | None:
    withheld = _is_rolled_back(story) or _undecided(story) or _recalled(story)
    if story.groups or withheld or (story.sends and not _stored(story)):
        return None
    return "No consumer group in what was searched: no group reads it, none is traced, or it is still waiting."


def _consumed_early(story: MessageTimeline) -> str | None:
    begins = [send.begin_ms for send in story.sends if send.begin_ms is not None]
    starts = [one.from_ms for one in _attempts(story) if one.from_ms is not None]
    if not begins or not starts or min(starts) >= min(begins):
        return None
    return f"It was consumed {min(begins) - min(starts)} ms before it was sent: the clocks of the two hosts disagree."


def _group_failed(story: MessageTimeline) -> str | None:
    bad = [group for group in story.groups if group.outcome is Outcome.FAILED]
    return f"The last delivery to {_group_names(bad)} failed." if bad else None


def _unfinished(story: MessageTimeline) -> str | None:
    bad = [group for group in story.groups if group.attempts[-1].missing is Half.END]
    if not bad:
        return None
    return (
        f"{_group_names(bad)} began and no end is in the trace: still in progress, "
        "its process died, or the record was lost."
    )


def _abandoned(story: MessageTimeline) -> str | None:
    """Report deliveries without an end that a later one followed: those are over."""
    bad = [group for group in story.groups if any(one.missing is Half.END for one in group.attempts[:-1])]
    if not bad:
        return None
    why = "its process died, or the record was lost"
    return f"A delivery to {_group_names(bad)} has no end, and another one followed: {why}."


def _begin_missing(story: MessageTimeline) -> str | None:
    missing = sum(one.missing is Half.BEGIN for one in _attempts(story))
    return f"The begin of {plural(missing, 'consume')} is not in the trace." if missing else None


def _timed_out(story: MessageTimeline) -> str | None:
    late = sum(one.context_code is ContextCode.TIME_OUT for one in _attempts(story))
    if not late:
        return None
    return f"{plural(late, 'consume')} took longer than the consumer's time-out (TIME_OUT), whatever it returned."


def _consumed_again(story: MessageTimeline) -> str | None:
    twice = [group for group in story.groups if sum(one.outcome is Outcome.SUCCESS for one in group.attempts) > 1]
    return f"{_group_names(twice)} consumed it successfully more than once." if twice else None


def _bad_records(story: MessageTimeline) -> str | None:
    if not story.bad:
        return None
    whose = "its" if len(story.bad) == 1 else "their"
    with_id = sum(story.msg_id in bad.names for bad in story.bad)
    which = f"beside this message's{f', {with_id:,} with its id' if with_id else ''}"
    return f"{plural(len(story.bad), 'bad record')} {which}: {whose} content is lost."


_Rule = tuple[str, bool, "Callable[[MessageTimeline], str | None]"]
_RULES: Final[tuple[_Rule, ...]] = (
    ("no_send", False, _no_send),
    ("send_failed", True, _send_failed),
    ("stored_again", True, _stored_again),
    ("transaction_undecided", True, _undecided),
    ("rolled_back", False, _rolled_back),
    ("consumed_all_the_same", True, _consumed_all_the_same),
    ("not_consumed", False, _not_consumed),
    ("consumed_early", False, _consumed_early),
    ("group_failed", True, _group_failed),
    ("unfinished", True, _unfinished),
    ("abandoned", True, _abandoned),
    ("begin_missing", False, _begin_missing),
    ("timed_out", True, _timed_out),
    ("consumed_again", True, _consumed_again),
    ("bad_records", True, _bad_records),
)
FINDING_CODES: Final = tuple(code for code, _, _ in _RULES)
"""Every code that a finding may have."""


def _stored(story: MessageTimeline) -> list[Send]:
    return [send for send in story.sends if send.outcome is not Outcome.FAILED]


def _attempts(story: MessageTimeline) -> list[Consume]:
    return [one for group in story.groups for one in group.attempts]


def _is_half(story: MessageTimeline) -> bool:
    return any(send.msg_type is MessageType.TRANS_HALF for send in story.sends)


def _is_rolled_back(story: MessageTimeline) -> bool:
    return bool(story.transaction_ends) and story.transaction_ends[-1].state is TransactionState.ROLLBACK_MESSAGE


def _recalled(story: MessageTimeline) -> bool:
    return any(recall.outcome is Outcome.SUCCESS for recall in story.recalls)


def _group_names(groups: list[GroupTimeline]) -> str:
    return _names(group.group or "a group that no record names" for group in groups)


def _names(texts: Iterable[str]) -> str:
    return listed([visible(text, limit=80) for text in texts])
