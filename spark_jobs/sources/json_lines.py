"""This module knows how messages in JSON, lines of a file or values of a topic, become batches of spans.

They are read a block at a time, as columns; a block of which not all is of the ordinary kind is halved and halved
again, and what is left of it is read message by message. The next blocks grow back: one odd line costs little, and a
file that is odd throughout little more than reading it the slow way.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from bridge.otlp.containers import Message, joined
from bridge.otlp.json_spans import parse_json
from spark_jobs.sources.json_columns import json_columns
from spark_jobs.sources.read_batches import batch_of
from spark_jobs.sources.span_rows import item_batches

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from bridge.otlp.containers import Item
    from spark_jobs.sources.json_columns import JsonColumns
    from spark_jobs.sources.pieces import Line
    from spark_jobs.sources.read_batches import Books

__all__ = ["json_batches", "line_items"]

_MOST_BYTES: Final = 4 << 20
_LEAST_BYTES: Final = 64 << 10
_BLANKS: Final = b" \t\r\n"  # of JSON, which are fewer than those of Python


def json_batches(
    lines: Iterable[Line], items_of: Callable[[Line], Iterator[Item]], books: Books
) -> Iterator[pa.RecordBatch]:
    """Yield the spans in ``lines`` as batches of ``SPANS``, in order; ``items_of`` reads an odd line."""
    blocks, most = _Blocks(lines), _MOST_BYTES
    while block := blocks.take(most):
        found = json_columns([line.text.strip(_BLANKS) for line in block])
        if found is not None:
            books.due += len(found.messages)
            yield _placed(found, block)
            most = min(2 * most, _MOST_BYTES)
        elif len(block) > 1 and most > _LEAST_BYTES:
            most = min(most, blocks.give_back(block)) // 2
        else:
            yield from item_batches(
                ((line.path, line.number, item) for line in block for item in items_of(line)), books
            )


def line_items(line: Line) -> Iterator[Item]:
    """Yield what stands in one line of a file."""
    content = parse_json(line.text)
    if content is None:
        yield from joined(1, line.text, parse_json)
    else:
        yield Message(1, content, line.text)


def _placed(found: JsonColumns, block: list[Line]) -> pa.RecordBatch:
    paths = pa.array([line.path for line in block], pa.string())
    numbers = pa.array([line.number for line in block], pa.int64())
    message = pa.array(found.messages, pa.int64())
    return batch_of({**found.columns, "path": paths.take(message), "line": numbers.take(message)}, len(message))


class _Blocks:
    """Lines, some at a time."""

    def __init__(self, lines: Iterable[Line]) -> None:
        self._lines = iter(lines)
        self._again: deque[Line] = deque()

    def take(self, most: int) -> list[Line]:
        """Return the next lines of ``most`` bytes or a little more; none at the end."""
        taken: list[Line] = []
        held = 0
        while held < most and (line := self._next()) is not None:
            taken.append(line)
            held += len(line.text)
        return taken

    def give_back(self, lines: list[Line]) -> int:
        """Have these ``lines`` taken again, before the others; return how many bytes they are."""
        self._again.extendleft(reversed(lines))
        return sum(len(line.text) for line in lines)

    def _next(self) -> Line | None:
        return self._again.popleft() if self._again else next(self._lines, None)
