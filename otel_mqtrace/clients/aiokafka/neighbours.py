"""This module knows the other instrumentations of aiokafka: how each is recognised and switched off."""

from __future__ import annotations

import logging
from types import FunctionType
from typing import Any, Final

__all__ = ["warn_of_latecomer", "wrapper_of"]

_log: Final = logging.getLogger(__name__)
_AT_HOME: Final = ("aiokafka.", "otel_mqtrace.")
_SWITCHES: Final = {
    "opentelemetry.instrumentation.aiokafka": (
        "OpenTelemetry's own instrumentation (off with OTEL_PYTHON_DISABLED_INSTRUMENTATIONS=aiokafka)"
    ),
    "ddtrace": "Datadog's ddtrace (off with DD_TRACE_AIOKAFKA_ENABLED=false)",
}
"""Module of the wrapper → who that is and how it is switched off."""


def wrapper_of(method: Any) -> str | None:
    """Return who has wrapped a method of the client and how to switch that off; ``None`` for the client and for us."""
    home = _home_of(method)
    if method is None or home.startswith(_AT_HOME):
        return None
    known = (said for module, said in _SWITCHES.items() if f"{home}.".startswith(f"{module}."))
    return next(known, f"the module {home}")


def _home_of(method: Any) -> str:
    """Return the module a method's outermost code is from; its ``__module__`` is that of what is wrapped."""
    wrapper = getattr(method, "_self_wrapper", None)  # wrapt's, which most instrumentations are made with
    if wrapper is not None:
        return str(getattr(wrapper, "__module__", type(wrapper).__module__))
    if type(method) is FunctionType:
        return str(method.__globals__.get("__name__", method.__module__))
    return type(method).__module__


def warn_of_latecomer(name: str) -> None:
    """Say that somebody wraps the client on top of us; every message is then traced by both."""
    _log.warning(
        "mqtrace: %s wraps aiokafka on top of mqtrace, so messages are traced twice: "
        "switch it off, or uninstrument mqtrace",
        name,
    )
