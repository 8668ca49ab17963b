"""This module knows how a message is found: where the text is mentioned first, then all that its id is mentioned in.

One pass is enough for a unique id. A key or the id of a place leads to unique ids, and a second pass reads what only
those are in: a recall carries no key, a consume no place.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from bridge.query.evidence import MOST_BAD, gather
from bridge.query.telling import tell
from bridge.query.wanted import Wanted
from otel_mqtrace.wire.native import absent

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from bridge.codec.reading import Reading
    from bridge.query.evidence import Evidence
    from bridge.query.story import MessageStory
    from otel_mqtrace.landing.layout import LandedMessage

__all__ = ["Answer", "Archive", "Searched", "search"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Searched:
    """What was looked through: trace messages read or offered, their bytes, the range of their arrivals, and warnings.

    ``remarks`` say what could not be read or looked at.
    """

    where: str
    messages: int = 0
    body_bytes: int = 0
    first_arrival_ms: int | None = None
    last_arrival_ms: int | None = None
    remarks: tuple[str, ...] = ()


class Archive(Protocol):
    """Trace messages that lie somewhere and can be read again."""

    def mentioning(self, texts: Collection[str]) -> Iterator[LandedMessage]:
        """Yield at least every trace message that can speak of one of ``texts``, in any order."""
        ...

    @property
    def searched(self) -> Searched:
        """What the last pass read."""
        ...


@dataclass(frozen=True, slots=True)
class Answer:
    """The stories, oldest message first; ``left_off`` messages more were found than asked for; what was searched."""

    stories: tuple[MessageStory, ...]
    left_off: int
    searched: Searched


def search(archive: Archive, sought: Wanted, how: Reading, *, limit: int) -> Answer:
    """Return the story of every message that ``sought`` means, of the ``limit`` newest where there are more."""
    evidence = gather(archive.mentioning(sought.texts), sought, how)
    found = [msg_id for msg_id in _oldest_first(evidence) if _fits(evidence, msg_id, sought)]
    kept = found[-limit:]
    named = frozenset(msg_id for msg_id in kept if not absent(msg_id))
    searched = archive.searched
    if not named <= sought.texts or not sought.msg_ids:
        further = gather(archive.mentioning(named), Wanted(named), how) if named else evidence
        searched = replace(
            archive.searched, remarks=tuple(dict.fromkeys((*searched.remarks, *archive.searched.remarks)))
        )
        evidence.by_msg_id.update(further.by_msg_id)
        evidence.bad = sorted({*evidence.bad, *further.bad})
        evidence.bad_records = max(evidence.bad_records, further.bad_records)
    if evidence.bad_records > MOST_BAD:
        told = f"{evidence.bad_records:,} bad records lie beside what was found; the first {MOST_BAD:,} are told"
        searched = replace(searched, remarks=(*searched.remarks, told))
    stories = tuple(tell(msg_id, evidence.by_msg_id[msg_id], evidence.bad) for msg_id in kept)
    return Answer(stories, len(found) - len(kept), searched)


def _fits(evidence: Evidence, msg_id: str, sought: Wanted) -> bool:
    return sought.key is None or any(sought.has_key(sighting.bean) for sighting in evidence.by_msg_id[msg_id])


def _oldest_first(evidence: Evidence) -> list[str]:
    def first_ms(msg_id: str) -> tuple[float, str]:
        stamps = [sighting.trace_ctx.timestamp_ms for sighting in evidence.by_msg_id[msg_id]]
        return (min((stamp for stamp in stamps if stamp is not None), default=-math.inf), msg_id)

    return sorted(evidence.by_msg_id, key=first_ms)
