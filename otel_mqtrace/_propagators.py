"""Import OpenTelemetry's propagators, which its SDK needs, also where the environment names one that is missing."""

from __future__ import annotations

import logging
import os
from importlib import import_module
from typing import Final

_log: Final = logging.getLogger(__name__)
PROPAGATORS: Final = "OTEL_PROPAGATORS"


def load_propagators() -> None:
    """Import the propagators that the environment names; where one cannot be loaded, warn and use the default.

    OpenTelemetry itself raises then, and so does every import of its SDK.
    """
    try:
        import_module("opentelemetry.propagate")
    except Exception as problem:
        given = os.environ.pop(PROPAGATORS, None)
        if given is None:
            raise
        try:
            import_module("opentelemetry.propagate")
        finally:
            os.environ[PROPAGATORS] = given
        _log.warning("mqtrace: %s = %r: %s; tracecontext,baggage is used", PROPAGATORS, given, problem)
