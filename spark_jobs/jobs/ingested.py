"""The batches that a stream has ingested: canonical events and their balance, one directory a batch.

A batch is written beside its place and renamed, so that it exists whole or not at all; the same batch again replaces
itself. All batches together are what one batch run would have read, but for those that are old and were dropped.
"""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from bridge.storage import committed, list_files, move_tree, open_parquet, read_row_groups, remove_tree
from otel_mqtrace._errors import UnreadableInputError
from spark_jobs.jobs.reading import EventFile, EventSide
from spark_jobs.judging.facts import Survey, survey
from spark_jobs.schemas import NORMALISED
from spark_jobs.sums import sum_of

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping, Sequence

    from bridge.storage import AnyPath
    from spark_jobs.exchange.engine import Engine
    from spark_jobs.sources.kafka import PartitionRange

_SIDES: Final = ("native", "otlp")
_BOOKS: Final = "books.json"
_INSTEAD_OF: Final = "instead_of"
_SIZES: Final = "sizes"
_INCOMING: Final = ".incoming-"
_JOINED: Final = "joined-"
_FILES_NAME: Final = "files-"
_MOST_BATCHES: Final = 64
_DROPPED: Final = "dropped.json"
_SURVEYED: Final = ["side", "kind", "scope", "topic", "group_name", "start_ms", "end_ms", "arrival_ms", "bad"]
_FILES: Final = 8  # of a side when batches are joined


class Ingested:
    """The batches below one directory, by their unique names."""

    def __init__(self, directory: AnyPath) -> None:
        self.directory = directory.absolute()

    def incoming(self, name: str) -> AnyPath:
        """Return an empty directory to write a batch into, ``native`` and ``otlp`` below it."""
        path = self.directory / f"{_INCOMING}{name}"
        remove_tree(path)
        path.mkdir(parents=True)
        return path

    def commit(
        self,
        name: str,
        sides: Mapping[str, EventSide],
        *,
        sizes: Mapping[str, int] | None = None,
        instead_of: Sequence[str] = (),
    ) -> None:
        """Make the content of :meth:`incoming` batch ``name``, in place of ``instead_of``; ``sizes`` are the files'."""
        incoming, final = self.directory / f"{_INCOMING}{name}", self._path(name)
        books = {side: {**read.to_plain(), "files": []} for side, read in sides.items()}
        plain = {**books, _SIZES: dict(sizes or {}), _INSTEAD_OF: list(instead_of)}
        (incoming / _BOOKS).write_text(json.dumps(plain, ensure_ascii=False), encoding="utf-8")
        _remove(final)
        move_tree(incoming, final, last=_BOOKS)

    def compact(self, *, most_batches: int = _MOST_BATCHES) -> None:
        """Join batches if there are more than ``most_batches``: reading takes longer with every file.

        What was joined before is left alone, until there is as much of it: then its older half is joined again.
        """
        names = self.names()
        joined = [name for name in names if name.startswith(_JOINED)]
        loose = [name for name in names if not name.startswith(_JOINED)]
        if len(loose) > most_batches:
            self._join_batches(loose)
        if len(joined) > most_batches:
            self._join_batches(joined[: 1 + len(joined) // 2])

    def _join_batches(self, names: Sequence[str]) -> None:
        batches = {name: self._read(name) for name in names}
        numbers = (name.removeprefix(_JOINED) for name in self._on_disk() if name.startswith(_JOINED))
        last = max((int(number) for number in numbers if number.isdecimal()), default=0)
        name = f"{_JOINED}{last + 1:09d}"
        incoming = self.incoming(name)
        joined = {side: sum_of(EventSide, found) for side in _SIDES if (found := _of_side(batches, side))}
        for side, read in joined.items():
            _join_files(read.files, incoming / side)
        self.commit(name, joined, sizes=self._sizes_of(names), instead_of=names)
        for batch in names:
            _remove(self._path(batch))

    def drop_older(self, keep_ms: int) -> None:
        """Drop batches whose last event is more than ``keep_ms`` older than that of the middle batch.

        The middle one, because the clock of one event may be wrong. What was dropped still counts as read.
        """
        batches = self.batches()
        times = {name: [side.last_event_ms for side in sides.values()] for name, sides in batches.items()}
        ends = {name: max(known) for name, given in times.items() if (known := [ms for ms in given if ms is not None])}
        middle = sorted(ends.values())[len(ends) // 2] if ends else 0
        old = {name: batches[name] for name, end in ends.items() if end < middle - keep_ms}
        if old:
            dropped = self._dropped()
            self._write_dropped({side: sum_of(EventSide, [dropped[side], *_of_side(old, side)]) for side in _SIDES})
        for name in old:
            _remove(self._path(name))

    def forget_files(self, present: Container[str]) -> None:
        """Let files of dropped batches that are not ``present`` any more count as read no longer."""
        dropped = self._dropped()
        left = {
            side: replace(read, sources=tuple(path for path in read.sources if path in present))
            for side, read in dropped.items()
        }
        if left != dropped:
            self._write_dropped(left)

    def _dropped(self) -> dict[str, EventSide]:
        plain = _read_json(self.directory / _DROPPED) if (self.directory / _DROPPED).exists() else {}
        return {side: EventSide.from_plain(plain[side]) if side in plain else EventSide() for side in _SIDES}

    def _write_dropped(self, sides: Mapping[str, EventSide]) -> None:
        plain = {name: EventSide(sources=one.sources, offsets=one.offsets).to_plain() for name, one in sides.items()}
        with committed(self.directory / _DROPPED) as unready:
            Path(unready).write_text(json.dumps(plain, ensure_ascii=False), encoding="utf-8")

    def names(self) -> tuple[str, ...]:
        """Return the committed batches, without those that a killed run had joined."""
        on_disk = self._on_disk()
        joined = [name for name in on_disk if name.startswith(_JOINED)]
        replaced = {name for each in joined for name in self._plain(each)[_INSTEAD_OF]}
        return tuple(sorted(on_disk - replaced))

    def batches(self) -> dict[str, dict[str, EventSide]]:
        """Return every batch by name and side.

        Raises:
            UnreadableInputError: the balance of a batch cannot be read.
        """
        return {name: self._read(name) for name in self.names()}

    def offsets(self) -> dict[str, tuple[PartitionRange, ...]]:
        """Return the range read of each partition of topics, by side."""
        batches, dropped = self.batches(), self._dropped()
        return {side: sum_of(EventSide, [dropped[side], *_of_side(batches, side)]).offsets for side in _SIDES}

    def sizes(self) -> dict[str, int]:
        """Return the size in bytes of each source file when it was read."""
        return self._sizes_of(self.names())

    def _sizes_of(self, names: Iterable[str]) -> dict[str, int]:
        return {path: size for name in names for path, size in self._plain(name)[_SIZES].items()}

    def sides(self) -> tuple[EventSide, EventSide]:
        """Return both sides as one batch run would have read them; :func:`survey_again` corrects the survey."""
        batches = self.batches()
        # Beside an empty side the offsets of a single batch are put in order as well.
        native, otlp = (sum_of(EventSide, [EventSide(), *_of_side(batches, side)]) for side in _SIDES)
        return native, otlp

    def sources(self) -> set[str]:
        """Return the files and topics that were read."""
        read = [*self.batches().values(), self._dropped()]
        return {source for sides in read for side in sides.values() for source in side.sources}

    def next_name(self) -> str:
        """Return the name of the next batch of files: not of a batch, one that another replaces, or one that failed.

        Tasks of a batch that failed may still write.
        """
        on_disk = self._on_disk()
        names = on_disk | {old for name in on_disk for old in self._plain(name)[_INSTEAD_OF]}
        names |= {path.name.removeprefix(_INCOMING) for path in self.directory.glob(f"{_INCOMING}*")}
        numbers = [name.removeprefix(_FILES_NAME) for name in names if name.startswith(_FILES_NAME)]
        return f"{_FILES_NAME}{1 + max(map(int, numbers), default=0):09d}"

    def remove_unfinished(self) -> None:
        """Remove what killed runs left half-written, half-removed or joined."""
        for path in (*self.directory.glob(f"{_INCOMING}*"), *self.directory.glob("batch=*")):
            if not (path / _BOOKS).exists() or path.name.startswith(_INCOMING):
                remove_tree(path)
        for name in self._on_disk().difference(self.names()):
            _remove(self._path(name))

    def _on_disk(self) -> set[str]:
        found = (path for path in self.directory.glob("batch=*") if (path / _BOOKS).exists())
        return {path.name.partition("=")[2] for path in found}

    def _path(self, name: str) -> AnyPath:
        return self.directory / f"batch={name}"

    def _read(self, name: str) -> dict[str, EventSide]:
        plain = self._plain(name)
        read = {side: EventSide.from_plain(plain[side]) for side in _SIDES if side in plain}
        return {
            side: replace(found, files=tuple(list_files(str(self._path(name) / side)))) for side, found in read.items()
        }

    def _plain(self, name: str) -> dict[str, Any]:
        return _read_json(self._path(name) / _BOOKS)


def _read_json(path: AnyPath) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise UnreadableInputError(
            f"{path} cannot be read: {error}; remove the directory stream to read everything again"
        ) from error


def _remove(batch: AnyPath) -> None:
    """Remove a batch: without its balance it does not count, however far the removal comes."""
    (batch / _BOOKS).unlink(missing_ok=True)
    remove_tree(batch)


def survey_again(engine: Engine, spans: EventSide, topics: Sequence[str]) -> EventSide:
    """Return the OTLP side with its survey where ``topics`` are trace topics."""
    if not topics:
        return spans
    return replace(spans, survey=sum_of(Survey, engine.map(partial(_survey_file, tuple(topics)), spans.files)))


def _survey_file(topics: Sequence[str], path: str) -> Survey:
    return sum_of(Survey, (survey(rows, trace_topics=topics) for rows in read_row_groups(path, _SURVEYED)))


def _join_files(paths: Sequence[str], directory: AnyPath) -> None:
    rows = [open_parquet(path).metadata.num_rows for path in paths]
    begins, total = np.cumsum([0, *rows])[:-1].tolist(), max(sum(rows), 1)
    parts = groupby(zip(paths, begins, strict=True), key=lambda one: int(one[1] * _FILES // total))
    directory.mkdir(parents=True)
    for number, some in parts:
        with committed(directory / f"part-{number:05d}.parquet") as unready, EventFile(unready) as file:
            for path, _ in some:
                for rows in read_row_groups(path, NORMALISED.names):
                    for batch in rows.cast(NORMALISED).to_batches():
                        file.write(batch)


def _of_side(batches: Mapping[str, Mapping[str, EventSide]], side: str) -> list[EventSide]:
    return [found[side] for found in batches.values() if side in found]
