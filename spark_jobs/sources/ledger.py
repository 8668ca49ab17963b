"""Read ledgers of losses: the JSON of mqtrace, Prometheus text, OTLP metrics."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from bridge.addresses import check_listable, is_pipe, match_paths, parse_directory, walk
from bridge.codec.framing import text_of_json
from bridge.storage.paths import refuse_compressed, refuse_unconverted
from otel_mqtrace._clock import LAST_MS, NS_PER_MS
from otel_mqtrace._errors import UnreadableInputError, UsageError
from spark_jobs.schemas import CountedDrop
from spark_jobs.sources.loss_counters import Point, count_unusable, drops_of, increments, series

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from bridge.storage.paths import AnyPath
    from spark_jobs.schemas import LedgerRead

MOST_BYTES: Final = 64 << 20
"""A larger file is not a ledger: ours have at most a few megabytes."""
MOST_ROWS: Final = 200_000
"""More rows than that are refused: the budget is kept in memory."""

_GIVE: Final = "give a ledger of mqtrace, OTLP metrics as JSON lines, or what a /metrics endpoint answers"
_VERSION: Final = 1
_SIDES: Final = ("native", "otlp")
_OWN_NAME: Final = re.compile(r"ledger-.+-(\d+)-[0-9a-f]{8}\.json")
_IGNORED_SUFFIXES: Final = (".part", ".tmp", ".md")
_OF_START: Final = " start"
_LOW_16: Final = 0xFFFF
_MOST_COUNT: Final = 1 << 53
_OTHER_SIGNALS: Final = frozenset({"resourceSpans", "resourceLogs"})


def read_ledgers(srcs: Sequence[str]) -> LedgerRead:
    """Read files, directories and globs; a file that is reached twice counts once.

    Raises:
        UsageError: a source names nothing, or the rows are too many.
        UnreadableInputError: a named file is not a ledger, or a ledger is damaged; the message names the line.
    """
    paths: dict[AnyPath, bool] = {}
    for src in srcs:
        try:
            for path, named in _expand(src):
                paths[path] = paths.get(path, False) or named
        except OSError as error:
            raise UsageError(f"--ledger {error.filename or src} cannot be read: {error.strerror or error}") from error
    files, drops, points = [], [], []
    for path, named in paths.items():
        try:
            found = _read(path)
        except _NotALedgerError:
            if named:
                raise
            continue
        files.append(str(path))
        drops += found[0]
        points += found[1]
    read = drops_of(increments(points))
    drops += read.drops
    if len(drops) > MOST_ROWS:
        raise UsageError(f"--ledger: {len(drops)} rows are too many; give those of the window, at most {MOST_ROWS}")
    return replace(read, files=tuple(files), drops=tuple(drops), unusable=count_unusable(points))


def _expand(src: str) -> Iterator[tuple[AnyPath, bool]]:
    path = parse_directory(src, option="--ledger")
    if path.is_dir():
        yield from ((file, False) for file in _files(path))
    elif path.exists():
        yield (path if is_pipe(path) else path.resolve()), True  # as --ledger <(curl …/metrics)
    else:
        check_listable(path)
        matches = sorted(match_paths(path))
        if not matches:
            raise UsageError(
                f"--ledger {src}: no such file, directory or match; name the directory itself where a process that "
                "lost nothing may have written no file"
            )
        for match in matches:
            yield from ((file, False) for file in (_files(match) if match.is_dir() else [match.resolve()]))


def _files(directory: AnyPath) -> list[AnyPath]:
    return sorted(
        file.resolve()
        for file in walk(directory)
        if file.is_file() and not file.name.startswith((".", "_")) and not file.name.endswith(_IGNORED_SUFFIXES)
    )


class _NotALedgerError(UnreadableInputError):
    """The file holds something else: an error where it was named, skipped where its directory was."""


def _read(path: AnyPath) -> tuple[list[CountedDrop], list[Point]]:
    """Return a file's rows and points."""
    text = _text(path)
    if is_prometheus_text(text):
        return [], list(prometheus_points(text, str(path)))
    drops: list[CountedDrop] = []
    points: list[Point] = []
    is_known = False
    for place, document in _documents(text, str(path)):
        if "ledger_version" in document:
            drops += _rows(document, path, place)
        elif "resourceMetrics" in document:
            points += _points(document, place)
        elif not _OTHER_SIGNALS & set(document):
            raise _NotALedgerError(f"--ledger {place} is neither a ledger of mqtrace nor OTLP metrics")
        else:
            continue
        is_known = True
    if not is_known:
        raise _NotALedgerError(f"--ledger {path} holds no metrics and no ledger: give it to --otlp if it is spans")
    return drops, points


def _text(path: AnyPath) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
        if len(content) > MOST_BYTES:
            raise UsageError(f"--ledger {path} is larger than {MOST_BYTES >> 20} MiB; give the window's part of it")
        refuse_compressed(content, f"--ledger {path}")
        try:
            refuse_unconverted(content, f"--ledger {path}")
        except UnreadableInputError as error:
            raise _NotALedgerError(str(error)) from error
        return content.decode("utf-8-sig")
    except OSError as error:
        raise UsageError(f"--ledger {path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise _NotALedgerError(f"--ledger {path} is not text: {error.reason} at byte {error.start}") from error


def _documents(text: str, where: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the JSON objects of a file with their places: the whole file, or one a line; the last may be torn."""
    try:
        whole = json.loads(text)
    except (ValueError, RecursionError):
        yield from _lines(text, where)
    else:
        yield where, whole


def _lines(text: str, where: str) -> Iterator[tuple[str, dict[str, Any]]]:
    lines = text.split("\n")  # other separators of lines may stand in a JSON text as they are
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            document = json.loads(line)
        except (ValueError, RecursionError) as error:
            if number == len(lines) > 1:
                return  # its writer was stopped in the middle
            raise UnreadableInputError(f"--ledger {where}: line {number} is not JSON; {_GIVE}") from error
        if not isinstance(document, dict):
            raise UnreadableInputError(f"--ledger {where}: line {number} is not a JSON object")
        yield f"{where}: line {number}", document


def _rows(document: dict[str, Any], path: AnyPath, place: str) -> Iterable[CountedDrop]:
    version = document["ledger_version"]
    if version != _VERSION or isinstance(version, bool):
        raise UnreadableInputError(
            f"--ledger {place}: ledger_version {version!r} is unknown; this release reads {_VERSION}"
        )
    rows = document.get("rows")
    if not isinstance(rows, list):
        raise UnreadableInputError(f"--ledger {place}: 'rows' is not a list")
    own = _OWN_NAME.fullmatch(path.name)
    process = f"{int(own[1]) & _LOW_16:04X}" if own else None
    drops = [_row(row, f"{place}: row {number}", process) for number, row in enumerate(rows, start=1)]
    return [drop for drop in drops if drop.count]


def _row(row: Any, place: str, process: str | None) -> CountedDrop:
    if not isinstance(row, dict):
        raise UnreadableInputError(f"--ledger {place} is not a JSON object")
    if row.get("side") not in _SIDES:
        raise UnreadableInputError(
            f"--ledger {place}: side {row.get('side')!r} must be native or otlp, the one that lost"
        )
    start_ms = _whole(row, "bucket_start_ms", place, optional=True, most=LAST_MS)
    width_ms = _whole(row, "bucket_ms", place, optional=True, most=LAST_MS)
    bucketed = bool(start_ms) and bool(width_ms)  # the bucket of time 0 stands for "some time" in our own ledger
    return CountedDrop(
        side=row["side"],
        component=_name(row, "component", place) or "unknown",
        cause=_name(row, "cause", place) or "unknown",
        count=_whole(row, "count", place) or 0,
        service=_name(row, "service", place),
        instance=_name(row, "instance", place),
        group=_name(row, "group", place),
        process=process,
        bucket_start_ms=start_ms if bucketed else None,
        bucket_ms=width_ms if bucketed else None,
        of_start=(row.get("component") or "").endswith(_OF_START),
    )


def _whole(
    row: dict[str, Any], name: str, place: str, *, optional: bool = False, most: int = _MOST_COUNT
) -> int | None:
    value = row.get(name)
    if value is None and optional:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
        raise UnreadableInputError(f"--ledger {place}: {name} {value!r} is not a whole number from 0 to {most}")
    return value


def _name(row: dict[str, Any], name: str, place: str) -> str | None:
    value = row.get(name)
    if value is not None and not isinstance(value, str):
        raise UnreadableInputError(f"--ledger {place}: {name} {value!r} is not text")
    return text_of_json(value) or None


_DELTA: Final = frozenset({1, "1", "AGGREGATION_TEMPORALITY_DELTA"})
_NO_VALUE: Final = 1  # DataPointFlags


def _points(document: Mapping[str, Any], place: str) -> list[Point]:
    """Return the points of the sums in one ``resourceMetrics`` object, without other metrics and points of no value."""
    points: list[Point] = []
    try:
        for resource_metrics in document["resourceMetrics"]:
            resource = _attributes((resource_metrics.get("resource") or {}).get("attributes"))
            for scope_metrics in resource_metrics.get("scopeMetrics") or ():
                for metric in scope_metrics.get("metrics") or ():
                    points += _sum_points(metric, resource)
    except (ValueError, TypeError, AttributeError, KeyError, OverflowError) as error:
        raise UnreadableInputError(f"--ledger {place} is not shaped as OTLP metrics are: {error!r}") from error
    return points


def _sum_points(metric: Mapping[str, Any], resource: Mapping[str, str]) -> Iterator[Point]:
    counted = metric.get("sum")
    if not counted:
        return
    delta = counted.get("aggregationTemporality") in _DELTA
    for point in counted.get("dataPoints") or ():
        value = _value(point)
        if value is not None:
            key = series(str(metric["name"]), _attributes(point.get("attributes")), resource)
            yield Point(key, value, _ms(point.get("startTimeUnixNano")), _ms(point.get("timeUnixNano")), delta)


def _value(point: Mapping[str, Any]) -> float | None:
    text = point.get("asInt", point.get("asDouble"))
    if text is None or int(point.get("flags") or 0) & _NO_VALUE:
        return None
    if isinstance(text, bool):
        raise TypeError(text)
    return _count(float(text))


def _count(value: float) -> float:
    return value if 0 <= value <= _MOST_COUNT else math.nan


def _ms(text: Any) -> int | None:
    instant_ms = int(text or 0) // NS_PER_MS
    return instant_ms if 0 < instant_ms <= LAST_MS else None


def _attributes(pairs: Any) -> dict[str, str]:
    found = {}
    for pair in pairs or ():
        value = pair.get("value") or {}
        if value:
            found[str(pair["key"])] = text_of_json(next(iter(value.values()))) or ""
    return found


_QUOTED_FIRST: Final = re.compile(r'\{\s*"(?:[^"\\]|\\.)*"\s*[,}]')
_EXEMPLAR: Final = re.compile(r'((?:[^"#]|"(?:[^"\\]|\\.)*")*)#.*')
_NOT_IN_NAMES: Final = re.compile(r"[^A-Za-z0-9_.:]")
_WORDS: Final = 2  # behind name and labels: the value, and perhaps a time
_TARGET: Final = "target_info"
_WHERE: Final = ("job", "instance")
_LEAST_MS: Final = 100_000_000_000  # a smaller time is in seconds: 1973 in milliseconds, the year 5138 in seconds


def is_prometheus_text(text: str) -> bool:
    """Return whether the text holds samples rather than JSON objects, by its first token."""
    start = text.lstrip()
    return not start.startswith("{") or bool(_QUOTED_FIRST.match(start))


def prometheus_points(text: str, where: str) -> Iterator[Point]:
    """Yield every sample of ``text`` as a cumulative point; ``target_info`` gives the samples of its target a resource.

    Raises:
        UnreadableInputError: a line is not a sample; ``where`` is the file's name in the message.
    """
    samples = list(_samples(text, where))
    targets = {_target(labels): labels for name, labels, _, _ in samples if name == _TARGET}
    lone = next(iter(targets.values())) if len(targets) == 1 else {}
    for name, labels, value, at_ms in samples:
        if name != _TARGET:
            yield Point(series(name, labels, targets.get(_target(labels), lone)), _count(float(value)), None, at_ms)


def _target(labels: Mapping[str, str]) -> tuple[str | None, ...]:
    return tuple(labels.get(name) for name in _WHERE)


def _samples(text: str, where: str) -> Iterator[tuple[str, dict[str, str], float, int | None]]:
    for number, line in enumerate(text.split("\n"), start=1):
        bare = line.strip()
        if not bare or bare.startswith("#"):
            continue
        try:
            yield _sample(bare)
        except (ValueError, IndexError, OverflowError):
            raise _NotALedgerError(
                f"--ledger {where}: line {number} is not a sample of Prometheus text; {_GIVE}"
            ) from None


def _sample(line: str) -> tuple[str, dict[str, str], float, int | None]:
    from prometheus_client.parser import text_string_to_metric_families  # noqa: PLC0415 - 70 ms, of runs with a ledger

    # prometheus_client takes an exemplar's value, and the last of many numbers, for the time
    exemplar = _EXEMPLAR.fullmatch(line)
    plain = exemplar[1] if exemplar else line
    _, closed, numbers = plain.rpartition("}")
    if len(numbers.split()) > _WORDS + (not closed):
        raise ValueError(line)
    ((sample,),) = (family.samples for family in text_string_to_metric_families(plain))
    return _NOT_IN_NAMES.sub("_", sample.name), sample.labels, sample.value, _at_ms(sample.timestamp)


def _at_ms(thousandths: object) -> int | None:
    """Return epoch milliseconds; ``prometheus_client`` has divided the number of the text by 1000."""
    if thousandths is None:
        return None
    instant = float(str(thousandths)) * 1000
    if not math.isfinite(instant):
        raise ValueError(thousandths)
    return round(instant if instant >= _LEAST_MS else instant * 1000)
