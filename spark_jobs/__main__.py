"""This module knows how the Spark jobs start without the ``mqtrace`` command: ``python -m spark_jobs reconcile …``.

``spark-submit … spark_jobs/__main__.py reconcile …`` takes the same options.
"""

from __future__ import annotations

import sys

from otel_mqtrace.cli import main

if __name__ == "__main__":
    sys.exit(main())
