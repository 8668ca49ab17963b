"""What the tests of the commands share: a terminal to type into."""

from __future__ import annotations

import pytest

from tests.bridge.terminal import Terminal


@pytest.fixture
def mqtrace(monkeypatch, capfdbinary):
    return Terminal(monkeypatch, capfdbinary)
