"""The JSON of an answer: stable keys, only ever added to; absent values are ``null``."""

from __future__ import annotations

from dataclasses import fields
from enum import Enum
from typing import TYPE_CHECKING, Any

from bridge.query.findings import findings, in_one_sentence
from bridge.query.render.details import link_of, trace_id_hex
from bridge.query.search import rows_of
from bridge.query.timeline import events

if TYPE_CHECKING:
    from bridge.query.evidence import Sighting
    from bridge.query.search import Answer
    from bridge.query.timeline import MessageTimeline


_SCHEMA_VERSION = 1


def answer_json(answer: Answer) -> dict[str, Any]:
    """Return the whole answer as plain values."""
    return {
        "schema_version": _SCHEMA_VERSION,
        "found": len(answer.stories),
        "left_off": answer.left_off,
        "page": answer.page,
        "pages": answer.pages,
        "total": answer.total,
        "searched": _plain_fields(answer.searched),
        "list": [_plain_fields(row) for story in reversed(answer.stories) for row in rows_of(story, answer.query)],
        "messages": [
            {
                **timeline_json(story),
                "trace_id": trace_id_hex(story.msg_id),
                "link": link_of(answer, story),
            }
            for story in answer.stories
        ],
    }


def timeline_json(story: MessageTimeline) -> dict[str, Any]:
    """Return one message's story as plain values."""
    return {
        "msg_id": story.msg_id,
        "topics": list(story.topics),
        "tags": list(story.tags),
        "keys": list(story.keys),
        "summary": in_one_sentence(story),
        "findings": [_plain_fields(finding) for finding in findings(story)],
        "sends": [_event(send) for send in story.sends],
        "transaction_ends": [_event(end) for end in story.transaction_ends],
        "recalls": [_event(recall) for recall in story.recalls],
        "groups": [
            {
                "group": group.group,
                "outcome": group.outcome.value,
                "attempts": [{**_event(attempt), "elapsed_ms": attempt.elapsed_ms} for attempt in group.attempts],
            }
            for group in story.groups
        ],
        "timeline": [_plain_fields(event) for event in events(story)],
        "bad_records": [
            {
                **_plain_fields(bad.place),
                "field": bad.field_name,
                "reason": bad.reason,
                "text": bad.text,
                "names_message": bad.names_message,
            }
            for bad in story.bad
        ],
        "records": story.records,
        "repeats": story.repeats,
    }


def _event(event: Any) -> dict[str, Any]:
    plain = _plain_fields(event)
    return {**plain, "evidence": [_sighting(sighting) for sighting in event.evidence]}


def _sighting(sighting: Sighting) -> dict[str, Any]:
    return {
        "trace_type": sighting.trace_ctx.trace_type.value,
        "dialect": sighting.dialect,
        "written_by": list(sighting.written_by),
        "seen": sighting.seen,
        "places": [_plain_fields(place) for place in sighting.places],
    }


def _plain_fields(item: Any) -> dict[str, Any]:
    """Return the plain fields of a dataclass; ``evidence`` is written by its own rule."""
    return {one.name: _plain(getattr(item, one.name)) for one in fields(item) if one.name != "evidence"}


def _plain(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.name if isinstance(value, int) else value.value
    return list(value) if isinstance(value, tuple) else value
