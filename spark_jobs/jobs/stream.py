"""Reconcile again and again: ingest what is new, then judge everything as one batch.

Readers, normalisers and judge are those of the batch run. What was ingested stays under ``out / "stream"``, with the
names of the files it came from: a killed run continues where it was, and the next run reads only what is new.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

from bridge.addresses import NothingThereError, expand_files, parse_address
from bridge.otlp.detect import Layout, Side
from bridge.page.wording import plural
from bridge.storage.locks import hold
from bridge.storage.paths import as_path, replace_text
from otel_mqtrace._clock import pause
from otel_mqtrace._errors import PeerError, UnreadableInputError, UsageError, describe_damage
from spark_jobs.jobs.batch import conclude, reconcile
from spark_jobs.jobs.ingested import Batch, Ingested, survey_again
from spark_jobs.jobs.options import check_options, choose, no_progress, no_report
from spark_jobs.jobs.reading import read_side
from spark_jobs.jobs.workspace import open_engine, open_workspace, start_spark
from spark_jobs.jobs.writers import name_native_writers
from spark_jobs.session import is_connect, mute_interrupted_calls
from spark_jobs.sources.files import PassedOver, SourceSet, find_unknown, source_files
from spark_jobs.sources.kafka import split_topics, topic_ranges
from spark_jobs.sources.ledger import read_ledgers
from spark_jobs.taxonomy import ExitCode, Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from bridge.addresses import Address
    from bridge.storage.paths import AnyPath
    from spark_jobs.exchange.engine import Engine
    from spark_jobs.jobs.options import Chosen, ReconcileOptions, Report
    from spark_jobs.jobs.reading import ReadOptions
    from spark_jobs.jobs.workspace import Workspace
    from spark_jobs.policy.policy import Policy
    from spark_jobs.report.result import Result
    from spark_jobs.sources.kafka import PartitionRange

FILES_PER_BATCH: Final = 1_000
"""Files in one batch: what a killed run reads again."""

_STREAM: Final = "stream"  # the directory under ``out``
_MS_PER_S: Final = 1_000
_HOW: Final = "how.json"
_WRITERS: Final = "writers"
_NATIVE_WRITER: Final = "--native-writer"


def run(  # noqa: PLR0913 - those of a batch run, and the rhythm
    options: ReconcileOptions,
    *,
    every_ms: int | None = None,
    progress: Callable[[str], None] = no_progress,
    report: Report = no_report,
    wait: Callable[[float], None] = pause,
    files_per_batch: int = FILES_PER_BATCH,
) -> Result:
    """Ingest new input, judge everything and report, once or until interrupted. Return the last result.

    ``every_ms`` is the pause between two rounds; ``None`` is a single round. Without new data only the first is
    reported. ``report`` is that of a batch run; ``files_per_batch`` limits a batch.

    Raises:
        UsageError, UnreadableInputError, MissingExtraError, PeerError: as in a batch run.
        KeyboardInterrupt: interrupted before the first report, or in a single round.
    """
    if every_ms is not None and every_ms < _MS_PER_S:
        raise UsageError("--every is less than a second: write at least 1s")
    ingest = Ingest(options, files_per_batch=files_per_batch, progress=progress)
    chosen = check_options(options, ingest.known_writers, stream=True)
    last: Result | None = None
    with hold(options.out / _STREAM, name="--out") as check_held:
        ingest.use(chosen)
        try:
            with mute_interrupted_calls():
                session = start_spark(options, progress)
                if is_connect(session):
                    raise UsageError("--stream cannot run on Spark Connect: give another --master")
            opener = partial(open_engine, "spark", options, spark=session, progress=progress)
            while True:
                check_held()
                if not chosen.is_settled:
                    with suppress(NothingThereError):  # moved away since the start
                        chosen = choose(options, ingest.known_writers())
                        ingest.use(chosen)
                with opener() as engine:
                    has_new = ingest.ingest(engine)
                if has_new or last is None:
                    with open_workspace(options.out, options.history, opener) as workspace:
                        last = _judge(workspace, ingest, chosen, progress=progress, report=report)
                if every_ms is None:
                    return last
                progress("waiting for what is new")
                wait(every_ms / _MS_PER_S)
        except KeyboardInterrupt:
            if every_ms is None or last is None:
                raise
            return last


def _judge(
    workspace: Workspace, ingest: Ingest, chosen: Chosen, *, progress: Callable[[str], None], report: Report
) -> Result:
    """Judge everything ingested as a batch run would, report it and commit it to the history."""
    native, spans = ingest.ingested.total().sides.values()
    options, policy, dropped_until_ms = chosen.options, chosen.policy, ingest.ingested.dropped_until_ms()
    next_round = begin_behind_dropped(policy, ingest.ingested.dropped_until_ms(policy.forget_after_ms))
    result = reconcile(
        workspace,
        (native, survey_again(workspace.engine, spans, native.trace_topics)),
        begin_behind_dropped(policy, dropped_until_ms),
        progress=progress,
        ledger=read_ledgers(options.ledger) if options.ledger else None,
        trace_topics=native.trace_topics,
        # a history elsewhere may be of runs with other input
        has_earlier_input=dropped_until_ms is None and options.history == options.out / "history",
        read_again_from_ms=next_round.begin_ms or 0,
    )
    result = replace(_doubt_grown_files(result, ingest), unknown_files=ingest.unknown)
    result = conclude(workspace, result, report, out=options.out)
    ingest.ingested.drop_older(policy.forget_after_ms)  # the history has what is open of it
    return result


def begin_behind_dropped(policy: Policy, dropped_until_ms: int | None) -> Policy:
    """Return the policy with a window that begins the grace after the last event of any dropped batch.

    The records of an event may have come in two batches, of which one is left, and so may a delivery and its send.
    """
    if dropped_until_ms is None:
        return policy
    begin_ms = 1 + dropped_until_ms + max(policy.grace_ms, policy.start_tolerance_ms)
    return replace(policy, begin_ms=max(begin_ms, policy.begin_ms or 0))


def _doubt_grown_files(result: Result, ingest: Ingest) -> Result:
    """Make a result inconclusive if a file has grown since it was read: the stream does not read it again."""
    grown = ingest.find_grown()
    if not grown or not result.conservation.holds:
        return result
    more = f" and {len(grown) - 1} more files have" if len(grown) > 1 else " has"
    doubt = (
        f"{grown[0]}{more} grown since it was read: a stream reads a file once, when it is complete; "
        "give it only files that are renamed into place or rotated, and start with another --out"
    )
    return replace(result, doubt=doubt, verdict=Verdict.INCONCLUSIVE.value, exit_code=int(ExitCode.INCONCLUSIVE))


# -- ingest ------------------------------------------------------------------------------------------------------------
class Ingest:
    """One stream over the sources of ``options``; at most ``files_per_batch`` files make one batch."""

    def __init__(self, options: ReconcileOptions, *, files_per_batch: int, progress: Callable[[str], None]) -> None:
        self._options = options
        self._files_per_batch = files_per_batch
        self._progress = progress
        self._directory = options.out / _STREAM
        self._how = self._directory / _HOW
        named = {"native": split_topics(options.native), "otlp": split_topics(options.otlp)}
        self._srcs = {side: files for side, (files, _) in named.items()}
        self._topics = {side: addresses for side, (_, addresses) in named.items()}
        self._passed_over: set[str] = set()
        self.unknown: frozenset[str] = frozenset()
        self._listed: dict[str, AnyPath] = {}
        self.ingested = Ingested(self._directory / "events")

    def known_writers(self) -> dict[str, tuple[str, str]]:
        """Return the writers that earlier batches showed, as :func:`spark_jobs.jobs.options.choose` takes them."""
        return dict(self._read_how().get(_WRITERS, {}))

    def use(self, chosen: Chosen) -> None:
        """Read with these options from now on.

        Raises:
            UsageError: earlier batches were read with other options.
        """
        self._options = chosen.options
        how = chosen.options.reading
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
        replace_text(self._how, json.dumps({**given, _WRITERS: writers}))

    def _read_how(self) -> dict[str, Any]:
        try:
            how = {**json.loads(self._how.read_text(encoding="utf-8"))} if self._how.exists() else {}
            writers = {name: (value, why) for name, (value, why) in how.get(_WRITERS, {}).items()}
            if not all(isinstance(each, str) for pair in writers.values() for each in pair):
                raise TypeError("a writer that is no text")  # noqa: TRY301 - as the other kinds of damage
        except (ValueError, TypeError, AttributeError, RecursionError) as error:
            why = describe_damage(error)
            raise UnreadableInputError(
                f"{self._how} cannot be read: {why}; remove the directory stream to read everything again"
            ) from error
        return how and {**how, _WRITERS: writers}

    def ingest(self, engine: Engine) -> int:
        """Read and keep what is new, topics first; return the number of new batches."""
        self._progress("looking for what is new")
        self.ingested.remove_unlisted()
        before = self.ingested.batches()
        self._read_topics(engine)
        found, is_complete = find_files(dict.fromkeys(chain(*self._srcs.values())))
        self._listed = {str(path): path for path in found}
        if is_complete:
            self.ingested.forget_files(self._listed)
            self._passed_over.intersection_update(self._listed)
            self.unknown = self.unknown.intersection(self._listed)
        read = self.ingested.total_read().values()
        known = self._passed_over.union(*(side.sources for side in read))
        new = [path for name, path in self._listed.items() if name not in known]
        for begin in range(0, len(new), self._files_per_batch):
            self._read_files(engine, new[begin : begin + self._files_per_batch])
        count = len(self.ingested.batches().keys() - before)
        self.ingested.compact()
        return count

    def find_grown(self) -> list[str]:
        """Return the files that have grown since they were read; the size of an object comes from its listing."""
        sizes = self.ingested.total().sizes
        return [path for path, size in sizes.items() if (_size_of(self._listed.get(path, path)) or 0) > size]

    def _read_topics(self, engine: Engine) -> None:
        """Read the topics behind the offsets of earlier batches; a killed batch has left none."""
        how, taken = self._options.reading, self.ingested.total_read()
        held = {
            side: {address: topic_ranges(address, how.client_config) for address in addresses}
            for side, addresses in self._topics.items()
        }
        behind = {
            side: {address: find_new_ranges(ranges, taken[side].offsets) for address, ranges in topics.items()}
            for side, topics in held.items()
        }
        inputs = {side: SourceSet(topics=topics) for side, topics in behind.items() if any(topics.values())}
        if inputs:
            self._progress("reading new messages")
            how = name_native_writers(SourceSet(topics=held["native"]), how)
            self._read(engine, "topics", inputs, how)

    def _read_files(self, engine: Engine, paths: Sequence[AnyPath]) -> None:
        """Read files as one batch, without those that were removed after they had been listed."""
        try:
            self._read_batch(engine, paths)
        except Exception:  # Spark wraps what its tasks raise
            left = [path for path in paths if as_path(str(path)).exists()]
            if len(left) == len(paths):
                raise
            self._read_files(engine, left)

    def _read_batch(self, engine: Engine, paths: Sequence[AnyPath]) -> None:
        fresh = frozenset(paths)
        how = self._options.reading
        layout = None if how.otlp_format is None else Layout(how.otlp_format)
        others: list[PassedOver] = []
        native = source_files(self._srcs["native"], Side.NATIVE, only=fresh, passed_over=others)
        otlp = source_files(self._srcs["otlp"], Side.OTLP, layout=layout, only=fresh, passed_over=others)
        inputs = {side: SourceSet(files) for side, files in (("native", native), ("otlp", otlp)) if files}
        if inputs:
            self._progress(f"reading {plural(len(native) + len(otlp), 'new file')}")
            self._read(engine, "files", inputs, name_native_writers(SourceSet(native), how))
        self._passed_over |= {str(path) for path in paths}  # files of neither side are read once
        self.unknown |= find_unknown(others)

    def _read(self, engine: Engine, kind: str, inputs: Mapping[str, SourceSet], how: ReadOptions) -> None:
        files = [str(file.path) for given in inputs.values() for file in given.files]
        sizes = {path: size for path in files if (size := _size_of(path)) is not None}
        name = self.ingested.make_batch(kind)
        sides = {
            side: read_side(engine, Side(side), given, str(self.ingested.place(name) / side), options=how)
            for side, given in inputs.items()
        }
        self.ingested.commit(name, Batch(sides, sizes))


def find_new_ranges(held: Iterable[PartitionRange], taken: Iterable[PartitionRange]) -> tuple[PartitionRange, ...]:
    """Return the ranges of what a topic holds behind ``taken``, without empty ones.

    A range begins where the last one ended. Offsets that expired meanwhile count as offsets without a message.

    Raises:
        PeerError: the topic was created again.
    """
    ends: dict[tuple[Address, int], int] = {}
    for one in taken:
        ends[one.address, one.partition] = max(one.end, ends.get((one.address, one.partition), 0))
    behind = [replace(one, first=_first(one, ends.get((one.address, one.partition)))) for one in held]
    return tuple(one for one in behind if one.first < one.end)


def _first(held: PartitionRange, end: int | None) -> int:
    if end is None:
        return held.first
    if end > held.end:
        raise PeerError(
            f"{held.address.text} ends at offset {held.end} of partition {held.partition}, but {end} were read before: "
            "the topic was created again; use another --out"
        )
    return end


def _size_of(path: str | AnyPath) -> int | None:
    with suppress(OSError):
        return as_path(path).stat().st_size
    return None


def find_files(srcs: Iterable[str]) -> tuple[list[AnyPath], bool]:
    """Return the files behind ``srcs``, sorted, each once, and whether there was something behind each of them."""
    found: set[AnyPath] = set()
    is_complete = True
    for src in srcs:
        try:
            found.update(expand_files(parse_address(src).path)[0])
        except NothingThereError:  # moved away since the start
            is_complete = False
    return sorted(found), is_complete
