"""The trace id of a message, and its address in a tracing tool."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from bridge.forwarder.ids import trace_id_of
from otel_mqtrace._errors import UsageError

if TYPE_CHECKING:
    from bridge.query.search import Answer
    from bridge.query.story import MessageStory

__all__ = ["LINK_FIELDS", "check_template", "link_of", "trace_id_hex"]

LINK_FIELDS: Final = ("trace_id", "msg_id", "topic")
"""The names a template may have in braces."""
_NAME: Final = re.compile(r"\{(\w*)\}")


def trace_id_hex(answer: Answer, msg_id: str) -> str:
    """Return the trace id that a span gave, else the one that ``mqtrace forward`` makes of the message id."""
    from_spans = answer.traces.get(msg_id)
    return from_spans[0] if from_spans else f"{trace_id_of(msg_id):032x}"


def check_template(template: str) -> str:
    """Return ``template`` when links can be made of it.

    Raises:
        UsageError: it is no web address, names no field, or names an unknown one.
    """
    if not re.match(r"https?://[^\s/]+", template):
        raise UsageError(f"--link-template {template!r} is no address: begin it with http:// or https://")
    names = _NAME.findall(template)
    unknown = [name for name in names if name not in LINK_FIELDS]
    if unknown or not names:
        problem = f"{{{unknown[0]}}} is unknown" if unknown else "nothing in it changes"
        raise UsageError(f"--link-template: {problem}; use {', '.join(f'{{{name}}}' for name in LINK_FIELDS)}")
    return template


def link_of(answer: Answer, story: MessageStory) -> str | None:
    """Return the address of the message's trace, every value quoted; ``None`` without a template or a value for it."""
    if answer.link_template is None:
        return None
    topic = story.topics[0] if story.topics else None
    values = {"trace_id": trace_id_hex(answer, story.msg_id), "msg_id": story.msg_id, "topic": topic}
    if any(values[name] is None for name in _NAME.findall(answer.link_template)):
        return None
    return _NAME.sub(lambda hit: quote(str(values[hit[1]]).encode("utf-8", "replace"), safe=""), answer.link_template)
