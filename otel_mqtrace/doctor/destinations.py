"""This module knows whether what takes the spans answers: a directory that can be written, an OTLP endpoint."""

from __future__ import annotations

import contextlib
import socket
import tempfile
import urllib.error
import urllib.request
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Mapping

    from otel_mqtrace.config import Settings
    from otel_mqtrace.doctor.findings import Checkup

__all__ = ["examine_directories", "examine_otlp"]

_TIMEOUT_S: Final = 3.0
_WRITTEN: Final = {"landing": "records", "spool": "what waits for the broker", "ledger": "what was lost"}
_NOT_FOUND: Final = 404
_PORTS: Final = {"https": 443, "http": 80}


def examine_directories(checkup: Checkup, settings: Settings) -> None:
    """See whether what is written to disk can be: native records, the spool, the ledger; nothing is left there."""
    wanted = {
        "landing": settings.landing_dir if "mqtrace_native_file" in settings.exporters else None,
        "spool": settings.spool_dir,
        "ledger": settings.ledger_dir,
    }
    for name, given in wanted.items():
        if given is None:
            continue
        directory = Path(given).absolute()
        checkup.facts[name] = str(directory)
        problem = _unwritable(directory)
        if problem is not None:
            checkup.error(
                f"{name}_not_writable",
                f"{_WRITTEN[name]} cannot be written to {directory}: {problem}",
                where=f"MQTRACE_{name.upper()}_DIR",
                mend="let this user write there, or name another directory",
            )


def _unwritable(directory: Path) -> str | None:
    """Say why no file can be made in ``directory``; it is made as an exporter makes it, for nothing less tells."""
    missing = [each for each in (directory, *directory.parents) if not each.exists()]
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=directory, prefix=".mqtrace-doctor-"):
            return None
    except OSError as error:
        return error.strerror or str(error)
    finally:
        for each in missing:
            with contextlib.suppress(OSError):
                each.rmdir()


def examine_otlp(checkup: Checkup, settings: Settings, environ: Mapping[str, str]) -> None:
    """Knock at the OTLP endpoint, if spans are to go there: TCP for gRPC, an empty request for HTTP."""
    if environ.get("OTEL_CONFIG_FILE"):
        checkup.facts["otlp"] = "not measured: the endpoint stands in the file of OTEL_CONFIG_FILE"
        return
    named = [name.strip() for name in environ.get("OTEL_TRACES_EXPORTER", _default_exporter()).split(",")]
    if not any(name.startswith("otlp") for name in (*named, *settings.exporters)):
        checkup.facts["otlp"] = "not used"
        return
    endpoint, http = _endpoint([*named, *settings.exporters], environ)
    problem = _ask_over_http(endpoint) if http else _connect(endpoint)
    shown = _without_user(endpoint)
    checkup.facts["otlp"] = {"endpoint": shown, "protocol": "http" if http else "grpc", "answers": problem is None}
    if problem is not None:
        checkup.error(
            "otlp_unreachable",
            f"the OTLP endpoint {shown} does not take spans: {problem}",
            where="OTEL_EXPORTER_OTLP_ENDPOINT",
            mend="start the Collector, name its address, or set OTEL_TRACES_EXPORTER=none to send nothing there",
        )


def _default_exporter() -> str:
    """opentelemetry-distro sends spans by OTLP when nobody says otherwise; without it nothing is sent."""
    return "otlp" if any(point.name == "distro" for point in entry_points(group="opentelemetry_distro")) else "none"


def _endpoint(names: list[str], environ: Mapping[str, str]) -> tuple[str, bool]:
    def said(what: str) -> str | None:
        return environ.get(f"OTEL_EXPORTER_OTLP_TRACES_{what}") or environ.get(f"OTEL_EXPORTER_OTLP_{what}")

    protocol = said("PROTOCOL") or "grpc"
    http = protocol.startswith("http") or any(name.startswith(("otlp_proto_http", "otlp_json_http")) for name in names)
    own = environ.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
    shared = environ.get("OTEL_EXPORTER_OTLP_ENDPOINT")
    if not http:
        return own or shared or "http://localhost:4317", False
    return own or f"{(shared or 'http://localhost:4318').rstrip('/')}/v1/traces", True


def _connect(endpoint: str) -> str | None:
    parts = urlsplit(endpoint if "://" in endpoint else f"http://{endpoint}")
    try:
        port = parts.port or _PORTS.get(parts.scheme, 4317)
        socket.create_connection((parts.hostname or "localhost", port), _TIMEOUT_S).close()
    except (OSError, ValueError) as error:
        return str(error)
    return None


def _ask_over_http(endpoint: str) -> str | None:
    """An empty body is a request for no spans; whatever status comes back, somebody is there."""
    if urlsplit(endpoint).scheme not in _PORTS:
        return "it is not an http or https address"
    headers = {"Content-Type": "application/x-protobuf"}
    request = urllib.request.Request(endpoint, data=b"", headers=headers, method="POST")  # noqa: S310 - checked above
    try:
        urllib.request.urlopen(request, timeout=_TIMEOUT_S).close()  # noqa: S310 - as above
    except urllib.error.HTTPError as answer:
        answer.close()
        return "there is no /v1/traces behind that address" if answer.code == _NOT_FOUND else None
    except (OSError, ValueError) as error:
        return str(getattr(error, "reason", error))
    return None


def _without_user(endpoint: Any) -> str:
    """An address may carry a password: ``https://user:password@host``."""
    return str(endpoint).rpartition("@")[2] if "@" in str(endpoint) else str(endpoint)
