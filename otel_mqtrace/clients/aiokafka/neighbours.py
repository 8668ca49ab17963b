"""This module knows the other instrumentations of aiokafka: how each is recognised and switched off."""

from __future__ import annotations

import logging
from typing import Any, Final

from otel_mqtrace.clients.neighbours import NEIGHBOURS, home_of

__all__ = ["warn_of_latecomer", "wrapper_of"]

_log: Final = logging.getLogger(__name__)
_AT_HOME: Final = ("aiokafka.", "otel_mqtrace.")


def wrapper_of(method: Any) -> str | None:
    """Return who has wrapped a method of the client and how to switch that off; ``None`` for the client and for us."""
    home = home_of(method)
    if method is None or home.startswith(_AT_HOME):
        return None
    known = (str(each) for each in NEIGHBOURS["aiokafka"] if f"{home}.".startswith(f"{each.module}."))
    return next(known, f"the module {home}")


def warn_of_latecomer(name: str) -> None:
    """Say that somebody wraps the client on top of us; every message is then traced by both."""
    _log.warning(
        "mqtrace: %s wraps aiokafka on top of mqtrace, so messages are traced twice: "
        "switch it off, or uninstrument mqtrace",
        name,
    )
