"""This module knows how many of the interpreter's instructions a call runs in its own thread: the same on any machine.

They differ between releases of Python and of what is called, so they are compared with others of the same run.
"""

from __future__ import annotations

import gc
import sys
from contextlib import contextmanager
from itertools import count


def instructions_of(act, *, calls):
    """Return the mean over ``calls`` calls, made as often before: what is made once is not counted."""
    for _ in range(calls):
        act()
    with _counting() as counted:
        for _ in range(calls):
            act()
    return next(counted) / calls


@contextmanager
def _counting():
    counted = count()

    def on_instruction(frame, event, _argument):
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        if event == "opcode":
            next(counted)
        return on_instruction

    before = sys.gettrace()
    gc.collect()
    gc.disable()  # what others have left to be finalised is none of the call's
    sys._getframe().f_trace_opcodes = True  # Python 3.12 counts none before a frame has asked for it
    sys.settrace(on_instruction)
    try:
        yield counted
    finally:
        sys.settrace(before)
        gc.enable()
