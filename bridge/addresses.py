"""Parse what users write: addresses of sources and targets, durations, times."""

from __future__ import annotations

import glob
import itertools
import os
import re
import stat
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from enum import Enum
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Final

from bridge.storage.paths import StorePath, as_path
from bridge.storage.stores import SCHEMES, can_use_hadoop, open_store
from otel_mqtrace._clock import LAST_MS
from otel_mqtrace._errors import UsageError
from otel_mqtrace.client_properties import without_password
from otel_mqtrace.landing import IN_PROGRESS_SUFFIX, claim

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from bridge.storage.paths import AnyPath


class NothingThereError(UsageError):
    """A source names no file."""


class Kind(Enum):
    """What a ``SRC`` names; the value is the form that messages show."""

    FILES = "a file, a directory or a glob (a path, or below s3a://, hdfs://, gs://, abfss:// …)"
    KAFKA = "kafka://HOST:PORT[,HOST:PORT]/TOPIC"
    ROCKETMQ = "rocketmq://NAMESRV[;NAMESRV]/TOPIC"
    JAEGER = "jaeger://HOST:PORT?service=NAME"


@dataclass(frozen=True, slots=True)
class Address:
    """One source: ``path`` or URL of files, ``servers`` and ``topic`` of a topic, ``text`` as it was written."""

    kind: Kind
    text: str
    path: str = ""
    servers: str = ""
    topic: str = ""

    def __post_init__(self) -> None:
        """Refuse a port that cannot be: librdkafka would try to connect until its time-out."""
        for port in re.findall(r":(\d+)(?=[,;]|\Z)", self.servers, re.ASCII):
            if not 0 < int(port[:6]) <= _MOST_PORT:  # a longer one is larger
                raise UsageError(f"{without_password(self.text)}: port {port} is not between 1 and {_MOST_PORT}")


_MOST_PORT: Final = 65_535
_TOPICS: Final = {
    Kind.KAFKA: re.compile(r"(?P<servers>[^/@\s]+)/(?P<topic>[A-Za-z0-9._-]{1,249})\Z"),
    Kind.ROCKETMQ: re.compile(r"(?P<servers>[^/@\s]+)/(?P<topic>[^/\s]{1,255})\Z"),
}
_KINDS: Final = {
    "kafka": Kind.KAFKA,
    "rocketmq": Kind.ROCKETMQ,
    "jaeger": Kind.JAEGER,
    **dict.fromkeys(SCHEMES, Kind.FILES),
}
_DIRECTORIES: Final = frozenset({"--landing", "--state", "--out", "--history", "--policy", "--ledger"})
_GLOB_MAGIC: Final = frozenset("*?[")
_HIDDEN: Final = (".", "_")
_IGNORED_SUFFIXES: Final = (".tmp", ".crc", ".gitkeep", ".md")
_IGNORED_NAMES: Final = frozenset({"manifest.jsonl", "manifest.json", "_SUCCESS"})
"""Written beside and renamed by every writer that cares, or not data at all."""


def parse_address(text: str, *, readable: Collection[Kind] = tuple(Kind)) -> Address:
    """Return what ``text`` names.

    Raises:
        UsageError: it is malformed, or of a kind that is not ``readable``; the line names those that are.
    """
    address = _parse(text)
    if address.kind not in readable:
        forms = [each.value for each in Kind if each in readable]
        raise UsageError(f"cannot read {without_password(text)} here; give {' or '.join(forms)}")
    return address


def _parse(text: str) -> Address:
    scheme, colon, rest = text.partition("://")
    refuse_misspelt(text)
    if not colon:
        path = text.removeprefix("files:")
        if not path.strip():
            raise UsageError("the address is empty: write a file, a directory or a topic")
        return Address(Kind.FILES, text, path=path)
    if scheme == "file":
        return Address(Kind.FILES, text, path=str(as_path(text)))
    kind = _KINDS.get(scheme) or (Kind.FILES if can_use_hadoop() else None)  # Hadoop refuses an unknown one later
    if kind is None:
        forms = "; ".join(each.value for each in Kind)
        raise UsageError(f"{without_password(text)}: {scheme}:// is not a known kind of source; there are {forms}")
    if kind not in _TOPICS:
        return Address(kind, text, path=text if kind is Kind.FILES else rest)
    found = _TOPICS[kind].match(rest)
    if found is None:
        secret = ", and the password into the file of --client-config or --kafka-config" if "@" in text else ""
        raise UsageError(f"{without_password(text)} is not a topic: write {kind.value}{secret}")
    return Address(kind, text, servers=found["servers"], topic=found["topic"])


def refuse_misspelt(text: str) -> None:
    """Raise UsageError for ``Kafka://…``, ``kafka:/…`` and the like; ``hdfs:/PATH`` is Hadoop's way to write it."""
    scheme, colon, _ = text.partition("://")
    kind = _KINDS.get(text.partition(":/")[0].lower())
    if kind is not None and scheme not in _KINDS and (colon or kind is not Kind.FILES):
        raise UsageError(f"{without_password(text)} is misspelt: write {kind.value}")


def check_client_config(file: object, sources: Iterable[str]) -> None:
    """Raise UsageError for a --client-config that would be ignored; ``file`` is ``None`` without the option."""
    if file is not None and all(parse_address(each).kind in {Kind.FILES, Kind.JAEGER} for each in sources):
        raise UsageError(f"--client-config {file} is for topics, and none is given: leave it out")


def parse_directory(text: str, *, option: str) -> AnyPath:
    """Return the directory that an option names: a path, ``file://``, or the URL of a store.

    Raises:
        UsageError: nothing, or a URL of another kind.
    """
    if not text.strip():
        raise UsageError(f"{option} is empty: name a directory; . is the working directory")
    scheme, colon, _ = text.partition("://")
    if colon and scheme not in {"file", *SCHEMES} and (scheme in _KINDS or not can_use_hadoop()):
        known = ", ".join(f"{each}://" for each in SCHEMES)
        raise UsageError(f"{option} {without_password(text)}: {scheme}:// is not a store; give a path or {known}")
    place = as_path(text)
    # pyarrow takes a relative path with a colon for a URL
    return place.absolute() if isinstance(place, Path) and ":" in text else place


def check_stores(given: Mapping[str, Collection[object]]) -> None:
    """Open each store that may need Hadoop. ``given`` maps an option to its sources or directories, or ``None``.

    Raises:
        UsageError: it is empty or misspelt, or Hadoop cannot open it; the message names the known kinds.
    """
    for option, values in given.items():
        for value in values:
            text = str(value)
            if not text.strip():
                raise UsageError(f"{option} is empty: name a file, a directory or a topic")
            scheme, colon, rest = text.partition("://")
            if value is None or not colon or scheme == "file" or scheme in _KINDS:
                continue
            refuse_misspelt(text)
            try:
                open_store(scheme, rest.partition("/")[0])
            except UsageError as error:
                others = [] if option in _DIRECTORIES else [f", {each}://" for each in _KINDS if each not in SCHEMES]
                raise UsageError(f"{option} {without_password(text)}: {error}{''.join(others)}") from error


def expand_files(path: str) -> tuple[list[AnyPath], bool]:
    """Return the files behind a path or the URL of a store, sorted and absolute, and whether it names a single one.

    Raises:
        NothingThereError: nothing is there.
        UsageError: the store does not answer, or the path is a device or a pipe: a file is read more than once.
    """
    refuse_device(path)
    if is_pipe(path):
        raise UsageError(f"{path} is a pipe, which can be read only once: write it to a file and name that")
    if _is_output(as_path(path)):
        raise UsageError(f"{path} is the file of standard output, and would grow without end: write to another file")
    try:
        return _expand(path)
    except OSError as error:
        where, why = error.filename or without_password(path), error.strerror or error
        raise UsageError(f"cannot read {where}: {why}") from error


def is_pipe(path: str | AnyPath) -> bool:
    """Return whether a path names a pipe of this machine, as a shell's ``<(…)`` and ``/dev/stdin`` do."""
    place = as_path(path)
    with suppress(OSError):  # such as a name that is too long
        return isinstance(place, Path) and place.is_fifo()
    return False


def _is_output(path: AnyPath) -> bool:
    """Return whether standard output goes to this file; a command that reads it would not end."""
    with suppress(OSError):
        if isinstance(path, Path):
            found = path.stat()
            return stat.S_ISREG(found.st_mode) and os.path.samestat(found, os.fstat(1))
    return False


def refuse_device(path: str) -> None:
    """Raise UsageError for a device, which may have no end, such as ``/dev/zero``; ``/dev/null`` passes."""
    place = as_path(path)
    with suppress(OSError):  # such as a name that is too long
        if isinstance(place, Path) and (place.is_char_device() or place.is_block_device()):
            if place.samefile(os.devnull):
                return
            raise UsageError(f"{path} is a device, which may have no end: write a part of it to a file and name that")


def _expand(path: str) -> tuple[list[AnyPath], bool]:
    named = as_path(path)
    if named.is_dir():
        return data_files(named), False
    if named.exists():
        return [named.resolve()], True
    if _GLOB_MAGIC & set(path):
        check_listable(named)
        files = {file for match in match_paths(named) for file in _files_of(match)}
        if files:
            return sorted(files), False  # ** matches a directory and its files
    raise NothingThereError(f"no such file, directory or match: {path}")


def _files_of(match: AnyPath) -> list[AnyPath]:
    if match.is_dir():
        return data_files(match)
    # to open a pipe would wait for its writer
    return [match.resolve()] if match.is_file() and not _is_output(match) else []


def check_listable(pattern: AnyPath) -> None:
    """Raise OSError for a directory of this machine that a glob cannot look into: ``glob`` would pass over it."""
    parts = pattern.parts if isinstance(pattern, Path) else ()
    begin = next((at for at, part in enumerate(parts) if _GLOB_MAGIC & set(part)), len(parts))
    for end in range(begin, len(parts)):
        for place in glob.glob(f"{Path(*parts[:end])}{os.sep}", recursive=True):  # noqa: PTH207 (any root, one call)
            with suppress(FileNotFoundError):  # removed meanwhile, or nothing of that name
                if _GLOB_MAGIC & set(parts[end]):
                    os.scandir(Path(place)).close()
                else:
                    Path(place, parts[end]).lstat()


def match_paths(pattern: AnyPath) -> list[AnyPath]:
    """Return the files and directories that match a glob, in no order."""
    if isinstance(pattern, Path):
        return [Path(match) for match in glob.glob(str(pattern), recursive=True)]  # noqa: PTH207 (any root, one call)
    fixed = list(itertools.takewhile(lambda part: not _GLOB_MAGIC & set(part), pattern.parts))
    return list(StorePath(*fixed).glob("/".join(pattern.parts[len(fixed) :])))


def root_of(path: str) -> AnyPath:
    """Return the directory that a path of :attr:`Kind.FILES` is in: itself, a file's, or that before a glob's magic."""
    named = as_path(path)
    if named.is_dir():
        return named
    plain = itertools.takewhile(lambda part: not _GLOB_MAGIC & set(part), named.parts[:-1])
    return named.parent if named.is_file() else type(named)(*plain)


def reads_tree(path: str) -> bool:
    """Return whether a path of :attr:`Kind.FILES` reads directories whole, and so what is later written below them.

    One file, or a pattern of file names such as ``*.jsonl``, reads nothing but what it names.
    """
    named = as_path(path)
    is_pattern = bool(_GLOB_MAGIC & set(path))
    return named.is_dir() or (is_pattern and ("**" in named.parts or not named.suffix))


def data_files(directory: AnyPath) -> list[AnyPath]:
    """Return every file below a directory except hidden and half-written ones, manifests, and standard output.

    Raises:
        OSError: the directory, or one below it, cannot be listed.
    """
    found = walk(directory, skipped=_HIDDEN)
    kept = (file for file in found if file.is_file() and not _is_ignored(file.relative_to(directory)))
    return sorted(file.resolve() for file in kept if not _is_output(file))


def find_orphaned_parts(path: str) -> Iterator[AnyPath]:
    """Yield the parts of JSON lines below a path that a killed writer left open and the next one will finish."""
    named = as_path(path)
    if not isinstance(named, Path):  # in a store nothing is written in place
        return
    for place in [named] if named.is_dir() else match_paths(named):
        for file in walk(place, skipped=_HIDDEN):
            if file.match(f".part-*.jsonl{IN_PROGRESS_SUFFIX}"):
                with suppress(OSError), file.open("rb") as part:  # finished meanwhile
                    if part.peek(1) and claim(part):
                        yield file


def walk(directory: AnyPath, *, skipped: tuple[str, ...] = ()) -> Iterator[AnyPath]:
    """Yield the files below ``directory``, but enter no local directory whose name begins with one of ``skipped``.

    Raises:
        OSError: a directory cannot be listed; ``Path.rglob`` would pass over it.
    """
    if not isinstance(directory, Path):
        yield from directory.rglob("*")
        return
    for parent, below, names in os.walk(directory, onerror=_raise):
        below[:] = [name for name in below if not name.startswith(skipped)]
        yield from (Path(parent, name) for name in names)


def _raise(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):  # removed meanwhile
        raise error


def _is_ignored(relative: PurePath) -> bool:
    hidden = any(part.startswith(_HIDDEN) for part in relative.parts)
    return hidden or relative.name in _IGNORED_NAMES or relative.name.endswith(_IGNORED_SUFFIXES)


UNIT_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_LONGEST_MS: Final = 36_500 * UNIT_MS["d"]
_DURATION: Final = re.compile(r"(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>ms|s|m|h|d)?", re.ASCII)
_AGO: Final = re.compile(r"(?P<number>\d{1,9})(?P<unit>[smhd])", re.ASCII)
_WHOLE_NUMBER: Final = re.compile(r"-?\d+", re.ASCII)
_MOST_DIGITS: Final = 15  # those of LAST_MS


def parse_duration_ms(text: str, *, name: str) -> int:
    """Parse ``60s``, ``5m``, ``1.5h``, ``250ms`` or ``0`` (a plain number means seconds), at most ``36500d``.

    Raises:
        UsageError: the duration is invalid or longer; the line names the option.
    """
    found = _DURATION.fullmatch(text.strip())
    if not found:
        raise UsageError(
            f"{name}: invalid duration '{text}': use for example 60s, 5m, 250ms or 2d (a plain number means seconds)"
        )
    wanted_ms = float(found["number"]) * UNIT_MS[found["unit"] or "s"]
    if wanted_ms > _LONGEST_MS:
        raise UsageError(f"{name}: duration '{text}' is longer than a hundred years; write at most 36500d")
    return round(wanted_ms)


def parse_instant_ms(text: str, *, name: str, now_ms: int | None = None) -> int:
    """Parse epoch milliseconds or ISO 8601 (UTC unless it names an offset), from 1970 to 9999.

    With ``now_ms`` also the time that a number of seconds, minutes, hours or days ago was, as in ``15m``.

    Raises:
        UsageError: it has another form, or is out of that range; the line names the option.
    """
    if now_ms is not None and (ago := _AGO.fullmatch(text)):
        return max(now_ms - int(ago["number"]) * UNIT_MS[ago["unit"]], 0)
    if _WHOLE_NUMBER.fullmatch(text):
        instant_ms = int(text) if len(text) <= _MOST_DIGITS else -1
    else:
        try:
            instant = datetime.fromisoformat(text.replace("Z", "+00:00"))
        except ValueError as error:
            forms = "2026-11-21T09:30:00Z or epoch milliseconds" + ("" if now_ms is None else ", or 15m, 2h, 3d (ago)")
            raise UsageError(f"{name}: invalid time '{text}': use {forms}") from error
        aware = instant if instant.tzinfo else instant.replace(tzinfo=timezone.utc)
        instant_ms = round(aware.timestamp() * 1000)
    if not 0 <= instant_ms <= LAST_MS:
        raise UsageError(f"{name} '{text}' is not between the years 1970 and 9999")
    return instant_ms
