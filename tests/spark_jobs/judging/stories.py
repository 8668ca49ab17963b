"""Small stories about one message each, told as events, and the verdict each must get."""

from dataclasses import dataclass, field
from typing import Any

from tests.support.events import publish

MINUTE_MS = 60_000
END_MS = 30 * MINUTE_MS
"""How long after the stories the input goes on, so that they are settled."""


@dataclass(frozen=True)
class Story:
    """Events of one message, and the one verdict that its key of ``kind`` must get."""

    says: str
    events: list[dict[str, Any]]
    status: str
    reason: str | None = None
    kind: str = "consume"
    also: dict[str, Any] = field(default_factory=dict)
    keys: int = 1


def both(msg_id: str, **fields: Any) -> list[dict[str, Any]]:
    return [publish("native", msg_id, **fields), publish("otlp", msg_id, **fields)]
