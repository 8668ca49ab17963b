"""Our code as one zip: everything a driver and an executor import, and how the command line finds its commands."""

import zipfile

from spark_jobs.package import main
from tests.support.programs import run_python

ASK = """
import sys
sys.path.insert(0, sys.argv[1])
sys.path[:] = [place for place in sys.path if place not in sys.argv[2:]]
import spark_jobs.commands
from importlib.metadata import entry_points, version
assert spark_jobs.commands.__file__.startswith(sys.argv[1]), spark_jobs.commands.__file__
print(version("otel-mqtrace"), *sorted(point.name for point in entry_points(group="mqtrace.commands")))
"""


def test_zip_can_be_imported_and_names_every_command(tmp_path):
    target = tmp_path / "mqtrace-spark.zip"
    assert main(["--out", str(target)]) == 0
    version, *commands = run_python(ASK, target).stdout.split()
    assert version
    assert {"reconcile", "inspect"} <= set(commands)


def test_same_code_makes_the_same_bytes_with_templates_and_without_compiled_files(tmp_path):
    for name in ("one", "two"):
        assert main(["--out", str(tmp_path / name)]) == 0
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
    names = zipfile.ZipFile(tmp_path / "one").namelist()
    assert "spark_jobs/report/templates/page.html.j2" in names
    assert not [name for name in names if name.endswith(".pyc")]


def test_unwritable_target_is_one_line(tmp_path, capsys):
    assert main(["--out", str(tmp_path / "no" / "such.zip")]) == 2
    assert "such.zip: No such file or directory; choose another file" in capsys.readouterr().err
