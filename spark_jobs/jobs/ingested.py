"""The batches that a stream has ingested: canonical events and their balance, one directory a batch.

``batches.json`` lists those that count. One write of it commits a batch, joins several or drops old ones, whole or not
at all. All batches together are what one batch run would have read, but for the dropped ones.
"""

from __future__ import annotations

import json
import secrets
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from bridge.storage.paths import flush_tree, list_files, open_parquet, read_row_groups, remove_tree, replace_text
from otel_mqtrace._errors import DAMAGE, UnreadableInputError, describe_damage
from spark_jobs.jobs.reading import EventSide, join_groups, open_rows
from spark_jobs.judging.facts import Survey, survey
from spark_jobs.schemas import NORMALISED
from spark_jobs.sums import greatest, sum_of

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping, Sequence

    from bridge.storage.paths import AnyPath
    from spark_jobs.exchange.engine import Engine

_LIST: Final = "batches.json"
_DROPPED: Final = "dropped"  # the entry for what dropped batches had read
_DIRECTORY: Final = "batch="
_JOINED: Final = "joined"
_MOST_BATCHES: Final = 64
_SURVEYED: Final = ["side", "kind", "scope", "topic", "group_name", "start_ms", "end_ms", "arrival_ms", "bad"]
_FILES: Final = 8  # of a side when batches are joined


@dataclass(frozen=True, slots=True)
class Batch:
    """What was read of each side, and the size in bytes of each source file at that time."""

    sides: Mapping[str, EventSide] = field(default_factory=dict)
    sizes: Mapping[str, int] = field(default_factory=dict)


class Ingested:
    """The batches below one directory, by their unique names."""

    def __init__(self, directory: AnyPath) -> None:
        self.directory = directory.absolute()
        self._listed: dict[str, Batch] | None = None  # the list, once it was read: no other run may write it

    def make_batch(self, kind: str) -> str:
        """Return the name of a new batch and make its directory; tasks of one that failed may still write to theirs."""
        numbers = (int(name.split("-")[1]) for name in self.batches())
        name = f"{kind}-{1 + max(numbers, default=0):09d}-{secrets.token_hex(4)}"
        self.place(name).mkdir(parents=True)
        return name

    def place(self, name: str) -> AnyPath:
        """Return the directory of a batch."""
        return self.directory / f"{_DIRECTORY}{name}"

    def commit(self, name: str, batch: Batch, *, instead_of: Sequence[str] = ()) -> None:
        """List a batch whose files are in its directory, flushed to disk, and remove those that it replaces."""
        flush_tree(self.place(name))
        self._write({**self._read(), name: batch}, without=instead_of)

    def compact(self, *, most_batches: int = _MOST_BATCHES) -> None:
        """Join batches if there are more than ``most_batches``: reading takes longer with every file.

        What was joined before is left alone, until there is as much of it: then its older half is joined again.
        """
        names = list(self.batches())
        joined = [name for name in names if name.startswith(_JOINED)]
        loose = [name for name in names if not name.startswith(_JOINED)]
        if len(loose) > most_batches:
            self._join_batches(loose)
        if len(joined) > most_batches:
            self._join_batches(joined[: 1 + len(joined) // 2])

    def _join_batches(self, names: Sequence[str]) -> None:
        batches = self.batches()
        whole = sum_of(Batch, [batches[name] for name in names])
        name = self.make_batch(_JOINED)
        sides = {
            side: replace(read, files=_join_files(read.files, self.place(name) / side))
            for side, read in whole.sides.items()
        }
        self.commit(name, Batch(sides, whole.sizes), instead_of=names)

    def drop_older(self, keep_ms: int) -> None:
        """Drop batches whose last event is more than ``keep_ms`` older than that of the middle batch.

        The middle one, because the clock of one event may be wrong. What was dropped still counts as read.
        """
        listed, old = self._read(), self._find_older(keep_ms)
        if old:
            sides = _total(listed[name] for name in (*old, _DROPPED) if name in listed).sides
            read = {
                name: EventSide(sources=side.sources, offsets=side.offsets, last_event_ms=side.last_event_ms)
                for name, side in sides.items()
            }
            self._write({**listed, _DROPPED: Batch(read)}, without=old)

    def _find_older(self, keep_ms: int) -> list[str]:
        batches = self.batches()
        last = {name: greatest(side.last_event_ms for side in one.sides.values()) for name, one in batches.items()}
        ends = {name: end for name, end in last.items() if end is not None}
        middle = sorted(ends.values())[len(ends) // 2] if ends else 0
        return [name for name, end in ends.items() if end < middle - keep_ms]

    def dropped_until_ms(self, keep_ms: int | None = None) -> int | None:
        """Return when the last event of any dropped batch was; ``None`` if none was dropped.

        With ``keep_ms`` also of the batches that :meth:`drop_older` would drop.
        """
        names = [_DROPPED, *([] if keep_ms is None else self._find_older(keep_ms))]
        dropped = [self._read().get(name, Batch()) for name in names]
        until_ms: int | None = greatest(side.last_event_ms for one in dropped for side in one.sides.values())
        return until_ms

    def forget_files(self, present: Container[str]) -> None:
        """Let files of dropped batches that are not ``present`` any more count as read no longer."""
        listed = self._read()
        dropped = listed.get(_DROPPED, Batch())
        left = {
            side: replace(read, sources=tuple(path for path in read.sources if path in present))
            for side, read in dropped.sides.items()
        }
        if left != dropped.sides:
            self._write({**listed, _DROPPED: Batch(left)})

    def batches(self) -> dict[str, Batch]:
        """Return the batches in the order of their names.

        Raises:
            UnreadableInputError: their list cannot be read.
        """
        return {name: batch for name, batch in self._read().items() if name != _DROPPED}

    def total(self) -> Batch:
        """Return the sides as one batch run would have read them; :func:`survey_again` corrects the survey."""
        return _total(self.batches().values())

    def total_read(self) -> Mapping[str, EventSide]:
        """Return the sides with what was dropped, of which only sources, offsets and the last event's time are left."""
        return _total(Batch(one.sides) for one in self._read().values()).sides

    def remove_unlisted(self) -> None:
        """Remove what killed and failed runs left: half-written batches, and those that were joined or dropped."""
        listed = {self.place(name).name for name in self.batches()}
        for path in self.directory.glob(f"{_DIRECTORY}*"):
            if path.name not in listed:
                remove_tree(path)

    def _read(self) -> dict[str, Batch]:
        if self._listed is None:
            path = self.directory / _LIST
            try:
                listed = dict(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else {}
                self._listed = {name: self._from_plain(**plain) for name, plain in sorted(listed.items())}
            except DAMAGE as error:
                why = describe_damage(error)
                raise UnreadableInputError(
                    f"{path} cannot be read: {why}; remove the directory stream to read everything again"
                ) from error
        return self._listed

    def _from_plain(self, sides: Mapping[str, Any], sizes: Mapping[str, int]) -> Batch:
        read = {side: EventSide.from_plain(plain) for side, plain in sides.items()}
        for side in read.values():
            side.files = tuple(str(self.directory / file) for file in side.files)
        return Batch(read, sizes)

    def _to_plain(self, batch: Batch) -> dict[str, Any]:
        root = f"{self.directory}/"
        sides = {
            name: {**side.to_plain(), "files": [file.removeprefix(root) for file in side.files]}
            for name, side in batch.sides.items()
        }
        return {"sides": sides, "sizes": batch.sizes}

    def _write(self, listed: Mapping[str, Batch], *, without: Sequence[str] = ()) -> None:
        """Replace the list, flushed to disk, and remove the batches that are not in it any more."""
        left = {name: batch for name, batch in sorted(listed.items()) if name not in without}
        plain = {name: self._to_plain(batch) for name, batch in left.items()}
        replace_text(self.directory / _LIST, json.dumps(plain, ensure_ascii=False))
        self._listed = left
        for name in without:
            remove_tree(self.place(name))


def _total(batches: Iterable[Batch]) -> Batch:
    # Beside an empty side the offsets of a single batch are put in order as well.
    return sum_of(Batch, [Batch({side: EventSide() for side in ("native", "otlp")}), *batches])


def survey_again(engine: Engine, spans: EventSide, topics: Sequence[str]) -> EventSide:
    """Return the OTLP side with its survey where ``topics`` are trace topics."""
    if not topics:
        return spans
    return replace(spans, survey=sum_of(Survey, engine.map(partial(_survey_file, tuple(topics)), spans.files)))


def _survey_file(topics: Sequence[str], path: str) -> Survey:
    return sum_of(Survey, (survey(rows, trace_topics=topics) for rows in read_row_groups(path, _SURVEYED)))


def _join_files(paths: Sequence[str], directory: AnyPath) -> tuple[str, ...]:
    rows = [open_parquet(path).metadata.num_rows for path in paths]
    begins, total = np.cumsum([0, *rows])[:-1].tolist(), max(sum(rows), 1)
    parts = groupby(zip(paths, begins, strict=True), key=lambda one: int(one[1] * _FILES // total))
    directory.mkdir(parents=True)
    for number, some in parts:
        groups = (rows.cast(NORMALISED) for path, _ in some for rows in read_row_groups(path, NORMALISED.names))
        with open_rows(str(directory / f"part-{number:05d}.parquet")) as write:
            for joined in join_groups(groups):
                write(joined)
                del joined  # not held while the next ones are read
    return tuple(list_files(directory))
