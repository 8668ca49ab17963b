"""An interrupt, answered as in a terminal."""

import signal

import pytest


@pytest.fixture
def interruptible():
    """Answer an interrupt as in a terminal, also where the whole run was started in the background and ignores them."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
