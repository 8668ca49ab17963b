"""What a document may name and a test must not do: each is held against what is there, and refused if it is not.

``stand_in.py pip install …`` looks the requirements up, ``make`` asks make for its plan only, the bench of a day starts no
Spark, and programs of others (a Collector, docker, Kafka's own scripts; the peers' tests start the real ones) have their
files and settings checked.
"""

import os
import re
import subprocess
import sys
from importlib import import_module
from importlib.metadata import entry_points, metadata, version
from pathlib import Path

import typer
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]


def pip(verb, *requirements):
    assert verb == "install"
    ours = [each.replace(".[", "otel-mqtrace[") if each.startswith(".[") else each for each in requirements]
    for each in map(Requirement, ours):
        assert version(each.name)
        assert each.extras <= set(metadata(each.name).get_all("Provides-Extra") or ())


def make(*words):
    subprocess.run(["make", "--dry-run", *words], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)


def docker(*words):
    assert words[0] == "compose"
    assert Path(words[words.index("-f") + 1]).is_file()


def otelcol_contrib(flag, config):
    assert flag == "--config"
    asked = set(re.findall(r"\$\{env:(\w+)", Path(config).read_text(encoding="utf-8")))
    defaulted = set(re.findall(r"\$\{env:(\w+):-", Path(config).read_text(encoding="utf-8")))
    assert asked - defaulted <= set(os.environ)


def kafka_topics_sh(*words):
    assert {"--bootstrap-server", "--create", "--topic", "--partitions"} <= set(words)


def curl(*words):
    Path(words[words.index("--output") + 1]).write_text(
        "# TYPE otelcol_exporter_send_failed_spans_total counter\n"
        'otelcol_exporter_send_failed_spans_total{exporter="file"} 0\n',
        encoding="utf-8",
    )


def spark_submit(*words):
    script = words.index("spark_jobs/__main__.py")
    assert (ROOT / words[script]).is_file()
    assert Path(words[words.index("--py-files") + 1]).suffix == ".zip"
    parsed(*words[script + 1 :])


def venv_pack(flag, archive):
    assert flag == "-o"
    assert archive.endswith(".tar.gz")


def parsed(command, *words):
    module, _, function = entry_points(group="mqtrace.commands")[command].value.partition(":")
    function = getattr(import_module(module), function)
    app = typer.Typer(add_completion=False)
    app.command(command)(function)
    rewrite = getattr(function, "rewrite_arguments", list)
    return typer.main.get_command(app).make_context(command, rewrite(words)).params


def looked_up(command, *words):
    given = parsed(command, *words)
    for name in ("native", "otlp", "ledger"):
        for source in given.get(name) or ():
            files = list(Path().glob(str(source)))
            held = [path for path in files if path.is_file() or any(each.is_file() for each in path.rglob("*"))]
            assert held or (files and name == "ledger"), source  # a process that lost nothing leaves no ledger


def scale(*words):
    module = import_module("tests.proofs.bench.scale")
    module.measure = lambda day, _out, **_options: [path.name for path in day.iterdir()]
    sys.argv[1:] = words
    module.main()


if __name__ == "__main__":
    name, *words = sys.argv[1:]
    globals()[re.sub(r"\W", "_", name)](*words)
