"""This module knows how to give an answer again without working it out again, within bounds.

What records repeat is told from what they do not only by looking: so everything short is remembered, and when that has
become too much, all of it is forgotten at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Answers"]

_MOST: Final = 4_096
_LONGEST_TEXT: Final = 256
_Q = TypeVar("_Q")
_A = TypeVar("_A")


class Answers(dict[_Q, _A], Generic[_Q, _A]):
    """The answers to ``ask``, a function of one text, number or the like; ask by ``answers[question]``."""

    def __init__(self, ask: Callable[[_Q], _A]) -> None:
        super().__init__()
        self._ask = ask

    def __missing__(self, question: _Q) -> _A:
        answer = self._ask(question)
        if not isinstance(question, str) or len(question) <= _LONGEST_TEXT:
            if len(self) >= _MOST:
                self.clear()
            self[question] = answer
        return answer
