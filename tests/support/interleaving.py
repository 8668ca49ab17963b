"""How something else comes in between two lines of a function, each of them in turn, in one thread."""

import sys
from contextlib import contextmanager
from functools import partial
from itertools import count


def every_line_of(function):
    """Yield for every line that ``function`` runs a ``between(intrude)``: within it, the line is preceded by a call."""
    for line in count(1):
        left = [line]
        yield partial(_between, function, left)
        if left[0] > 0:
            assert line > 1, "nothing was run"
            return


@contextmanager
def _between(function, left, intrude):
    def on_line(_frame, event, _argument):
        if event == "line":
            left[0] -= 1
            if left[0] == 0:
                sys.settrace(None)
                intrude()
        return on_line

    before = sys.gettrace()
    sys.settrace(lambda frame, _event, _argument: on_line if frame.f_code is function.__code__ else None)
    try:
        yield
    finally:
        sys.settrace(before)
