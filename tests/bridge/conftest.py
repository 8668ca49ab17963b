"""What the tests of the commands share: a terminal to type into."""

import pytest

from tests.bridge.terminal import Terminal


@pytest.fixture
def mqtrace(monkeypatch, capfdbinary):
    return Terminal(monkeypatch, capfdbinary)
