"""This module knows what an installation and its environment say: versions, plug-ins, neighbours, settings."""

from __future__ import annotations

import os
import platform
import re
from difflib import get_close_matches
from importlib.metadata import PackageNotFoundError, entry_points, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from otel_mqtrace.clients.conflicts import INSTRUMENTATIONS
from otel_mqtrace.config import ENVIRONMENT_PREFIX, NEVER_SHOWN, Settings
from otel_mqtrace.doctor.findings import NO_PROPAGATOR
from otel_mqtrace.doctor.run_report import REPORT_DIRECTORY, captured_logs
from otel_mqtrace.provider import EXPORTER_GROUP

if TYPE_CHECKING:
    from collections.abc import Mapping

    from otel_mqtrace.clients.conflicts import Instrumentation
    from otel_mqtrace.doctor.findings import Checkup

__all__ = ["examine_environment"]

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
    """Look at what is installed and set, and return the settings as they will be used."""
    _versions(checkup)
    settings = _settings(checkup, environ)
    _exporters(checkup, settings)
    _instrumentations(checkup, environ)
    _switches(checkup, environ)
    return settings


def _installed(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def _versions(checkup: Checkup) -> None:
    found = {name: _installed(name) for name in _PACKAGES}
    checkup.facts["versions"] = {"python": platform.python_version(), **found}
    clients = [name for name in ("confluent-kafka", "aiokafka", "rocketmq-python-client") if found[name]]
    if not clients:
        checkup.error(
            "client_missing",
            "no client that could be traced is installed",
            where="this environment",
            mend="pip install 'otel-mqtrace[kafka]'",
        )
    if found["confluent-kafka"]:
        _librdkafka(checkup)
    if found["opentelemetry-distro"] is None and not list(entry_points(group="opentelemetry_configurator")):
        checkup.warning(
            "no_distro",
            "nothing here sets up OpenTelemetry's SDK: under opentelemetry-instrument no span is recorded",
            where="entry points opentelemetry_distro, opentelemetry_configurator",
            mend="pip install opentelemetry-distro, or call trace.set_tracer_provider() in the application",
        )


def _librdkafka(checkup: Checkup) -> None:
    try:
        from confluent_kafka import libversion  # noqa: PLC0415 - optional extra
    except ImportError as error:
        checkup.error(
            "client_broken",
            f"confluent-kafka is installed but cannot be imported: {error}",
            where="this environment",
            mend="pip install --force-reinstall confluent-kafka",
        )
        return
    checkup.facts["versions"]["librdkafka"] = libversion()[0]


def _settings(checkup: Checkup, environ: Mapping[str, str]) -> Settings:
    with captured_logs("otel_mqtrace.config") as warnings:
        settings = Settings.from_env(environ=environ)
    for said in warnings:
        name = said.split(" ", maxsplit=1)[0].rstrip(":")
        checkup.warning(
            "setting_wrong", said, where=name, mend="give it one of the values that docs/operations.md names"
        )
    known = {ENVIRONMENT_PREFIX + name.upper(): name for name in Settings.__dataclass_fields__}
    checkup.facts["settings"] = _shown(settings, {name for name in environ if name in known})
    _misspelt(checkup, environ, list(known))
    if not settings.enabled:
        checkup.error(
            "switched_off",
            "tracing is switched off",
            where="MQTRACE_ENABLED",
            mend="unset MQTRACE_ENABLED, or set it to true",
        )
    return settings


def _shown(settings: Settings, given: set[str]) -> dict[str, Any]:
    """What was set, by variable; the connection only as a fact, since it may hold passwords."""
    shown = {}
    for variable in sorted(given):
        name = variable.removeprefix(ENVIRONMENT_PREFIX).lower()
        shown[variable] = "(set)" if name in NEVER_SHOWN else getattr(settings, name)
    return shown


def _misspelt(checkup: Checkup, environ: Mapping[str, str], known: list[str]) -> None:
    for variable in sorted(environ):
        if variable.startswith(ENVIRONMENT_PREFIX) and variable not in known and variable != REPORT_DIRECTORY:
            meant = get_close_matches(variable, known, n=1, cutoff=0.85)
            checkup.warning(
                "setting_unknown",
                f"there is no setting {variable}; it is ignored",
                where=variable,
                mend=f"write {meant[0]}" if meant else "unset it, or name a setting of docs/operations.md",
            )


def _exporters(checkup: Checkup, settings: Settings) -> None:
    known = {point.name: point for point in entry_points(group=EXPORTER_GROUP)}
    checkup.facts["exporters"] = {"wanted": list(settings.exporters), "installed": sorted(known)}
    if not settings.exporters:
        checkup.facts["exporters"]["note"] = "none of ours is attached: spans go where OpenTelemetry's own settings say"
    for name in settings.exporters:
        if name not in known:
            checkup.error(
                "exporter_missing",
                f"there is no exporter {name!r} in this environment",
                where="MQTRACE_EXPORTERS",
                mend=f"name one of {', '.join(sorted(known)) or 'the installed ones (there is none)'}",
            )
            continue
        try:
            known[name].load()
        except Exception as error:  # noqa: BLE001 - whatever a plug-in raises, the application will not have it
            checkup.error(
                "exporter_broken",
                f"the exporter {name!r} cannot be loaded: {error}",
                where=f"entry point {known[name].value}",
                mend="install what it lacks: pip install 'otel-mqtrace[kafka,otlp]'",
            )


def _instrumentations(checkup: Checkup, environ: Mapping[str, str]) -> None:
    found = {point.name for point in entry_points(group=_INSTRUMENTORS)}
    disabled = {name.strip() for name in environ.get(_DISABLED, "").split(",")}
    checkup.facts["instrumentations"] = {"installed": sorted(found), "disabled": sorted(disabled - {""})}
    if not any(name.startswith(_OURS) for name in found):
        checkup.error(
            "entry_point_missing",
            "opentelemetry-instrument does not find mqtrace: its entry points are not installed",
            where=f"entry points {_INSTRUMENTORS}",
            mend="pip install --force-reinstall --no-deps otel-mqtrace",
        )
    off = [name for name in (*sorted(each for each in found if each.startswith(_OURS)), "*") if name in disabled]
    if off:
        checkup.error(
            "instrumentation_disabled", f"{', '.join(off)} is disabled", where=_DISABLED, mend="take it off that list"
        )
    for client, neighbours in INSTRUMENTATIONS.items():
        for each in neighbours if _installed(client) else ():
            if _is_at_work(each, found, environ):
                checkup.warning(
                    "other_instrumentation",
                    f"{each.name} of {client} is installed and not switched off: where it is started, "
                    "mqtrace steps back for it",
                    where=each.distribution,
                    mend=f"set {each.switched_off_by}",
                )


def _is_at_work(neighbour: Instrumentation, instrumentors: set[str], environ: Mapping[str, str]) -> bool:
    variable, _, value = neighbour.switched_off_by.partition("=")
    said = {word.strip().lower() for word in environ.get(variable, "").split(",")}
    there = value in instrumentors if variable == _DISABLED else _installed(neighbour.distribution) is not None
    return there and value.lower() not in said and not (variable == _DISABLED and "*" in said)


def _switches(checkup: Checkup, environ: Mapping[str, str]) -> None:
    checkup.facts["opentelemetry"] = {name: environ[name] for name in _SHOWN if name in environ}
    if environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        checkup.error(
            "sdk_disabled",
            "OpenTelemetry's SDK is switched off",
            where="OTEL_SDK_DISABLED",
            mend="unset OTEL_SDK_DISABLED",
        )
    if environ.get("OTEL_TRACES_SAMPLER", "").strip().lower() in {"always_off", "parentbased_always_off"}:
        checkup.error(
            "sampled_out",
            "the sampler drops every trace that begins here",
            where="OTEL_TRACES_SAMPLER",
            mend="set it to parentbased_always_on, or parentbased_traceidratio with OTEL_TRACES_SAMPLER_ARG",
        )
    _propagators(checkup, environ)
    path = environ.get("OTEL_CONFIG_FILE")
    if path and not os.path.isfile(path):  # noqa: PTH113 - a text from outside, asked one thing
        checkup.error(
            "config_file_missing",
            "the declarative configuration is not there: OpenTelemetry starts without any",
            where="OTEL_CONFIG_FILE",
            mend="name a file that exists",
        )


def _propagators(checkup: Checkup, environ: Mapping[str, str]) -> None:
    """A declarative configuration that names no propagator has none, whatever the environment says."""
    try:
        written = Path(environ.get("OTEL_CONFIG_FILE") or os.devnull).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        written = ""
    if written:
        if not _PROPAGATOR.search(written):
            checkup.error(
                "no_propagator",
                NO_PROPAGATOR,
                where="OTEL_CONFIG_FILE",
                mend="write propagator: {composite: [{tracecontext: {}}, {baggage: {}}]} into the file",
            )
        return
    propagators = {name.strip() for name in environ.get("OTEL_PROPAGATORS", "tracecontext,baggage").split(",")}
    if not propagators & {"tracecontext", "b3", "b3multi", "jaeger", "ottrace", "xray"}:
        checkup.error(
            "no_propagator",
            NO_PROPAGATOR,
            where="OTEL_PROPAGATORS",
            mend="set OTEL_PROPAGATORS=tracecontext,baggage",
        )
