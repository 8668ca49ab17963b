"""The base class of file systems that read files by ranges and write them whole, for pyarrow."""

from __future__ import annotations

import io
import posixpath
from abc import abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, Final

import pyarrow as pa
from pyarrow.fs import FileInfo, FileSelector, FileSystemHandler, FileType

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class RangedFiles(FileSystemHandler):
    """A file system of a ``kind``, at ``place``, whose files are read by ranges and written whole.

    ``read_ahead_bytes`` are read at once of an open file, where a range costs more than its bytes.
    """

    read_ahead_bytes: ClassVar[int] = 0

    def __init__(self, kind: str, place: object) -> None:
        self._identity = kind, place

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RangedFiles) and self._identity == other._identity

    def __hash__(self) -> int:
        return hash(self._identity)

    def get_type_name(self) -> str:
        """Return the name of this kind of file system."""
        return self._identity[0]

    @abstractmethod
    def info(self, path: str) -> FileInfo:
        """Return the info of a path; its type is ``FileType.NotFound`` where nothing exists."""

    @abstractmethod
    def list_directory(self, directory: str) -> Sequence[FileInfo]:
        """Return the info of every entry of a directory.

        Raises:
            FileNotFoundError: the directory does not exist.
        """

    @abstractmethod
    def read(self, path: str, offset: int, length: int) -> bytes:
        """Return ``length`` bytes of a file from ``offset``."""

    @abstractmethod
    def write(self, path: str, content: bytes | memoryview) -> None:
        """Write ``content`` to a file, which a reader finds whole or not at all."""

    def normalize_path(self, path: str) -> str:
        """Return ``path``."""
        return path

    def get_file_info(self, paths: Sequence[str]) -> list[FileInfo]:
        """Return the info of each path."""
        return [self.info(path) for path in paths]

    def get_file_info_selector(self, selector: FileSelector) -> list[FileInfo]:
        """Return the info of every entry below a directory.

        Raises:
            FileNotFoundError: the directory does not exist.
        """
        try:
            found = [*self.list_directory(selector.base_dir)]
        except FileNotFoundError:
            if selector.allow_not_found:
                return []
            raise
        if selector.recursive:
            for info in [info for info in found if info.type == FileType.Directory]:
                found += self.get_file_info_selector(FileSelector(info.path, recursive=True, allow_not_found=True))
        return found

    def delete_dir_contents(self, path: str, missing_dir_ok: bool = False) -> None:  # noqa: FBT001, FBT002
        """Remove everything below a directory."""
        for info in self.get_file_info_selector(FileSelector(path, allow_not_found=missing_dir_ok)):
            self.delete_dir(info.path)

    def delete_root_dir_contents(self) -> None:
        """Remove everything."""
        self.delete_dir_contents("/")

    def open_input_stream(self, path: str) -> pa.NativeFile:
        """Open a file for reading."""
        return self.open_input_file(path)

    def open_input_file(self, path: str) -> pa.NativeFile:
        """Open a file for reading anywhere in it."""
        info = self.info(path)
        if info.type != FileType.File:
            raise FileNotFoundError(2, "no such file", path)
        file: Any = RangedFile(lambda length, offset: self.read(path, offset, length), info.size)
        if self.read_ahead_bytes:
            file = io.BufferedReader(file, self.read_ahead_bytes)
        return pa.PythonFile(file, mode="r")

    def open_output_stream(self, path: str, metadata: object) -> pa.NativeFile:  # noqa: ARG002 - pyarrow's signature
        """Open a file for writing: held in memory, and there under its name, whole, once it is closed."""
        return pa.PythonFile(_Upload(self, path), mode="w")

    def open_append_stream(self, path: str, metadata: object) -> pa.NativeFile:
        """Not supported: no file of ours is appended to in a store."""
        raise NotImplementedError


def file_info(path: str, name: str, size: int | None, mtime_ms: int) -> FileInfo:
    """Return the info of what is called ``name`` below ``path``; a directory has no size."""
    kind = FileType.Directory if size is None else FileType.File
    place = posixpath.join(path, name).rstrip("/") or "/"
    return FileInfo(place, kind, size=size, mtime_ns=mtime_ms * 1_000_000)


_JAVA_ERRORS: Final[dict[str, tuple[type[OSError], int]]] = {
    "FileNotFoundException": (FileNotFoundError, 2),
    "FileAlreadyExistsException": (FileExistsError, 17),
    "AccessControlException": (PermissionError, 13),
    "SecurityException": (PermissionError, 13),
}


def error_of_java(name: str, message: object) -> OSError:
    """Return the error for an exception of Hadoop's, given by its class and message, in one line."""
    kind, number = _JAVA_ERRORS.get(name, (OSError, 5))
    return kind(number, f"{name}: {next(iter(str(message or '').splitlines()), '')}")


class RangedFile(io.RawIOBase):
    """A file that is read by ranges, as Python's buffered readers take it.

    Args:
        read_at: gives so many bytes from an offset.
        size: of the file; no range beyond it is read, which Google's store would refuse.
        close: releases the file.
    """

    def __init__(self, read_at: Callable[[int, int], Any], size: int, close: Callable[[], object] = bool) -> None:
        self._read_at, self._size, self._close, self._at = read_at, size, close, 0

    def readable(self) -> bool:
        """Return true."""
        return True

    def seekable(self) -> bool:
        """Return true."""
        return True

    def tell(self) -> int:
        """Return the offset of what is read next."""
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Set the offset of what is read next, and return it; no range is read."""
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    def readinto(self, buffer: Any) -> int:
        """Fill ``buffer`` as far as the file goes, and return how many bytes that are."""
        length = min(len(buffer), max(self._size - self._at, 0))
        if length:
            content = self._read_at(length, self._at)
            length = len(content)
            buffer[:length] = content
            self._at += length
        return length

    def readall(self) -> bytes:
        """Return what is left, in one request where the file has not become shorter meanwhile."""
        content, end = bytearray(max(self._size - self._at, 0)), 0
        while count := self.readinto(memoryview(content)[end:]):
            end += count
        return bytes(content[:end])

    def close(self) -> None:
        """Release the file."""
        if not self.closed:
            self._close()
        super().close()


class _Upload(io.RawIOBase):
    """A file that is written when it is closed."""

    def __init__(self, files: RangedFiles, path: str) -> None:
        self._files, self._path, self._held = files, path, io.BytesIO()

    def writable(self) -> bool:
        return True

    def write(self, content: Any) -> int:
        return self._held.write(content)

    def close(self) -> None:
        if not self.closed:
            self._files.write(self._path, self._held.getbuffer())
            super().close()
