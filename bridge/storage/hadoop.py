"""File systems that only Hadoop supports (``viewfs``, a vendor's own, HDFS with Kerberos), for pyarrow.

They go through the installed Spark's Hadoop: Python workers have no JVM, so each process that opens such a file system
starts a small one.
"""

from __future__ import annotations

import importlib.util
import os
import posixpath
import secrets
import sys
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyarrow.fs import FileInfo, FileType

from bridge.storage.ranged_files import RangedFiles, error_of_java, file_info

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_HEAP: Final = "-Xmx256m"
_CHUNK_BYTES: Final = 4 << 20  # what crosses to the JVM at once
_APPENDS: Final = "fs.capability.paths.append"
_NO_TICKET: Final = ("Client cannot authenticate via", "No valid credentials provided")


def has_hadoop() -> bool:
    """Return whether Hadoop's classes are here: they come with pyspark."""
    return bool(_class_path({}))


class HadoopFiles(RangedFiles):
    """One file system of Hadoop's; ``root`` is ``SCHEME://AUTHORITY``; ``settings`` win over ``HADOOP_CONF_DIR``.

    Raises:
        OSError: Hadoop lacks the scheme, or cannot open it; ``strerror`` is one line.
    """

    def __init__(self, root: str, settings: Mapping[str, str], java: Path) -> None:
        super().__init__("hadoop", root)
        self._root = root
        with _as_os_error():
            self._gateway = _start_jvm(_class_path(settings), java)
        self._jvm = self._gateway.jvm
        hadoop = self._jvm.org.apache.hadoop
        self._conf = hadoop.conf.Configuration()
        for name, value in settings.items():
            self._conf.set(name, value)
        with _as_os_error():
            # Kerberos or not, for the whole JVM: a process opens all its stores with the settings of one run.
            hadoop.security.UserGroupInformation.setConfiguration(self._conf)
            self._files = hadoop.fs.FileSystem.get(self._path("/").toUri(), self._conf)
        try:
            with _as_os_error():
                self._context = hadoop.fs.FileContext.getFileContext(self._path("/").toUri(), self._conf)
        except OSError:  # no AbstractFileSystem of that name
            self._context = None

    def _path(self, path: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(f"{self._root}{path}")

    def info(self, path: str) -> FileInfo:
        """Return what stands at a path; ``FileType.NotFound`` where nothing does."""
        try:
            with _as_os_error():
                return _info_of(posixpath.dirname(path), self._files.getFileStatus(self._path(path)))
        except FileNotFoundError:
            return FileInfo(path, FileType.NotFound)

    def list_directory(self, directory: str) -> list[FileInfo]:
        """Return what stands right below a directory.

        Raises:
            FileNotFoundError: there is none.
        """
        with _as_os_error():
            return [_info_of(directory, status) for status in self._files.listStatus(self._path(directory))]

    def create_dir(self, path: str, recursive: bool) -> None:  # noqa: ARG002, FBT001 - pyarrow's signature
        """Make a directory and what is above it."""
        with _as_os_error():
            self._files.mkdirs(self._path(path))

    def delete_dir(self, path: str) -> None:
        """Remove a directory and everything below it."""
        with _as_os_error():
            self._files.delete(self._path(path), True)  # noqa: FBT003 - Hadoop's signature

    def delete_file(self, path: str) -> None:
        """Remove a file.

        Raises:
            FileNotFoundError: there is none.
        """
        with _as_os_error():
            if not self._files.delete(self._path(path), False):  # noqa: FBT003 - Hadoop's signature
                raise FileNotFoundError(2, "no such file", path)

    def move(self, src: str, dest: str) -> None:
        """Rename a file or a directory."""
        with _as_os_error():
            if not self._files.rename(self._path(src), self._path(dest)):
                raise OSError(5, f"{src} could not be renamed to {dest}")

    def copy_file(self, src: str, dest: str) -> None:
        """Copy a file within the file system."""
        copy = self._jvm.org.apache.hadoop.fs.FileUtil.copy
        with _as_os_error():
            copy(self._files, self._path(src), self._files, self._path(dest), False, self._conf)  # noqa: FBT003

    def read(self, path: str, offset: int, length: int) -> bytes:
        """Return ``length`` bytes of a file from ``offset``."""
        with _as_os_error():
            stream = self._files.open(self._path(path))
            try:
                stream.seek(offset)
                sizes = [_CHUNK_BYTES] * (length // _CHUNK_BYTES) + [length % _CHUNK_BYTES]
                return b"".join(stream.readNBytes(size) for size in sizes if size)
            finally:
                stream.close()

    def write(self, path: str, content: bytes | memoryview) -> None:
        """Write a file beside its place and rename it, or in its place where files appear when they are closed."""
        with _as_os_error():
            if self._context is None or not self._files.hasPathCapability(self._path(path), _APPENDS):
                self._create(path, content)
                return
            unready = posixpath.join(posixpath.dirname(path), f".{posixpath.basename(path)}.{secrets.token_hex(4)}")
            self._create(unready, content)
            option = self._jvm.org.apache.hadoop.fs.Options.Rename
            replacing = self._gateway.new_array(option, 1)
            replacing[0] = option.OVERWRITE
            self._context.rename(self._path(unready), self._path(path), replacing)

    def _create(self, path: str, content: bytes | memoryview) -> None:
        stream = self._files.create(self._path(path), True)  # noqa: FBT003 - Hadoop's signature
        for begin in range(0, len(content), _CHUNK_BYTES):
            stream.write(bytes(content[begin : begin + _CHUNK_BYTES]))
        stream.close()  # after an error it stays open: a store would show what was written so far


def _info_of(directory: str, status: Any) -> FileInfo:
    size = None if status.isDirectory() else status.getLen()
    return file_info(directory, status.getPath().getName(), size, status.getModificationTime())


@contextmanager
def _as_os_error() -> Iterator[None]:
    """Give errors of Java one line."""
    from py4j.protocol import Py4JError, Py4JJavaError  # type: ignore[import-untyped]  # noqa: PLC0415  (with pyspark)

    handled = sys.exc_info()[1]
    try:
        yield
    except Exception as error:
        # Once a Spark session runs, pyspark converts errors of every JVM by their number in its own, where that may be
        # any object: what it raises has the error itself as its context.
        java_error = error if isinstance(error, Py4JJavaError) else error.__context__
        if java_error is handled or not isinstance(java_error, Py4JJavaError):
            if isinstance(error, Py4JError):
                raise OSError(5, f"the JVM of Hadoop ended: {error}") from None
            raise
        thrown = java_error.java_exception
        if any(words in str(thrown.getMessage()) for words in _NO_TICKET):
            raise PermissionError(13, "no valid Kerberos ticket (kinit) or token") from None
        raise error_of_java(thrown.getClass().getSimpleName(), thrown.getMessage()) from None


@cache
def _start_jvm(class_path: tuple[str, ...], java: Path) -> Any:
    """Start a JVM that ends with this process."""
    from py4j.java_gateway import (  # type: ignore[import-untyped]  # noqa: PLC0415  (with pyspark)
        GatewayParameters,
        JavaGateway,
        launch_gateway,
    )

    jars = (jar for place in class_path if place.endswith("*") for jar in Path(place).parent.glob("py4j*.jar"))
    port, token = launch_gateway(
        jarpath=str(next(jars, "")),
        classpath=os.pathsep.join(class_path),
        javaopts=[_HEAP, "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"],
        java_path=str(java),
        die_on_exit=True,
        create_new_process_group=True,  # Ctrl-C is for this process, which ends the JVM
        enable_auth=True,
    )
    return JavaGateway(gateway_parameters=GatewayParameters(port=port, auth_token=token))


def _class_path(settings: Mapping[str, str]) -> tuple[str, ...]:
    """Return the class path of Hadoop; empty without Spark.

    A jar of ``spark.jars`` lies where the driver has it, or in the working directory of an executor.
    """
    spark = os.environ.get("SPARK_HOME")
    found = None if spark else importlib.util.find_spec("pyspark")
    homes = [spark] if spark else list(found.submodule_search_locations or ()) if found else []
    if not homes:
        return ()
    named = [jar.removeprefix("file:") for jar in settings.get("spark.jars", "").split(",") if jar]
    jars = [place for jar in named for place in (jar, Path(jar).name) if Path(place).is_file()]
    given = [os.environ.get(name) for name in ("HADOOP_CONF_DIR", "CLASSPATH", "SPARK_DIST_CLASSPATH")]
    return (*(place for place in given if place), *jars, *(f"{home}/jars/*" for home in homes))
