"""Pack our code as one zip for machines that have its dependencies only.

``python -m spark_jobs.package --out mqtrace-spark.zip``, then ``spark-submit --py-files mqtrace-spark.zip …``. The zip
contains the packages, and the metadata in which the ``mqtrace`` command finds its commands and its version.
"""

from __future__ import annotations

import argparse
import sys
import zipfile
from importlib.metadata import distribution
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

from otel_mqtrace._errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_DISTRIBUTION: Final = "otel-mqtrace"
_PACKAGES: Final = ("otel_mqtrace", "bridge", "spark_jobs")
_BEGINNING: Final = (1980, 1, 1, 0, 0, 0)  # the earliest time of a zip


def write_package(target: Path) -> Path:
    """Write the zip to ``target`` and return it; the same code makes the same bytes.

    Raises:
        UsageError: it cannot be written, or this code runs from such a zip itself.
    """
    try:
        with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in sorted({**dict(_modules()), **_metadata()}.items()):
                archive.writestr(zipfile.ZipInfo(name, _BEGINNING), content, zipfile.ZIP_DEFLATED)
    except OSError as error:
        raise UsageError(f"cannot write {target}: {error.strerror}; choose another file") from error
    return target


def _modules() -> Iterator[tuple[str, bytes]]:
    for package in _PACKAGES:
        spec = find_spec(package)
        places = [] if spec is None else spec.submodule_search_locations or []
        roots = [Path(place) for place in places if Path(place).is_dir()]
        if not roots:
            raise UsageError(
                f"the files of {package} are not in a directory: make the zip where it is installed unpacked"
            )
        for root in roots:
            for file in root.rglob("*"):
                if file.is_file() and "__pycache__" not in file.parts:
                    yield f"{package}/{file.relative_to(root).as_posix()}", file.read_bytes()


def _metadata() -> dict[str, bytes]:
    installed = distribution(_DISTRIBUTION)
    folder = f"{_DISTRIBUTION.replace('-', '_')}-{installed.version}.dist-info"
    head = f"Metadata-Version: 2.1\nName: {_DISTRIBUTION}\nVersion: {installed.version}\n"
    points = installed.read_text("entry_points.txt") or ""
    return {f"{folder}/METADATA": head.encode(), f"{folder}/entry_points.txt": points.encode()}


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the zip that ``--out`` names and print its path; return 2 if that fails."""
    parser = argparse.ArgumentParser(prog="python -m spark_jobs.package", description="Pack our code for spark-submit.")
    parser.add_argument("--out", type=Path, required=True, help="the zip to write")
    try:
        target = write_package(parser.parse_args(arguments).out)
    except UsageError as error:
        sys.stderr.write(f"mqtrace: error: {error}\n")
        return 2
    sys.stdout.write(f"{target}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
