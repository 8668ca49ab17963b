"""Take in what is new to a stream, files and messages, by the batch run's own readers."""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bridge.otlp.detect import Layout, Side
from otel_mqtrace._errors import PeerError, UsageError
from spark_jobs.jobs.intake import Intake
from spark_jobs.jobs.new_files import each_batch_of_new_files
from spark_jobs.jobs.options import reading
from spark_jobs.jobs.reading import read_native, read_otlp
from spark_jobs.jobs.writers import name_native_writers
from spark_jobs.sources.files import source_files
from spark_jobs.sources.kafka import apart, topic_ranges

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from pyspark.sql import SparkSession

    from spark_jobs.exchange.engine import Engine
    from spark_jobs.jobs.options import Chosen, ReconcileOptions
    from spark_jobs.jobs.reading import ReadOptions
    from spark_jobs.sources.kafka import PartitionRange, TopicAddress

__all__ = ["STREAM", "Ingest", "find_new_ranges", "size_of"]

STREAM: Final = "stream"
"""The directory under ``out`` of what a stream has taken in."""

_READERS: Final = {"native": read_native, "otlp": read_otlp}
_HOW: Final = "how.json"
_WRITERS: Final = "writers"
_NATIVE_WRITER: Final = "--native-writer"


class Ingest:
    """One stream over the sources of ``options``; at most ``files_per_batch`` files of a source make one batch."""

    def __init__(self, options: ReconcileOptions, *, files_per_batch: int, progress: Callable[[str], None]) -> None:
        self._options = options
        self._files_per_batch = files_per_batch
        self._progress = progress
        self._directory = options.out / STREAM
        self.intake = Intake(self._directory / "events")

    def how(self) -> ReadOptions:
        """Return how both sides are read, as the options say."""
        return reading(self._options)

    def known_writers(self) -> dict[str, tuple[str, str]]:
        """Return the writers that earlier batches showed, as :func:`spark_jobs.jobs.options.choose` takes them."""
        return {name: (value, why) for name, (value, why) in self._read_how().get(_WRITERS, {}).items()}

    def use(self, chosen: Chosen) -> None:
        """Read with these options from now on; refuse to add to what was read otherwise.

        Raises:
            UsageError: earlier batches were read with other options.
        """
        self._options = chosen.options
        how = self.how()
        given = {
            _NATIVE_WRITER: how.native_writer if chosen.is_settled else None,
            "--msg-type-map": how.msg_type_map,
            "--charset": how.charset,
            "--otlp-format": how.otlp_format,
        }
        before = self._read_how() or given
        for name, value in given.items():
            is_open = name == _NATIVE_WRITER and None in {value, before.get(name)}
            if before.get(name) != value and not is_open:
                raise UsageError(
                    f"{self._directory} was read with {name} {before.get(name)}: give the same, or another --out"
                )
        writers = {name: (getattr(chosen.options, name), why) for name, why in chosen.reasons.items()}
        self._path_of_how().write_text(json.dumps({**given, _WRITERS: writers}), encoding="utf-8")

    def _path_of_how(self) -> Path:
        return self._directory / _HOW

    def _read_how(self) -> dict[str, Any]:
        path = self._path_of_how()
        return dict(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else {}

    def take_in(self, engine: Engine, session: SparkSession) -> int:
        """Read and keep what is new; return how many batches that made."""
        self._progress("looking for what is new")
        before = self.intake.names()
        files = [apart(srcs)[0] for srcs in (self._options.native, self._options.otlp)]
        srcs = tuple(dict.fromkeys(src for one in files for src in one))
        checkpoint = self._directory / "checkpoint" / _digest(srcs)

        def take(name: str, paths: Sequence[Path]) -> None:
            self._take_files(engine, name, paths)

        self._take_topics(engine)
        each_batch_of_new_files(session, srcs, take, checkpoint=checkpoint, files_per_batch=self._files_per_batch)
        brought = len(set(self.intake.names()) - set(before))
        self.intake.compact()
        return brought

    def _take_topics(self, engine: Engine) -> None:
        """Take in what the topics hold behind the offsets of earlier batches; a killed batch has left none."""
        how = self.how()
        topics = {"native": apart(self._options.native)[1], "otlp": apart(self._options.otlp)[1]}
        taken = self.intake.offsets()
        behind = {side: find_new_ranges(names, how.client_config, taken[side]) for side, names in topics.items()}
        if not any(behind.values()):
            return
        self._progress("reading new messages")
        ends = {(side, one.address, one.partition): one.end for side in topics for one in (*taken[side], *behind[side])}
        name = f"topics-{sum(ends.values()):020d}"
        srcs = {side: [str(address) for address in topics[side]] for side in topics if behind[side]}
        self._read(engine, name, srcs, {side: replace(how, ranges=behind[side]) for side in srcs})

    def _take_files(self, engine: Engine, name: str, paths: Sequence[Path]) -> None:
        known = {
            source
            for batch, sides in self.intake.batches().items()
            if batch != name
            for side in sides.values()
            for source in side.sources
        }
        fresh = frozenset(path for path in (path.resolve() for path in paths) if str(path) not in known)
        how = self.how()
        layout = None if how.otlp_format is None else Layout(how.otlp_format)
        native = source_files(apart(self._options.native)[0], Side.NATIVE, only=fresh)
        otlp = source_files(apart(self._options.otlp)[0], Side.OTLP, layout=layout, only=fresh)
        found = {"native": [str(file.path) for file in native], "otlp": [str(file.path) for file in otlp]}
        srcs = {side: files for side, files in found.items() if files}
        if srcs:
            self._progress(f"reading {len(native) + len(otlp)} new files")
            self._read(engine, name, srcs, dict.fromkeys(srcs, how))

    def _read(
        self,
        engine: Engine,
        name: str,
        srcs: Mapping[str, Sequence[str]],
        how: Mapping[str, ReadOptions],
    ) -> None:
        """Read the sources of each side as batch ``name``."""
        sizes = {path: size_of(path) for paths in srcs.values() for path in paths}
        how = {
            side: name_native_writers(paths, how[side]) if side == "native" else how[side]
            for side, paths in srcs.items()
        }
        incoming = self.intake.incoming(name)
        sides = {
            side: _READERS[side](engine, paths, str(incoming / side), options=how[side]) for side, paths in srcs.items()
        }
        self.intake.take_in(name, sides, sizes={path: size for path, size in sizes.items() if size})


def find_new_ranges(
    addresses: Iterable[TopicAddress], client_config: Mapping[str, str], taken: Iterable[PartitionRange]
) -> tuple[PartitionRange, ...]:
    """Return what the topics hold behind ``taken``, empty ranges left out.

    A range begins where the last one ended even where retention has been faster: what was missed is then counted as
    offsets without a message.

    Raises:
        PeerError: a broker does not answer, has no such topic, or has one that was made anew.
    """
    ends: dict[tuple[TopicAddress, int], int] = {}
    for one in taken:
        ends[one.address, one.partition] = max(one.end, ends.get((one.address, one.partition), 0))
    held = [one for address in addresses for one in topic_ranges(address, client_config)]
    behind = [replace(one, first=_first(one, ends.get((one.address, one.partition)))) for one in held]
    return tuple(one for one in behind if one.first < one.end)


def _first(held: PartitionRange, end: int | None) -> int:
    if end is None:
        return held.first
    if end > held.end:
        raise PeerError(
            f"{held.address} ends at offset {held.end} of partition {held.partition}, before the {end} read already: "
            "it was made anew; begin with another --out"
        )
    return end


def size_of(path: str) -> int:
    """Return the bytes of a file, 0 when it is gone."""
    with suppress(OSError):
        return Path(path).stat().st_size
    return 0


def _digest(srcs: Sequence[str]) -> str:
    return hashlib.sha256("\0".join(srcs).encode()).hexdigest()[:16]
