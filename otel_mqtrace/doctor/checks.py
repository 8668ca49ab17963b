"""The checks of an installation: versions, plug-ins, other instrumentations, settings, and destinations of spans."""

from __future__ import annotations

import contextlib
import os
import platform
import re
import socket
import ssl
import tempfile
import urllib.error
import urllib.request
from difflib import get_close_matches
from importlib.metadata import PackageNotFoundError, entry_points, version
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from otel_mqtrace._errors import describe_install, describe_reason
from otel_mqtrace.clients.patching import INSTRUMENTATIONS
from otel_mqtrace.config import ENVIRONMENT_PREFIX, NEVER_SHOWN, Settings
from otel_mqtrace.doctor.run_report import REPORT_DIRECTORY, collect_warnings
from otel_mqtrace.provider import EXPORTER_GROUP

if TYPE_CHECKING:
    from collections.abc import Mapping

    from otel_mqtrace.clients.patching import Instrumentation
    from otel_mqtrace.doctor.findings import Checkup

_PACKAGES: Final = (
    "otel-mqtrace",
    "confluent-kafka",
    "aiokafka",
    "rocketmq-python-client",
    "opentelemetry-api",
    "opentelemetry-sdk",
    "opentelemetry-instrumentation",
    "opentelemetry-distro",
    "opentelemetry-configuration",
    "opentelemetry-exporter-otlp",
    "pyspark",
)
_OTLP_EXPORTERS: Final = frozenset({"otlp", "otlp_proto_grpc", "otlp_proto_http", "otlp_json_http", "mqtrace_otlp"})
_OTLP_BY_PROTOCOL: Final = {"grpc": "otlp_proto_grpc", "http/protobuf": "otlp_proto_http"}
"""The exporters that the SDK takes for ``otlp``: the one of that name comes with a package that need not be there."""
_INSTRUMENTORS: Final = "opentelemetry_instrumentor"
_DISABLED: Final = "OTEL_PYTHON_DISABLED_INSTRUMENTATIONS"
_OURS: Final = "mqtrace_"
_PROPAGATOR: Final = re.compile(r"^propagator:", re.MULTILINE)
_SHOWN: Final = (
    "OTEL_SDK_DISABLED",
    "OTEL_SERVICE_NAME",
    "OTEL_TRACES_SAMPLER",
    "OTEL_PROPAGATORS",
    "OTEL_TRACES_EXPORTER",
    "OTEL_PYTHON_DISTRO",
    "OTEL_PYTHON_CONFIGURATOR",
    "OTEL_SEMCONV_STABILITY_OPT_IN",
    "OTEL_CONFIG_FILE",
    _DISABLED,
)
"""OpenTelemetry's variables that matter here and never hold a secret."""


def examine_environment(checkup: Checkup, environ: Mapping[str, str]) -> Settings:
    """Check what is installed and set, and return the settings as they will be used."""
    _check_versions(checkup)
    settings = _check_settings(checkup, environ)
    _check_exporters(checkup, settings, environ)
    _check_instrumentations(checkup, environ)
    _check_switches(checkup, environ)
    return settings


def _find_version(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def _check_versions(checkup: Checkup) -> None:
    installed = {name: _find_version(name) for name in _PACKAGES}
    checkup.facts["versions"] = {"python": platform.python_version(), **installed}
    clients = [name for name in ("confluent-kafka", "aiokafka", "rocketmq-python-client") if installed[name]]
    if not clients:
        checkup.add("client_missing", where="this environment", install=describe_install("kafka"))
    if installed["confluent-kafka"]:
        _check_librdkafka(checkup)
    if installed["opentelemetry-distro"] is None and not list(entry_points(group="opentelemetry_configurator")):
        checkup.add("no_distro", where="entry points opentelemetry_distro, opentelemetry_configurator")


def _check_librdkafka(checkup: Checkup) -> None:
    try:
        from confluent_kafka import libversion  # noqa: PLC0415 - optional extra
    except ImportError as error:
        checkup.add("client_broken", where="this environment", error=error)
        return
    checkup.facts["versions"]["librdkafka"] = libversion()[0]


def _check_settings(checkup: Checkup, environ: Mapping[str, str]) -> Settings:
    with collect_warnings("otel_mqtrace.config") as warnings:
        settings = Settings.from_env(environ=environ)
    for warning in warnings:
        name = warning.split(" ", maxsplit=1)[0].rstrip(":")
        checkup.findings[:] = [each for each in checkup.findings if warning not in each.what]  # a process warned of it
        checkup.add("setting_wrong", where=name, warning=warning)
    known = {ENVIRONMENT_PREFIX + name.upper(): name for name in Settings.__dataclass_fields__}
    # of a connection only that it is set: it may hold passwords
    checkup.facts["settings"] = {
        variable: "(set)" if known[variable] in NEVER_SHOWN else getattr(settings, known[variable])
        for variable in sorted(environ.keys() & known.keys())
    }
    _check_spelling(checkup, environ, list(known))
    if not settings.enabled:
        checkup.add("switched_off", where="MQTRACE_ENABLED")
    return settings


def _check_spelling(checkup: Checkup, environ: Mapping[str, str], known: list[str]) -> None:
    for variable in sorted(environ):
        if variable.startswith(ENVIRONMENT_PREFIX) and variable not in known and variable != REPORT_DIRECTORY:
            meant = get_close_matches(variable, known, n=1, cutoff=0.85)
            fix = f"write {meant[0]}" if meant else "unset it, or name a setting of docs/operations.md"
            checkup.add("setting_unknown", where=variable, name=variable, fix=fix)


def _check_exporters(checkup: Checkup, settings: Settings, environ: Mapping[str, str]) -> None:
    known = {point.name: point for point in entry_points(group=EXPORTER_GROUP)}
    checkup.facts["exporters"] = {"wanted": list(settings.exporters), "installed": sorted(known)}
    if not settings.exporters:
        checkup.facts["exporters"]["note"] = "none of ours: spans go where OpenTelemetry's own settings direct them"
    otlp = _OTLP_BY_PROTOCOL.get((_otlp_setting(environ, "PROTOCOL") or "grpc").strip(), "otlp")
    named = {name.strip() for name in environ.get("OTEL_TRACES_EXPORTER", "").split(",")} - {"", "none"}
    of_sdk = {otlp if name == "otlp" else name for name in named}
    wanted = [("MQTRACE_EXPORTERS", name) for name in settings.exporters]
    wanted += [("OTEL_TRACES_EXPORTER", name) for name in sorted(of_sdk)]
    for variable, name in wanted:
        if name not in known:
            effect = ": opentelemetry-instrument fails, and nothing is traced" if name in of_sdk else ""
            there = ", ".join(sorted(known)) or "the installed ones (there is none)"
            checkup.add("exporter_missing", where=variable, name=repr(name), effect=effect, known=there)
            continue
        try:
            known[name].load()
        except Exception as error:  # noqa: BLE001 - whatever a plug-in raises, the application will not have it
            where, install = f"entry point {known[name].value}", describe_install("kafka,otlp")
            checkup.add("exporter_broken", where=where, name=repr(name), error=error, install=install)


def _check_instrumentations(checkup: Checkup, environ: Mapping[str, str]) -> None:
    instrumentors = {point.name for point in entry_points(group=_INSTRUMENTORS)}
    disabled = {name.strip() for name in environ.get(_DISABLED, "").split(",")}
    checkup.facts["instrumentations"] = {"installed": sorted(instrumentors), "disabled": sorted(disabled - {""})}
    if not any(name.startswith(_OURS) for name in instrumentors):
        checkup.add("entry_point_missing", where=f"entry points {_INSTRUMENTORS}")
    if off := list_disabled(environ):
        checkup.add("instrumentation_disabled", where=_DISABLED, names=", ".join(off))
    for client, others in INSTRUMENTATIONS.items():
        for each in others if _find_version(client) else ():
            if _is_active(each, instrumentors, environ):
                where, switch = each.distribution, each.switched_off_by
                checkup.add("other_instrumentation", where=where, name=each.name, client=client, switch=switch)


def list_disabled(environ: Mapping[str, str]) -> list[str]:
    """Return the instrumentations of ours that are switched off by name, or ``*``."""
    ours = {point.name for point in entry_points(group=_INSTRUMENTORS) if point.name.startswith(_OURS)}
    return sorted((ours | {"*"}) & {name.strip() for name in environ.get(_DISABLED, "").split(",")})


def _is_active(other: Instrumentation, instrumentors: set[str], environ: Mapping[str, str]) -> bool:
    variable, _, value = other.switched_off_by.partition("=")
    values = {word.strip().lower() for word in environ.get(variable, "").split(",")}
    there = value in instrumentors if variable == _DISABLED else _find_version(other.distribution) is not None
    return there and value.lower() not in values and not (variable == _DISABLED and "*" in values)


def _check_switches(checkup: Checkup, environ: Mapping[str, str]) -> None:
    checkup.facts["opentelemetry"] = {name: environ[name] for name in _SHOWN if name in environ}
    if environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        checkup.add("sdk_disabled", where="OTEL_SDK_DISABLED")
    if environ.get("OTEL_TRACES_SAMPLER", "").strip().lower() in {"always_off", "parentbased_always_off"}:
        checkup.add("sampled_out", where="OTEL_TRACES_SAMPLER")
    _check_propagators(checkup, environ)
    path = environ.get("OTEL_CONFIG_FILE")
    if path and not os.path.isfile(path):  # noqa: PTH113 - a Path has no other use here
        checkup.add("config_file_missing", where="OTEL_CONFIG_FILE")


def _check_propagators(checkup: Checkup, environ: Mapping[str, str]) -> None:
    """A declarative configuration without propagators has none, whatever the environment has."""
    try:
        written = Path(environ.get("OTEL_CONFIG_FILE") or os.devnull).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        written = ""
    if written:
        if not _PROPAGATOR.search(written):
            checkup.add("no_propagator/file", where="OTEL_CONFIG_FILE")
        return
    names = [name.strip() for name in (environ.get("OTEL_PROPAGATORS") or "tracecontext,baggage").split(",")]
    loaded = set(takewhile(lambda name: name.lower() != "none", names))  # as OpenTelemetry does, which then drops all
    for name in sorted(loaded - {point.name for point in entry_points(group="opentelemetry_propagator")}):
        checkup.add("propagator_missing", where="OTEL_PROPAGATORS", name=repr(name))
    if loaded < set(names) or loaded.isdisjoint({"tracecontext", "b3", "b3multi", "jaeger", "ottrace", "xray"}):
        checkup.add("no_propagator", where="OTEL_PROPAGATORS")


_TIMEOUT_S: Final = 3.0
_NOT_FOUND: Final = 404
_PORTS: Final = {"https": 443, "http": 80}


def examine_directories(checkup: Checkup, settings: Settings) -> None:
    """Check that native records, the spool and the ledger can be written to disk; nothing is left there."""
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
        problem = _find_write_problem(directory)
        if problem is not None:
            where = f"MQTRACE_{name.upper()}_DIR"
            checkup.add(f"{name}_not_writable", where=where, directory=directory, problem=problem)


def _find_write_problem(directory: Path) -> str | None:
    """Return why no file can be created in ``directory``, by creating one as an exporter does."""
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
    """Probe the OTLP endpoint, if spans are to go there: TCP for gRPC, an empty request for HTTP."""
    if environ.get("OTEL_CONFIG_FILE"):
        checkup.facts["otlp"] = "not measured: the endpoint stands in the file of OTEL_CONFIG_FILE"
        return
    has_distro = any(point.name == "distro" for point in entry_points(group="opentelemetry_distro"))
    default = "otlp" if has_distro else "none"  # opentelemetry-distro sends spans by OTLP, without it nothing is sent
    named = [name.strip() for name in environ.get("OTEL_TRACES_EXPORTER", default).split(",")]
    if _OTLP_EXPORTERS.isdisjoint((*named, *settings.exporters)):
        checkup.facts["otlp"] = "not used"
        return
    endpoint, http = _resolve_endpoint([*named, *settings.exporters], environ)
    problem = _probe_http(endpoint, environ) if http else _probe_socket(endpoint)
    shown = endpoint.rpartition("@")[2]  # without the password that an address may carry
    checkup.facts["otlp"] = {"endpoint": shown, "protocol": "http" if http else "grpc", "answers": problem is None}
    if problem is not None:
        checkup.add("otlp_unreachable", where="OTEL_EXPORTER_OTLP_ENDPOINT", endpoint=shown, problem=problem)


def _otlp_setting(environ: Mapping[str, str], what: str) -> str | None:
    return environ.get(f"OTEL_EXPORTER_OTLP_TRACES_{what}") or environ.get(f"OTEL_EXPORTER_OTLP_{what}")


def _resolve_endpoint(names: list[str], environ: Mapping[str, str]) -> tuple[str, bool]:
    protocol = _otlp_setting(environ, "PROTOCOL") or "grpc"
    http = protocol.startswith("http") or any(name.startswith(("otlp_proto_http", "otlp_json_http")) for name in names)
    own = environ.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
    shared = environ.get("OTEL_EXPORTER_OTLP_ENDPOINT")
    if not http:
        return own or shared or "http://localhost:4317", False
    return own or f"{(shared or 'http://localhost:4318').rstrip('/')}/v1/traces", True


def _probe_socket(endpoint: str) -> str | None:
    try:
        parts = urlsplit(endpoint if ":/" in endpoint else f"http://{endpoint}")
        if parts.scheme == "unix":
            with socket.socket(socket.AF_UNIX) as connection:
                connection.settimeout(_TIMEOUT_S)
                connection.connect(parts.path)
            return None
        port = parts.port or _PORTS.get(parts.scheme, 4317)
        socket.create_connection((parts.hostname or "localhost", port), _TIMEOUT_S).close()
    except (OSError, ValueError) as error:
        return describe_reason(error)
    return None


def _make_tls_context(environ: Mapping[str, str]) -> ssl.SSLContext:
    trusted, own = _otlp_setting(environ, "CERTIFICATE"), _otlp_setting(environ, "CLIENT_CERTIFICATE")
    # read here, for an error that names the file; ssl takes ASCII, and a bundle's comments may be in any script
    context = ssl.create_default_context(cadata=None if trusted is None else Path(trusted).read_text("ascii", "ignore"))
    if own is not None:
        context.load_cert_chain(own, _otlp_setting(environ, "CLIENT_KEY"))
    return context


class _KeepRedirect(urllib.request.HTTPRedirectHandler):
    """Makes a redirect an ``HTTPError``: the exporter does not follow it, or not with its spans."""

    def redirect_request(self, *_: Any) -> None:
        return None


def _probe_http(endpoint: str, environ: Mapping[str, str]) -> str | None:
    """An empty body is a request for no spans; most statuses show a receiver that answers."""
    headers = {"Content-Type": "application/x-protobuf"}
    try:
        if urlsplit(endpoint).scheme not in _PORTS:
            return "it is not an http or https address"
        tls = _make_tls_context(environ) if urlsplit(endpoint).scheme == "https" else None
        request = urllib.request.Request(endpoint, data=b"", headers=headers, method="POST")  # noqa: S310 - checked above
        opener = urllib.request.build_opener(_KeepRedirect, urllib.request.HTTPSHandler(context=tls))
        with opener.open(request, timeout=_TIMEOUT_S) as answer:
            return "a web page answers there" if answer.headers.get_content_type() == "text/html" else None
    except urllib.error.HTTPError as answer:
        answer.close()
        if 300 <= answer.code < 400:  # noqa: PLR2004 - redirects
            return f"it redirects to {answer.headers['Location']}"
        return "there is no /v1/traces behind that address" if answer.code == _NOT_FOUND else None
    except (OSError, ValueError) as error:
        return str(getattr(error, "reason", error))
