"""HDFS over WebHDFS for pyarrow.

https://hadoop.apache.org/docs/stable/hadoop-project-dist/hadoop-hdfs/WebHDFS.html
"""

from __future__ import annotations

import json
import posixpath
import secrets
import urllib.request
from http.client import HTTPException
from typing import TYPE_CHECKING, Any, Final
from urllib.error import HTTPError
from urllib.parse import quote, urlencode

from pyarrow.fs import FileInfo, FileType

from bridge.storage.ranged_files import RangedFiles, error_of_java, file_info
from otel_mqtrace._errors import describe_reason

if TYPE_CHECKING:
    from collections.abc import Sequence

_TIMEOUT_S: Final = 60
_DIRECT: Final = urllib.request.build_opener(urllib.request.ProxyHandler({}))
_STANDBY: Final = "StandbyException"
_UNREADY: Final = ".{name}.{token}.inprogress"  # two tasks may write the same file at once


class WebHdfs(RangedFiles):
    """A file system behind NameNodes, ``HOST:PORT`` of HTTP, of which one is active.

    ``user`` is the user name that a cluster with simple authentication accepts; ``scheme`` is ``http`` or ``https``.
    """

    read_ahead_bytes = 1 << 20  # a range takes two requests

    def __init__(self, namenodes: Sequence[str], user: str, scheme: str = "http") -> None:
        super().__init__("webhdfs", tuple(namenodes))
        self._namenodes = list(namenodes)
        self._user = user
        self._scheme = scheme

    # -- what there is ------------------------------------------------------------------------------------------
    def info(self, path: str) -> FileInfo:
        """Return what stands at a path; ``FileType.NotFound`` where nothing does."""
        try:
            return _webhdfs_info(path, self._call("GET", path, "GETFILESTATUS")["FileStatus"])
        except FileNotFoundError:
            return FileInfo(path, FileType.NotFound)

    def list_directory(self, directory: str) -> list[FileInfo]:
        """Return what stands right below a directory.

        Raises:
            FileNotFoundError: there is none.
        """
        found = self._call("GET", directory, "LISTSTATUS")["FileStatuses"]["FileStatus"]
        return [_webhdfs_info(directory, one) for one in found]

    # -- what is changed ----------------------------------------------------------------------------------------
    def create_dir(self, path: str, recursive: bool) -> None:  # noqa: ARG002, FBT001 - pyarrow's signature
        """Make a directory and what is above it."""
        self._call("PUT", path, "MKDIRS")

    def delete_dir(self, path: str) -> None:
        """Remove a directory and everything below it."""
        self._call("DELETE", path, "DELETE", recursive="true")

    def delete_file(self, path: str) -> None:
        """Remove a file.

        Raises:
            FileNotFoundError: there is none.
        """
        if not self._call("DELETE", path, "DELETE")["boolean"]:
            raise FileNotFoundError(path)

    def move(self, src: str, dest: str) -> None:
        """Rename a file or a directory; a file that is there is replaced."""
        self._call("PUT", src, "RENAME", destination=dest, renameoptions="OVERWRITE")

    def copy_file(self, src: str, dest: str) -> None:
        """Copy a file through this machine: HDFS copies none itself."""
        with self.open_input_file(src) as read, self.open_output_stream(dest, None) as written:
            written.write(read.read())

    # -- content ------------------------------------------------------------------------------------------------
    def read(self, path: str, offset: int, length: int) -> bytes:
        """Return ``length`` bytes of a file from ``offset``."""
        return self._send("GET", path, "OPEN", offset=str(offset), length=str(length))

    def write(self, path: str, content: bytes | memoryview) -> None:
        """Write a file beside its place and rename it."""
        name = _UNREADY.format(name=posixpath.basename(path), token=secrets.token_hex(4))
        beside = posixpath.join(posixpath.dirname(path), name)
        self._send("PUT", beside, "CREATE", content=content, overwrite="true")
        self.move(beside, path)

    # -- HTTP ---------------------------------------------------------------------------------------------------
    def _call(self, verb: str, path: str, op: str, **parameters: str) -> Any:
        return json.loads(self._active(verb, path, op, parameters) or b"{}")

    def _send(self, verb: str, path: str, op: str, content: bytes | memoryview | None = None, **more: str) -> bytes:
        where = json.loads(self._active(verb, path, op, {**more, "noredirect": "true"}))["Location"]
        return _request(verb, where, content)

    def _active(self, verb: str, path: str, op: str, parameters: dict[str, str]) -> bytes:
        query = urlencode({"op": op, "user.name": self._user, **parameters})
        for at, namenode in enumerate(list(self._namenodes)):
            is_last = at == len(self._namenodes) - 1
            try:
                answer = _request(verb, f"{self._scheme}://{namenode}/webhdfs/v1{quote(path)}?{query}")
            except OSError as error:
                if is_last or not (isinstance(error, ConnectionError) or _STANDBY in str(error)):
                    raise
                continue
            self._namenodes.insert(0, self._namenodes.pop(at))  # the next request goes there first
            return answer
        raise ConnectionError("no NameNode is configured for this cluster")


def _request(verb: str, url: str, content: bytes | memoryview | None = None) -> bytes:
    """Return the body of an answer.

    Raises:
        FileNotFoundError, FileExistsError, PermissionError, OSError: what HDFS refused, in its own words.
        ConnectionError: no answer came.
    """
    headers = {"Content-Type": "application/octet-stream"} if content is not None else {}
    request = urllib.request.Request(url, data=content, method=verb, headers=headers)  # noqa: S310 - http or https
    try:
        with _DIRECT.open(request, timeout=_TIMEOUT_S) as answer:
            return bytes(answer.read())
    except HTTPError as error:
        raise _refusal(error) from None
    except (OSError, HTTPException) as error:
        reason = describe_reason(getattr(error, "reason", error))
        raise ConnectionError(111, f"no WebHDFS at {url.partition('/webhdfs')[0]}: {reason}") from error


def _refusal(error: HTTPError) -> OSError:
    try:
        answer = json.loads(error.read())["RemoteException"]
    except (ValueError, KeyError, TypeError, OSError):
        return OSError(5, f"WebHDFS answered {error.code} {error.reason}")
    return error_of_java(answer["exception"], answer["message"])


def _webhdfs_info(path: str, status: dict[str, Any]) -> FileInfo:
    size = None if status["type"] == "DIRECTORY" else status["length"]
    return file_info(path, status["pathSuffix"], size, status["modificationTime"])
