"""This module knows whether a consumer's messages are left to the blocks that handle them: ``with process(message)``.

They are when the setting ``process_spans`` says so, and when the consumer is seen to be used so: a block came after the
span of its message had ended with the next poll, or each message of a batch had a block of its own. What was only seen
is no longer believed once blocks stay away, so that one block does not silence a consumer for ever.
"""

from __future__ import annotations

import logging
from typing import Final

__all__ = ["LeftToBlocks"]

_log: Final = logging.getLogger(__name__)
_PATIENCE: Final = 1_000
"""How many messages of a consumer whose blocks come late may wait for theirs: the backlog of its workers."""
_EXPLICIT: Final = "explicit"


class LeftToBlocks:
    """The question of one consumer under one ``instrument()``; ``now`` is the answer for what is handed over next."""

    __slots__ = ("_patience", "_said", "_waiting", "now")

    def __init__(self, process_spans: str) -> None:
        self.now = process_spans == _EXPLICIT
        self._patience: int | None = None
        self._said = False
        self._waiting = 0

    def left(self, messages: int) -> bool:
        """Whether ``messages`` now handed over are left to their blocks; to be asked once for each poll."""
        if self.now and self._patience is not None and self._waiting >= self._patience:
            self.now = False
        if self.now:
            self._waiting += messages
        return self.now

    def block_came(self) -> None:
        """A message that was left has its block."""
        self._waiting = max(0, self._waiting - 1)

    def came_late(self, group_name: str | None) -> None:
        """A block came after its message's span had ended: a worker handles what was polled before."""
        self._learn(_PATIENCE)
        if not self._said:
            self._said = True
            _log.warning(
                "mqtrace: a message of group %s was handled in process() after the next poll had ended its span: "
                "what is polled from now on is left to its blocks (MQTRACE_PROCESS_SPANS=explicit does so from the "
                "first message on)",
                group_name,
            )

    def one_by_one(self) -> None:
        """Each message of a batch had its own block: so will those of the next, or else it was an exception."""
        self._learn(1)

    def _learn(self, patience: int) -> None:
        if not self.now:
            self.now, self._patience, self._waiting = True, patience, 0
