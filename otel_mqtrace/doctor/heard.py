"""This module knows how the warnings of our own loggers are heard: they name what is wrong, and never a secret."""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Heard", "heard_alone"]

_PREFIX: Final = "mqtrace: "
_MOST: Final = 50


class Heard(logging.Handler):
    """Keeps what is said by each logger it is added to, without the prefix; the last fifty.

    A program that configures no logging has its warnings on stderr, but only while no logger has a handler: with
    ``passes_on`` they go there still.
    """

    def __init__(self, *, passes_on: bool = False) -> None:
        super().__init__(logging.WARNING)
        self._passes_on = passes_on
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep one line."""
        self.said.append(record.getMessage().removeprefix(_PREFIX))
        del self.said[:-_MOST]
        if self._passes_on and logging.lastResort is not None and self._is_alone_with(record):
            logging.lastResort.handle(record)

    def _is_alone_with(self, record: logging.LogRecord) -> bool:
        logger: logging.Logger | None = logging.getLogger(record.name)
        while logger is not None:
            if any(each is not self for each in logger.handlers):
                return False
            logger = logger.parent if logger.propagate else None
        return True


@contextlib.contextmanager
def heard_alone(logger_name: str) -> Iterator[list[str]]:
    """Hear the warnings of one logger, which go nowhere else meanwhile."""
    heard, logger = Heard(), logging.getLogger(logger_name)
    logger.addHandler(heard)
    passed_on, logger.propagate = logger.propagate, False
    try:
        yield heard.said
    finally:
        logger.propagate = passed_on
        logger.removeHandler(heard)
