"""What exists of a kind of object: asked while other threads make some, and while the collector takes some away."""

from __future__ import annotations

import gc
import sys
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest

from otel_mqtrace.clients.registry import LiveObjects


class Thing:
    """Something that can be referred to weakly, and is freed by the collector alone."""

    def __init__(self):
        self.itself = self


@pytest.fixture
def impatient():
    """Threads take turns a thousand times as often as usual."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(usual)


def _while_others_come_and_go(come, ask, *, times):
    """Call ``ask`` that often while another thread keeps making things; what either raises is raised here."""
    over = Event()

    def make():
        kept = []
        while not over.is_set():
            kept.append(come())
            if len(kept) > 200:
                kept.clear()

    with ThreadPoolExecutor(1) as pool:
        making = pool.submit(make)
        try:
            for _ in range(times):
                ask()
        finally:
            over.set()
        making.result(30)


def test_asking_does_not_fail_while_something_is_made(impatient):
    """A set of weak references would say that it changed its size."""
    alive = LiveObjects()

    def come():
        thing = Thing()
        alive.add(thing)
        return thing

    _while_others_come_and_go(come, alive.all, times=2_000)


def test_what_is_gone_is_not_among_what_exists():
    """Nothing is kept, and no key of it."""
    alive = LiveObjects()
    here, gone = Thing(), Thing()
    alive.add(here)
    alive.add(gone)
    del gone
    gc.collect()
    assert alive.all() == [here]
