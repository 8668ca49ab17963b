"""This module knows JSON documents one behind the other, each over any number of lines: neither lines nor frames.

A document begins where the one before it ends, and only a parser can tell where that is. So text is taken in pieces
until it holds one: what is in memory at a time is one document, and none may be longer than ``MOST_CHARACTERS``.
"""

from __future__ import annotations

import codecs
import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import BinaryIO

__all__ = ["MOST_CHARACTERS", "Piece", "documents"]

MOST_CHARACTERS: Final = 64 << 20
"""The longest document; a parser needs some twenty times as much memory for it."""
_PIECE_BYTES: Final = 1 << 20
_DECODER: Final = json.JSONDecoder(parse_int=float)  # no number is too long for it
_BETWEEN: Final = re.compile(r"[\s,\ufeff]*")
_TORN_TEXT: Final = "Unterminated string"  # what the decoder says, and where it began, however far back
_LONGEST_TOKEN: Final = 32  # of what is no text and no number of thousands of digits


@dataclass(frozen=True, slots=True)
class Piece:
    """Some text: a whole document, or a line that is none; ``is_cut`` says that the file ended inside it."""

    text: str
    is_document: bool
    is_cut: bool


def documents(file: BinaryIO, *, most_characters: int = MOST_CHARACTERS) -> Iterator[Piece]:
    """Yield the documents in ``file``; what is none comes as the line it begins on, and reading goes on behind that."""
    text = _Text(file, most_characters)
    while text.skip():
        end = _end_of_document(text)
        is_document = end is not None
        end = text.end_of_line() if end is None else end
        is_cut = not is_document and text.is_whole and end == len(text.held) and not text.held.endswith("\n")
        yield Piece(text.take(end), is_document, is_cut)


def _end_of_document(text: _Text) -> int | None:
    """Return where the document that text begins with ends, ``None`` when it begins with none."""
    while True:
        try:
            return _DECODER.raw_decode(text.held, text.at)[1]
        except RecursionError:
            return None
        except json.JSONDecodeError as error:
            torn = error.msg.startswith(_TORN_TEXT) or error.pos >= len(text.held) - _LONGEST_TOKEN
            if not torn or not text.grow():
                return None


class _Text:
    """The characters of a file that were read: those before ``at`` are taken."""

    def __init__(self, file: BinaryIO, most_characters: int) -> None:
        self.held, self.at, self.is_whole = "", 0, False
        self._file, self._most = file, most_characters
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def grow(self) -> bool:
        """Read as much again as is left, so that parsing anew costs twice at most; ``False`` when that cannot be."""
        left = len(self.held) - self.at
        if self.is_whole or left >= self._most:
            return False
        data = self._file.read(max(_PIECE_BYTES, min(left, self._most - left)))
        self.is_whole = not data
        self.held, self.at = self.held[self.at :] + self._decoder.decode(data, final=self.is_whole), 0
        return not self.is_whole

    def skip(self) -> bool:
        """Pass over blanks, commas between documents and a byte order mark; ``False`` when nothing is left."""
        while True:
            found = _BETWEEN.match(self.held, self.at)
            self.at = self.at if found is None else found.end()
            if self.at < len(self.held):
                return True
            if not self.grow() and self.is_whole:
                return self.at < len(self.held)

    def end_of_line(self) -> int:
        """Return where the line at hand ends, its newline included: at the latest where the text held does."""
        while not (end := self.held.find("\n", self.at) + 1):
            if not self.grow():
                return len(self.held)
        return end

    def take(self, end: int) -> str:
        """Return the characters up to ``end``."""
        taken, self.at = self.held[self.at : end], end
        return taken
