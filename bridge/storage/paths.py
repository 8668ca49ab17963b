"""Paths of stores, with the part of ``pathlib.Path`` that the project uses, and files written whole or not at all."""

from __future__ import annotations

import codecs
import io
import json
import os
import re
import secrets
import shutil
import tempfile
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from bridge.storage.stores import Store, open_store
from otel_mqtrace._errors import UnreadableInputError, UsageError
from otel_mqtrace.landing import sync_path

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence


_URL: Final = re.compile(r"^([a-z][a-z0-9+.-]+):/{1,2}")
_NO_HOST: Final = "-"  # stands in paths where hdfs:/// has none: a PurePath would join the slashes
_BLOCK_BYTES: Final = 256 << 10
_COPIES: Final = 8  # requests at a time
PARQUET_MAGIC: Final = b"PAR1"
ZSTD_MAGIC: Final = b"\x28\xb5\x2f\xfd"
_COMPRESSED: Final = (
    (b"\x1f\x8b", "gzip", "gunzip"),
    (b"BZh", "bzip2", "bunzip2"),
    (b"\xfd7zXZ\x00", "xz", "unxz"),
    (b"\x04\x22\x4d\x18", "lz4", "unlz4"),
    (ZSTD_MAGIC, "zstd", "unzstd"),
)
_TO_CONVERT: Final = {
    b"PK\x03\x04": "a zip archive: unpack it first (unzip)",
    **dict.fromkeys(
        (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE), "UTF-16 text: convert it first (iconv -f UTF-16 -t UTF-8)"
    ),
}


class InaccessibleInputError(UnreadableInputError):
    """A file that cannot be read as it is: never passed over, whatever it may hold."""


class DamagedInputError(UnreadableInputError):
    """A damaged Parquet file, whose native messages cannot be counted."""


class _Status(NamedTuple):
    st_size: int
    st_mtime_ns: int


class StorePath(PurePosixPath):
    """A file or directory in a store; its text is its URL. Errors are ``OSError`` with a one-line ``strerror``."""

    def __str__(self) -> str:
        url = _URL.sub(r"\1://", super().__str__(), count=1)  # a PurePath joins slashes
        return re.sub(rf"://{_NO_HOST}(/|$)", ":///", url, count=1)

    def absolute(self) -> StorePath:
        """Return this."""
        return self

    def resolve(self) -> StorePath:
        """Return this."""
        return self

    @property
    def parents(self) -> Sequence[StorePath]:
        """The directories above this, up to the bucket or host."""
        return super().parents[:-2]  # those of a URL's text go on to its scheme and to nothing

    # -- in the store -------------------------------------------------------------------------------------------
    @property
    def store(self) -> Store:
        """The store that this lies in."""
        scheme, _, rest = str(self).partition("://")
        return open_store(scheme, rest.partition("/")[0])

    @property
    def key(self) -> str:
        """The path as the store's file system takes it."""
        below = str(self).partition("://")[2].partition("/")[2]
        return f"{self.store.prefix}/{below}".rstrip("/") or "/"

    listed: Any = None
    """The file information of a path that a listing made."""

    @property
    def _info(self) -> Any:
        if self.listed is not None:
            return self.listed
        with _as_os_error(self):
            return self.store.files.get_file_info(self.key)

    def _is(self, kind: str) -> bool:
        return bool(self._info.type.name == kind)

    def exists(self) -> bool:
        """Return whether there is such a file or directory."""
        return not self._is("NotFound")

    def is_file(self) -> bool:
        """Return whether there is such a file."""
        return self._is("File")

    def is_dir(self) -> bool:
        """Return whether there is such a directory; in an object store: whether anything lies below it."""
        return self._is("Directory")

    def stat(self) -> _Status:
        """Return size and time of modification.

        Raises:
            FileNotFoundError: the file or directory does not exist.
        """
        info = self._info
        if info.type.name == "NotFound":
            raise FileNotFoundError(2, "no such file", str(self))
        return _Status(info.size or 0, info.mtime_ns or 0)

    def _below(self, *, recursive: bool) -> Iterator[StorePath]:
        from pyarrow.fs import FileInfo, FileSelector, FileType  # noqa: PLC0415  (optional extra)

        lists = self.store.lists_directories
        selector = FileSelector(self.key, recursive=recursive or not lists, allow_not_found=True)
        with _as_os_error(self):
            found = {info.path: info for info in self.store.files.get_file_info(selector)}
        if not lists:
            above = {
                str(each) for path in found for each in PurePosixPath(path).parents if len(str(each)) > len(self.key)
            }
            found |= {path: FileInfo(path, FileType.Directory) for path in above - found.keys()}
        for key, info in sorted(found.items()):
            below = key.removeprefix(self.key).lstrip("/")
            if not recursive and "/" in below:
                continue
            path = self / below
            path.listed = info
            yield path

    def iterdir(self) -> Iterator[StorePath]:
        """Yield what lies right below this."""
        return self._below(recursive=False)

    def rglob(self, pattern: str) -> Iterator[StorePath]:
        """Yield everything below this whose name matches ``pattern``."""
        return self.glob(f"**/{pattern}")

    def glob(self, pattern: str) -> Iterator[StorePath]:
        """Yield what lies below this and matches ``pattern``: ``*``, ``?``, ``[…]`` and ``**`` as in a shell."""
        matches = re.compile(glob_expression(pattern))
        for path in self._below(recursive="/" in pattern):
            if matches.fullmatch(path.relative_to(self).as_posix()):
                yield path

    def open(
        self,
        mode: str = "rb",
        buffering: int = -1,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
    ) -> Any:
        """Open for reading, anywhere in the file: ``buffering`` bytes are read at a time."""
        from bridge.storage.ranged_files import RangedFile  # noqa: PLC0415  (needs pyarrow)

        with _as_os_error(self):
            native = self.store.files.open_input_file(self.key)
            raw = RangedFile(native.read_at, native.size(), native.close)
        stream = io.BufferedReader(raw, _BLOCK_BYTES if buffering < 1 else buffering)
        return stream if "b" in mode else io.TextIOWrapper(stream, encoding or "utf-8", errors, newline)

    def read_bytes(self) -> bytes:
        """Return the content of the file."""
        with _as_os_error(self), self.store.files.open_input_stream(self.key, compression=None) as file:
            return bytes(file.read())

    def read_text(self, encoding: str = "utf-8", errors: str | None = None) -> str:
        """Return the content of the file as text."""
        return io.TextIOWrapper(io.BytesIO(self.read_bytes()), encoding, errors).read()

    def write_bytes(self, content: Any) -> None:
        """Replace the file by ``content``: a reader finds what was there before, or all of it."""
        files = self.store.files
        with _as_os_error(self):
            if self.store.is_atomic:
                with files.open_output_stream(self.key, compression=None) as file:
                    file.write(content)
                return
            unready = self.with_name(f".{self.name}.{secrets.token_hex(4)}.inprogress").key
            with files.open_output_stream(unready, compression=None) as file:
                file.write(content)
            files.copy_file(unready, self.key)
            files.delete_file(unready)

    def write_text(self, text: str, encoding: str = "utf-8", errors: str = "strict") -> None:
        """Let the file hold ``text``, as :meth:`write_bytes` does."""
        self.write_bytes(text.encode(encoding, errors))

    def mkdir(self, *, parents: bool = False, exist_ok: bool = False) -> None:  # noqa: ARG002 - as a Path has it
        """Make a directory where the store has them; in an object store only check that the bucket exists."""
        with _as_os_error(self):
            if self.store.renames:
                self.store.files.create_dir(self.key, recursive=True)
            elif self.store.files.get_file_info(self.store.prefix or "/").type.name == "NotFound":
                raise FileNotFoundError(2, f"bucket {self.store.prefix} does not exist")

    def rmdir(self) -> None:
        """Remove the directory.

        Raises:
            OSError: it is not empty.
        """
        if any(self.iterdir()):
            raise OSError(39, "not empty", str(self))
        remove_tree(self)

    def unlink(self, *, missing_ok: bool = False) -> None:
        """Remove the file.

        Raises:
            FileNotFoundError: there is none, unless ``missing_ok``.
        """
        with _as_os_error(self):
            try:
                self.store.files.delete_file(self.key)
            except FileNotFoundError:
                if not missing_ok:
                    raise


@contextmanager
def _as_os_error(path: StorePath) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        raise FileNotFoundError(2, error.strerror or "no such file or bucket", str(path)) from error
    except OSError as error:
        lines = (error.strerror or str(error)).strip().splitlines() or [type(error).__name__]
        why = f"{lines[0].removesuffix('.')[:300]}; check its address and credentials"
        raise type(error)(error.errno or 5, why, str(path)) from error


def glob_expression(pattern: str) -> str:
    """Return a regular expression for a pattern of a shell over a whole relative path."""
    parts = []
    for part in pattern.split("/"):
        if part == "**":
            parts.append(r"(?:[^/]+/)*")
            continue
        text = re.sub(r"\\\[(!?)(.*?)\\\]", lambda found: f"[{'^' if found[1] else ''}{found[2]}]", re.escape(part))
        parts.append(text.replace(r"\*", "[^/]*").replace(r"\?", "[^/]") + "/")
    return "".join(parts).removesuffix("/")


AnyPath = Path | StorePath
"""A path on this machine, or one in a store."""


def as_path(place: str | AnyPath) -> AnyPath:
    """Return the path that a text names: a path, ``file:///PATH`` or the URL of a store; paths stay what they are.

    Text of the form ``hdfs:/PATH`` means ``hdfs:///PATH``, as in Hadoop; a ``Path`` has lost a slash of its URL.

    Raises:
        UsageError: ``file://`` without a path, or a store without a name.
    """
    if isinstance(place, StorePath):
        return place
    text = str(place)
    found = _URL.match(text)
    if found is None:
        return Path(place)
    after = text[len(found[1]) + 1 :]
    if found[1] == "hdfs" and isinstance(place, str) and not after.startswith("//"):
        after = f"//{after}"
    rest = after.lstrip("/")
    if found[1] == "file":
        if after == "//":
            raise UsageError("file:// names no file or directory: write file:///PATH")
        return Path(f"/{rest}")
    if not rest and not after.startswith("///"):
        raise UsageError(f"{text} names no bucket or host: write {found[1]}://NAME/PATH")
    return StorePath(f"{found[1]}://{_NO_HOST}/{rest}" if after.startswith("///") else f"{found[1]}://{rest}")


@contextmanager
def write_atomically(target: str | AnyPath) -> Iterator[str]:
    """Give a path on this machine to write to; what is there becomes ``target`` when the block ends without an error.

    A task that is run again, or twice at once, replaces its own file: what stands there is its work once. A store gets
    the file whole, in one upload.
    """
    final = as_path(target)
    if isinstance(final, Path):
        unready = final.absolute().with_name(f".{final.name}.{uuid.uuid4().hex}")  # pyarrow replaces a first ~
    else:
        unready = Path(tempfile.gettempdir()) / f"mqtrace-{uuid.uuid4().hex}-{final.name}"
    try:
        yield str(unready)
        if not unready.exists():
            return
        if isinstance(final, Path):
            unready.replace(final)
        else:
            import pyarrow as pa  # noqa: PLC0415  (optional extra, present where there are stores)

            with pa.memory_map(str(unready)) as content:
                final.write_bytes(content.read_buffer())
    finally:
        unready.unlink(missing_ok=True)


def replace_text(target: AnyPath, text: str) -> None:
    """Write ``target`` anew, flushed to the disk with its name: a reader finds the old text or all of this one."""
    with write_atomically(target) as unready, Path(unready).open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    if isinstance(target, Path):
        with suppress(OSError):  # some file systems cannot flush names
            sync_path(target.parent)


def flush_tree(directory: AnyPath) -> None:
    """Flush all files below a directory of this machine, and their names, to the disk; a store does so by itself."""
    if not isinstance(directory, Path) or not directory.exists():
        return
    for path in (*directory.rglob("*"), directory, directory.parent):
        try:
            sync_path(path)
        except OSError:  # some file systems cannot flush names
            if path.is_file():
                raise


def sorted_glob(directory: AnyPath, pattern: str) -> list[AnyPath]:
    """Return what lies below ``directory`` and matches ``pattern``, sorted."""
    found: Iterable[AnyPath] = directory.glob(pattern)
    return sorted(found)


def refuse_compressed(head: bytes, name: object, *, also_zstd: bool = True) -> None:
    """Raise InaccessibleInputError for a file that begins as a compressed one; ``name`` is what the error calls it."""
    for magic, kind, program in _COMPRESSED:
        if head.startswith(magic) and (also_zstd or magic != ZSTD_MAGIC):
            raise InaccessibleInputError(f"{name}: {kind}-compressed; decompress it first ({program})")


def refuse_unconverted(head: bytes, name: object) -> None:
    """Raise UnreadableInputError for a file that begins as a zip archive or as UTF-16 text."""
    for start, what in _TO_CONVERT.items():
        if head.startswith(start):
            raise UnreadableInputError(f"{name} is {what}")


def open_parquet(path: str | AnyPath, **options: Any) -> Any:
    """Open a parquet file; in a store only the needed ranges are read, near ones together."""
    from pyarrow import parquet  # noqa: PLC0415  (only where parquet is read)

    place = as_path(path)
    if isinstance(place, StorePath):
        return parquet.ParquetFile(place.key, filesystem=place.store.files, pre_buffer=True, **options)
    return parquet.ParquetFile(place.absolute(), **options)  # it replaces a first ~


@contextmanager
def naming_damage(name: object) -> Iterator[None]:
    """Raise DamagedInputError for what pyarrow finds wrong with the Parquet file ``name``; the system's errors pass."""
    import pyarrow as pa  # noqa: PLC0415  (only where parquet is read)

    try:
        yield
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:  # pyarrow's own has no number
            raise
        reason = " ".join(str(error).split())
        raise DamagedInputError(f"{name}: not a readable Parquet file ({reason}): move it away") from error


def read_row_groups(path: str | AnyPath, columns: Sequence[str], **options: Any) -> Iterator[Any]:
    """Yield the tables of a parquet file's row groups, each with ``columns``."""
    file = open_parquet(path, **options)
    for group in range(file.num_row_groups):
        yield file.read_row_group(group, columns=list(columns), use_threads=False)


def remove_tree(directory: str | AnyPath) -> None:
    """Remove ``directory`` and everything below it, if it exists."""
    path = as_path(directory)
    if not path.exists():
        return
    if isinstance(path, Path):
        shutil.rmtree(path)
    else:
        # pyarrow deletes what is below, and then fails if Google's store has no object for the directory itself
        with suppress(FileNotFoundError), _as_os_error(path):
            path.store.files.delete_dir(path.key)


def _copy(source: StorePath, target: StorePath) -> None:
    with _as_os_error(source):
        source.store.files.copy_file(source.key, target.key)


def _move_tree(source: StorePath, final: StorePath) -> None:
    """Rename a directory to an unused name, in a store that can."""
    with _as_os_error(source):
        source.store.files.move(source.key, final.key)


def list_files(directory: str | AnyPath) -> list[str]:
    """Return the complete parquet files in ``directory``, sorted; nothing if it does not exist."""
    found = as_path(directory).glob("*.parquet")
    return sorted(str(path) for path in found if not path.name.startswith((".", "_")))


def make_directory(directory: str | AnyPath) -> None:
    """Make ``directory`` and what is above it; one that exists stays as it is."""
    as_path(directory).mkdir(parents=True, exist_ok=True)


def replace_tree(source: AnyPath, final: StorePath, *, spare: AnyPath, stale: AnyPath) -> None:
    """Replace the files of ``final`` by those of ``source``; the old ones go to ``spare``, ``stale`` is removed before.

    An object store cannot rename: there the files get new names, and one write of ``_files.json`` selects them. The
    others are removed then, or by the next run after a kill.
    """
    if final.store.renames:
        remove_tree(spare)
        stale.unlink(missing_ok=True)
        if final.exists():
            _move_tree(final, cast("StorePath", spare))
        _move_tree(cast("StorePath", source), final)
        return
    token = secrets.token_hex(4)
    files = [cast("StorePath", as_path(path)) for path in list_files(source)]
    targets = {path: final / f"{path.stem}-{token}.parquet" for path in files}
    with ThreadPoolExecutor(_COPIES) as pool:
        list(pool.map(_copy, targets, targets.values()))
    names = {target.name for target in targets.values()}
    stale.unlink(missing_ok=True)
    (final / "_files.json").write_text(json.dumps({"files": sorted(names)}))
    for path in map(as_path, list_files(final)):
        if path.name not in names:
            path.unlink(missing_ok=True)
