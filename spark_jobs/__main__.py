"""Start the commands without the ``mqtrace`` script: ``python -m spark_jobs reconcile …``.

``spark-submit --py-files mqtrace-spark.zip … spark_jobs/__main__.py reconcile …`` takes the same options.
"""

from __future__ import annotations

import os
import sys


def start() -> int:
    """Run the command line.

    A script's own directory comes first in ``sys.path``; ours holds an ``inspect`` that is not Python's.
    """
    own = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120  (pathlib imports much, before the fix)
    sys.path[:] = [place for place in sys.path if os.path.abspath(place or ".") != own]  # noqa: PTH100
    from otel_mqtrace import _program  # noqa: PLC0415

    return _program.start()


if __name__ == "__main__":
    sys.exit(start())
