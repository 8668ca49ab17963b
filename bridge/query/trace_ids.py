"""The trace id of a message, and its address in a tracing tool."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from bridge.forwarder.ids import trace_id_of
from bridge.page.markup import fill_template

if TYPE_CHECKING:
    from bridge.query.search import Answer
    from bridge.query.story import MessageStory

__all__ = ["LINK_FIELDS", "link_of", "trace_id_hex"]

LINK_FIELDS: Final = ("trace_id", "msg_id", "topic")
"""The names a template may have in braces."""


def trace_id_hex(answer: Answer, msg_id: str) -> str:
    """Return the trace id that a span gave, else the one that ``mqtrace forward`` makes of the message id."""
    from_spans = answer.traces.get(msg_id)
    return from_spans[0] if from_spans else f"{trace_id_of(msg_id):032x}"


def link_of(answer: Answer, story: MessageStory) -> str | None:
    """Return the address of the message's trace, every value quoted; ``None`` without a template or a value for it."""
    if answer.link_template is None:
        return None
    topic = story.topics[0] if story.topics else None
    values = {"trace_id": trace_id_hex(answer, story.msg_id), "msg_id": story.msg_id, "topic": topic}
    return fill_template(answer.link_template, values.__getitem__)
