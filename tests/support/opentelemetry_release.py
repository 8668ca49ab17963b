"""What the installed OpenTelemetry SDK lacks: the library works without it, and its tests of that part are skipped."""

from importlib.metadata import version

import pytest

_INSTALLED = tuple(int(part) for part in version("opentelemetry-sdk").split(".")[:2])


def needs_sdk(minor, why):
    """Skip a test before SDK 1.``minor``; ``why`` names what came with it."""
    return pytest.mark.skipif((1, minor) > _INSTALLED, reason=f"SDK before 1.{minor}: {why}")
