"""Spark clusters, HDFS, S3 and YARN of a test's own, from packages: on loopback, free ports, stopped by process id."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.request import Request, urlopen

import pyspark
from pyarrow.fs import AzureFileSystem

from spark_jobs.java import find_java
from tests.peers.go_build import GoProgram, built
from tests.peers.peer import PeerUnavailableError, ServerProcess, free_ports, jars_of, made_once, peers_cache
from tests.support.programs import run_program

SPARK_HOME = Path(pyspark.__file__).parent
STARTS_WITHIN_S = 240
HADOOP = Path(__file__).resolve().parents[1] / "cluster" / "hadoop"
_GCS = "github.com/fsouza/fake-gcs-server"
_AZURITE, _AZURE_ACCOUNT = "3.37.0", "devstoreaccount1"
_AZURE_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="  # everybody's
_SPARK_CLASS = (str(SPARK_HOME / "bin" / "spark-class"),)
_OPENED = ("--add-opens", "java.base/java.lang=ALL-UNNAMED")


def spark_environment(**more: str) -> dict[str, str]:
    """Return this process's environment for a Spark that is started by its own scripts."""
    own = {"JAVA_HOME": str(find_java().path), "SPARK_HOME": str(SPARK_HOME), "SPARK_LOCAL_IP": "127.0.0.1"}
    return {**os.environ, **own, "PYSPARK_PYTHON": sys.executable, **more}


@contextmanager
def standalone(logs: Path, environment: dict[str, str], *, hidden: Path | None = None) -> Iterator[str]:
    """Give the ``spark://`` address of a master with two workers of one core, which do not see what is below ``hidden``."""
    deploy = "org.apache.spark.deploy"
    with ExitStack() as running:
        arguments = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
        log, starting = logs / "master.log", r"Starting Spark master at (spark://\S+)"
        command = (*_SPARK_CLASS, f"{deploy}.master.Master", *arguments)
        running.enter_context(_server(log, environment, *command, ready=_says(log, starting)))
        address = re.search(starting, log.read_text())[1]
        for number in (1, 2):
            work = logs / f"worker-{number}"
            (work / "tmp").mkdir(parents=True)
            own = (*arguments, "--cores", "1", "--memory", "4g", "--work-dir", str(work), address)
            command = (*(without(hidden) if hidden else ()), *_SPARK_CLASS, f"{deploy}.worker.Worker", *own)
            there = {**environment, "TMPDIR": str(work / "tmp"), "SPARK_LOCAL_DIRS": str(work / "tmp")}
            log = logs / f"{number}.log"
            registered = _says(log, "Successfully registered with master")
            running.enter_context(_server(log, there, *command, ready=registered))
        yield address


@contextmanager
def connect_server(logs: Path, environment: dict[str, str]) -> Iterator[str]:
    """Give a Spark Connect server on two threads: its ``sc://`` address."""
    (port,) = free_ports(1)
    settings = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "4",
        "spark.driver.bindAddress": "127.0.0.1",
    }
    server = "org.apache.spark.sql.connect.service.SparkConnectServer"
    arguments = ("--class", server, "--master", "local[2]", *conf_words(settings), "spark-internal")
    submit = (*_SPARK_CLASS, "org.apache.spark.deploy.SparkSubmit", *arguments)
    log = logs / "connect.log"
    with _server(log, environment, *submit, ready=_says(log, "Spark Connect server started")):
        yield f"sc://127.0.0.1:{port}"


@dataclass(frozen=True)
class TestStore:
    """A store that runs: a directory in it, and the settings by which Hadoop finds it."""

    root: str
    settings: dict[str, str]

    __test__ = False  # pytest

    def configuration(self, directory: Path) -> str:
        directory.mkdir(exist_ok=True)
        (directory / "core-site.xml").write_text(_site(self.settings))
        return str(directory)

    def conf(self) -> list[str]:
        return conf_words({f"spark.hadoop.{name}": value for name, value in self.settings.items()})


def conf_words(values: Mapping[str, str]) -> list[str]:
    return [word for name, value in values.items() for word in ("--conf", f"{name}={value}")]


def _site(settings: Mapping[str, str]) -> str:
    rows = (f"<property><name>{name}</name><value>{value}</value></property>" for name, value in settings.items())
    return f"<configuration>{''.join(rows)}</configuration>"


@contextmanager
def hdfs(logs: Path) -> Iterator[TestStore]:
    """Give a NameNode and a DataNode in one JVM."""
    rpc, http = free_ports(2)
    home = logs / "hdfs"
    home.mkdir()
    ports = ("-nomr", "-format", "-nnport", str(rpc), "-nnhttpport", str(http), "-D", "dfs.replication=1")
    main = "org.apache.hadoop.mapreduce.MiniHadoopClusterManager"
    command = (*_java(jars_of(HADOOP / "hadoop.xml", "hadoop")), main, *ports)
    created = f"http://127.0.0.1:{http}/webhdfs/v1/ready?op=CREATE&noredirect=true&user.name=root"
    ready = _answers(Request(created, method="PUT"))  # once a DataNode has registered
    with _server(home / "hdfs.log", spark_environment(), *command, ready=ready):
        settings = {"fs.defaultFS": f"hdfs://127.0.0.1:{rpc}", "dfs.namenode.http-address": f"127.0.0.1:{http}"}
        yield TestStore(f"hdfs://127.0.0.1:{rpc}/traces", settings)


@contextmanager
def secure_hdfs(logs: Path) -> Iterator[dict[str, str]]:
    """Give the environment of a user of an HDFS with Kerberos who ran ``kinit`` and owns ``hdfs:///traces``.

    Raises:
        PeerUnavailableError: there is no ``kinit`` or ``keytool``, or the jars of the KDC cannot be had.
    """
    for name, package in (("kinit", "krb5-user"), ("keytool", "default-jre-headless")):
        if shutil.which(name) is None:
            raise PeerUnavailableError(f"no {name} on the path (Debian: apt install {package})")
    jars = f"{jars_of(HADOOP / 'hadoop.xml', 'hadoop')}/*{os.pathsep}{jars_of(HADOOP / 'kdc.xml', 'kdc')}"
    home = logs / "secure"
    home.mkdir()
    keystore = {
        "location": str(home / "https.p12"),
        "type": "pkcs12",
        "password": "changeit",
        "keypassword": "changeit",
    }
    (home / "ssl-server.xml").write_text(_site({f"ssl.server.keystore.{name}": v for name, v in keystore.items()}))
    keytool = ("keytool", "-genkeypair", "-keyalg", "RSA", "-dname", "CN=localhost")
    store = ("-keystore", keystore["location"], "-storepass", keystore["password"])
    subprocess.run([*keytool, *store], check=True, capture_output=True, timeout=STARTS_WITHIN_S)
    program = (*_java(f"{home}{os.pathsep}{jars}"), str(HADOOP / "SecureHdfs.java"), str(home))
    log = home / "secure.log"
    with _server(log, spark_environment(), *program, ready=_says(log, "HDFS is up")):
        krb5 = str(home / "krb5.conf")
        user = {
            "HADOOP_CONF_DIR": str(home),
            "KRB5_CONFIG": krb5,
            "KRB5CCNAME": str(home / "ticket"),
            "JAVA_TOOL_OPTIONS": f"-Djava.security.krb5.conf={krb5}",  # Java reads /etc/krb5.conf otherwise
        }
        kinit = ["kinit", "-k", "-t", str(home / "user.keytab"), "user"]
        subprocess.run(kinit, env={**os.environ, **user}, check=True, timeout=STARTS_WITHIN_S)
        yield user


@contextmanager
def viewfs(logs: Path) -> Iterator[TestStore]:
    """Give a directory of HDFS under a name that only Hadoop knows: a link of a mount table."""
    with hdfs(logs) as store:
        link = {"fs.viewfs.mounttable.nowhere.link./traces": store.root}
        yield TestStore("viewfs://nowhere/traces", {**store.settings, **link})


@contextmanager
def s3(logs: Path) -> Iterator[TestStore]:
    """Give an S3 server over HTTP, moto's, in a process of its own, and a bucket in it."""
    (port,) = free_ports(1)
    command = (sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port))
    with _server(logs / "s3.log", {}, *command, ready=_answers(f"http://127.0.0.1:{port}/")):
        with urlopen(Request(f"http://127.0.0.1:{port}/traces", method="PUT"), timeout=STARTS_WITHIN_S):
            pass
        settings = {
            "fs.s3a.endpoint": f"http://127.0.0.1:{port}",
            "fs.s3a.endpoint.region": "us-east-1",
            "fs.s3a.path.style.access": "true",
            "fs.s3a.connection.ssl.enabled": "false",
            "fs.s3a.access.key": "any",
            "fs.s3a.secret.key": "any",
        }
        yield TestStore("s3a://traces/in", settings)


@contextmanager
def azure(logs: Path) -> Iterator[TestStore]:
    """Give Azure's store over HTTP, Microsoft's Azurite of npm, in memory, and a container in it."""
    (port,) = free_ports(1)
    own = ("--silent", "--disableTelemetry", "--inMemoryPersistence", "--skipApiVersionCheck")
    where = ("--blobHost", "127.0.0.1", "--blobPort", str(port), "--blobKeepAliveTimeout", "600")
    program = str(_npm_program("azurite", _AZURITE, "azurite-blob"))
    log = logs / "azure.log"
    with _server(log, {}, program, *own, *where, ready=_says(log, "successfully listens")):
        address = f"127.0.0.1:{port}"
        host = f"{_AZURE_ACCOUNT}.dfs.core.windows.net"
        authorities = dict.fromkeys(("blob_storage_authority", "dfs_storage_authority"), address)
        schemes = dict.fromkeys(("blob_storage_scheme", "dfs_storage_scheme"), "http")
        AzureFileSystem(_AZURE_ACCOUNT, account_key=_AZURE_KEY, **authorities, **schemes).create_dir("traces")
        settings = {
            f"fs.azure.account.key.{host}": _AZURE_KEY,
            "fs.azure.abfs.endpoint": address,
            "fs.azure.always.use.https": "false",
        }
        yield TestStore(f"abfss://traces@{host}/in", settings)


@contextmanager
def gcs(logs: Path) -> Iterator[TestStore]:
    (port,) = free_ports(1)
    where = ("-scheme", "http", "-host", "127.0.0.1", "-port", str(port))
    program = GoProgram("gcs", HADOOP.parent / "gcs", _GCS, _GCS)
    url = f"http://127.0.0.1:{port}"
    bucket = Request(f"{url}/storage/v1/b", b'{"name": "traces"}', {"Content-Type": "application/json"})
    with _server(logs / "gcs.log", {}, str(built(program)), "-backend", "memory", *where, ready=_answers(bucket)):
        yield TestStore("gs://traces/in", {"fs.gs.storage.root.url": url, "fs.gs.auth.type": "UNAUTHENTICATED"})


def _npm_program(package: str, version: str, name: str) -> Path:
    """Return a program of a package of npm's, installed once per machine."""

    def install(folder: Path) -> None:
        npm = shutil.which("npm")
        if npm is None:
            raise PeerUnavailableError(f"no npm on the path to install {package} with")
        command = [npm, "install", "--no-audit", "--no-fund", "--silent", "--prefix", folder, f"{package}@{version}"]
        done = run_program(*command, timeout_s=STARTS_WITHIN_S * 3)
        if done.returncode:
            raise PeerUnavailableError(f"npm could not install {package}: {done.stderr[-300:] or 'no reason given'}")

    return made_once(peers_cache() / f"{package}-{version}", install) / "node_modules" / ".bin" / name


@contextmanager
def yarn(logs: Path, configuration: Path) -> Iterator[None]:
    """Run a ResourceManager and a NodeManager; ``yarn-site.xml`` goes below ``configuration``."""
    home = logs / "yarn"
    home.mkdir()
    program = (str(HADOOP / "Yarn.java"), str(configuration / "yarn-site.xml"))
    command = (*_java(jars_of(HADOOP / "hadoop.xml", "hadoop")), *program)
    log = home / "yarn.log"
    with _server(log, spark_environment(), *command, ready=_says(log, "YARN is up")):
        yield


def s3a_jars() -> str:
    return ",".join(map(str, sorted(jars_of(HADOOP / "s3a.xml", "s3a").glob("*.jar"))))


def without(hidden: Path) -> tuple[str, ...]:
    """Return the words before a command that make it see an empty directory there: a mount namespace of its own."""
    return ("unshare", "-m", "sh", "-c", f'mount -t tmpfs none "{hidden}" && exec "$@"', "sh")


def _java(jars: str | Path) -> tuple[str, ...]:
    return (str(find_java().path / "bin" / "java"), "-Xmx512m", *_OPENED, "-cp", f"{jars}/*")


@contextmanager
def _server(log: Path, environment: Mapping[str, str], *words: str, ready: Callable[[], bool]) -> Iterator[None]:
    server = ServerProcess(log.stem, log, log.parent)  # Python finds what lies in its own directory
    server.start(words, environment, ready)
    try:
        yield
    finally:
        server.stop()


def _says(log: Path, pattern: str) -> Callable[[], bool]:
    return lambda: re.search(pattern, log.read_text(errors="replace")) is not None


def _answers(url: str | Request) -> Callable[[], bool]:
    return lambda: urlopen(url, timeout=10).close() is None
