"""What a forked child starts over."""

import os

import pytest

FORKING = """
import os, sys
from otel_mqtrace._workers import process_generation, restart_in_child

class Item:
    def __init__(self, name):
        self.name = name
        restart_in_child(self)
    def after_fork(self):
        os.write(1, f"{self.name} {process_generation()}\\n".encode())
        if self.name == "interrupted":
            raise KeyboardInterrupt

sys.unraisablehook = lambda lost: os.write(1, lost.exc_type.__name__.encode())
kept = [Item("first"), Item("interrupted"), Item("last")]
Item("gone")
pid = os.fork()
if not pid:
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
assert process_generation() == 0
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_forked_child_starts_everything_over_after_an_interrupt(run_code):
    assert run_code(FORKING).splitlines() == ["first 1", "interrupted 1", "last 1", "KeyboardInterrupt"]
