"""This module knows what a stream has taken in: canonical events and their books, one directory a batch.

A batch is written beside its place and renamed, events of both sides and books at once: it is there whole or not at
all, and the same batch again replaces itself. Together they are what one batch run would have read.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as F

from otel_mqtrace._errors import UnreadableInputError
from spark_jobs.jobs.normalise import NormalisedSide
from spark_jobs.sources.files import spark_path, spark_target
from spark_jobs.sources.kafka.address import TopicAddress
from spark_jobs.sources.kafka.offsets import PartitionRange
from spark_jobs.spark_schemas import BAD, EVENT, NORMALISED
from spark_jobs.taxonomy import Reason

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from pyspark.sql import Column, DataFrame, SparkSession

__all__ = ["Books", "Intake"]

_SIDES: Final = ("native", "otlp")
_BOOKS: Final = "books.json"
_INSTEAD_OF: Final = "instead_of"
_INCOMING: Final = ".incoming-"
_JOINED: Final = "joined-"
_MOST_BATCHES: Final = 64
_FILES: Final = 8  # of a side when batches are joined


@dataclass(frozen=True, slots=True, kw_only=True)
class Books:
    """What is told of one side of one batch beside its events; ``sizes`` are bytes of each file when it was read."""

    records_read: int
    exploded: int
    sources: tuple[str, ...]
    layouts: tuple[str, ...]
    truncated_tails: int
    last_event_ms: int | None
    trace_topics: tuple[str, ...] = ()
    offsets_without_message: int = 0
    offsets: tuple[tuple[str, str, int, int, int], ...] = ()  # servers, topic, partition, first, end
    by_place: int | None = None
    sizes: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, side: NormalisedSide, sizes: Mapping[str, int]) -> Books:
        """Return the books of a side just normalised."""
        return cls(
            records_read=side.records_read,
            exploded=side.exploded,
            sources=side.sources,
            layouts=side.layouts,
            truncated_tails=side.truncated_tails,
            last_event_ms=side.last_event_ms,
            trace_topics=side.trace_topics,
            offsets_without_message=side.offsets_without_message,
            offsets=tuple(
                (one.address.bootstrap_servers, one.address.topic, one.partition, one.first, one.end)
                for one in side.offsets
            ),
            by_place=side.by_place,
            sizes=sizes,
        )


class Intake:
    """The batches below one directory; ``name`` of a batch is its own and never another's."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory.absolute()

    def incoming(self, name: str) -> Path:
        """Return an empty directory to write a batch into, ``native`` and ``otlp`` below it."""
        path = self.directory / f"{_INCOMING}{name}"
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir(parents=True)
        return path

    def take_in(self, name: str, books: Mapping[str, Books], *, instead_of: Sequence[str] = ()) -> None:
        """Let what was written to :meth:`incoming` count as batch ``name``, and no longer those it stands for.

        ``books`` are per side.
        """
        incoming, final = self.directory / f"{_INCOMING}{name}", self._path(name)
        plain = {**{side: asdict(book) for side, book in books.items()}, _INSTEAD_OF: list(instead_of)}
        (incoming / _BOOKS).write_text(json.dumps(plain, ensure_ascii=False), encoding="utf-8")
        if final.exists():
            shutil.rmtree(final)
        incoming.rename(final)

    def compact(self, spark: SparkSession, *, most_batches: int = _MOST_BATCHES) -> None:
        """Make one batch of all when there are more than ``most_batches``: reading takes longer with every file."""
        batches = self.books()
        if len(batches) <= most_batches:
            return
        name = f"{_JOINED}{self._times_joined() + 1:09d}"
        incoming = self.incoming(name)
        for side in _SIDES:
            paths = [spark_path(self._path(batch) / side) for batch, books in batches.items() if side in books]
            if paths:
                _read(spark, paths).coalesce(_FILES).write.parquet(spark_target(incoming / side))
        joined = {side: [books[side] for books in batches.values() if side in books] for side in _SIDES}
        old = self._on_disk()  # what a killed run had joined already, too
        self.take_in(name, {side: _sum(books) for side, books in joined.items() if books}, instead_of=sorted(old))
        for batch in old:
            shutil.rmtree(self._path(batch))

    def names(self) -> tuple[str, ...]:
        """Return the batches taken in; what a killed run left half-written, or had joined already, is none."""
        found = self._on_disk()
        joined = [name for name in found if name.startswith(_JOINED)]
        replaced = {name for each in joined for name in self._plain(each)[_INSTEAD_OF]}
        return tuple(sorted(found - replaced))

    def _times_joined(self) -> int:
        """Return how often batches were joined: the number of the last time, for that batch is there until the next."""
        numbers = (name.removeprefix(_JOINED) for name in self._on_disk() if name.startswith(_JOINED))
        return max((int(number) for number in numbers if number.isdecimal()), default=0)

    def _on_disk(self) -> set[str]:
        return {path.name.partition("=")[2] for path in self.directory.glob("batch=*")}

    def _path(self, name: str) -> Path:
        return self.directory / f"batch={name}"

    def books(self) -> dict[str, dict[str, Books]]:
        """Return the books of every batch, per side.

        Raises:
            UnreadableInputError: a batch has none that can be read.
        """
        return {name: self._books(name) for name in self.names()}

    def offsets(self) -> dict[str, tuple[PartitionRange, ...]]:
        """Return what has been taken in of each partition of topics, per side."""
        batches = self.books().values()
        return {side: _joined(books[side] for books in batches if side in books) for side in _SIDES}

    def sizes(self) -> dict[str, int]:
        """Return how many bytes each file had when it was read."""
        every = (book for books in self.books().values() for book in books.values())
        return {path: size for book in every for path, size in book.sizes.items()}

    def _books(self, name: str) -> dict[str, Books]:
        plain = self._plain(name)
        return {side: Books(**_tuples(plain[side])) for side in _SIDES if side in plain}

    def _plain(self, name: str) -> dict[str, Any]:
        path = self._path(name) / _BOOKS
        try:
            return dict(json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError) as error:
            raise UnreadableInputError(
                f"{path} cannot be read: {error}; remove {self.directory.parent} to read everything again"
            ) from error

    def sides(self, spark: SparkSession) -> tuple[NormalisedSide, NormalisedSide]:
        """Return both sides of everything taken in so far, as one batch run would have normalised them."""
        batches = self.books()
        topics = {topic for books in batches.values() if "native" in books for topic in books["native"].trace_topics}
        native, otlp = (self._side(spark, side, batches, sorted(topics)) for side in _SIDES)
        return native, otlp

    def _side(
        self, spark: SparkSession, side: str, batches: Mapping[str, Mapping[str, Books]], topics: list[str]
    ) -> NormalisedSide:
        found = {name: books[side] for name, books in batches.items() if side in books}
        paths = [spark_path(self._path(name) / side) for name in found]
        rows = _read(spark, paths).withColumn("scope", _scope(topics) if side == "otlp" else F.col("scope"))
        good = F.col("bad").isNull()
        books = _sum(list(found.values()))
        return NormalisedSide(
            events=rows.where(good).select(*EVENT.names),
            malformed=rows.where(~good).select(
                "side", "path", "line", "record_index", *(f"bad.{name}" for name in BAD.names)
            ),
            records_read=books.records_read,
            exploded=books.exploded,
            sources=books.sources,
            layouts=books.layouts,
            truncated_tails=books.truncated_tails,
            last_event_ms=books.last_event_ms,
            offsets=_joined([books]),
            offsets_without_message=books.offsets_without_message,
            by_place=books.by_place,
            trace_topics=tuple(topics) if side == "native" else (),
            files=tuple(str(file) for name in found for file in sorted((self._path(name) / side).glob("*.parquet"))),
            scoped_topics=tuple(topics) if side == "otlp" else (),
        )


def _read(spark: SparkSession, paths: list[str]) -> DataFrame:
    if not paths:
        return spark.createDataFrame([], NORMALISED)
    return spark.read.schema(NORMALISED).parquet(*paths)


def _scope(topics: list[str]) -> Column:
    """Return the scope of a span: a topic that a later batch showed to be a trace topic was one all along."""
    traffic = F.col("bad").isNull() & F.coalesce(F.col("topic").isin(*topics), F.lit(False))
    return F.when(traffic, Reason.TRACE_TRAFFIC.value).otherwise(F.col("scope")) if topics else F.col("scope")


def _sum(books: Sequence[Books]) -> Books:
    """Return what the books of several batches come to."""
    ends = [book.last_event_ms for book in books if book.last_event_ms is not None]
    return Books(
        records_read=sum(book.records_read for book in books),
        exploded=sum(book.exploded for book in books),
        sources=tuple(dict.fromkeys(source for book in books for source in book.sources)),
        layouts=tuple(sorted({layout for book in books for layout in book.layouts})),
        truncated_tails=sum(book.truncated_tails for book in books),
        last_event_ms=max(ends, default=None),
        trace_topics=tuple(sorted({topic for book in books for topic in book.trace_topics})),
        offsets_without_message=sum(book.offsets_without_message for book in books),
        offsets=tuple(
            (one.address.bootstrap_servers, one.address.topic, one.partition, one.first, one.end)
            for one in _joined(books)
        ),
        by_place=sum(book.by_place or 0 for book in books),
        sizes={path: size for book in books for path, size in book.sizes.items()},
    )


def _joined(books: Iterable[Books]) -> tuple[PartitionRange, ...]:
    """Return what was read of each partition, from the first offset of any batch to the last."""
    found: dict[tuple[str, str, int], tuple[int, int]] = {}
    for servers, topic, partition, first, end in (one for book in books for one in book.offsets):
        known = found.get((servers, topic, partition), (first, end))
        found[servers, topic, partition] = min(known[0], first), max(known[1], end)
    return tuple(
        PartitionRange(address=TopicAddress(servers, topic), partition=partition, first=first, end=end)
        for (servers, topic, partition), (first, end) in sorted(found.items())
    )


def _tuples(plain: dict[str, Any]) -> dict[str, Any]:
    """Give back to a book the tuples that JSON has no word for."""
    lists = {name: tuple(value) for name, value in plain.items() if isinstance(value, list)}
    return {**plain, **lists, "offsets": tuple(map(tuple, plain["offsets"]))}
