"""Run the coverage-guided fuzzer over the native codec: ``make fuzz ARGS='--seconds 600'``.

A child drives ``laws.hold_for`` by atheris (libFuzzer), seeded with every vector. A finding is kept in ``build/fuzz/findings``,
ends the run with exit code 1, and is tried first in the next; without atheris the run is skipped.
"""

import argparse
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from tests.support.native_vectors import RECORDED_FILES, VECTORS, json_lines, recorded

TARGET = Path(__file__).resolve().parents[3] / "build" / "fuzz"
CORPUS, FINDINGS = TARGET / "corpus", TARGET / "findings"
MAX_LENGTH_BYTES, SECONDS_FOR_ONE_INPUT, MEMORY_MB = 4_096, 10, 2_048
WORDS = ("\\x01", "\\x02", "Pub", "SubBefore", "SubAfter", "EndTransaction", "Recall", "null", "dKey", "true", "UNKNOW")
_COUNTED = re.compile(
    r"^#\d+\s+DONE\s+cov: (\d+) ft: (\d+) corp: (\d+)/\S+.*$|^Done (\d+) runs in (\d+) second", re.MULTILINE
)


def seeds() -> list[bytes]:
    """Return every vector as an input: the options' byte, then the body."""
    files = ("golden", "read_only", "decode_only")
    texts = [item["body"].encode() for name in files for item in json_lines(VECTORS / f"{name}.jsonl")]
    bodies = [each.body for name in RECORDED_FILES for each in recorded(name)]
    choices = (0, 1, 10, 21, 100)
    return [bytes([choices[number % len(choices)]]) + body for number, body in enumerate([*texts, *bodies])]


def fuzz(seconds: int, inputs: list[str]) -> int:
    """Run libFuzzer in a child; print its figures and return 0, or 1 when it found something."""
    for folder in (CORPUS, FINDINGS):
        folder.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(seeds()):
        (CORPUS / f"seed-{number:04}").write_bytes(seed)
    for finding in FINDINGS.iterdir():  # of an earlier run: tried again, first of all
        finding.rename(CORPUS / finding.name)
    words = TARGET / "words"
    words.write_text("".join(f'"{word}"\n' for word in WORDS), encoding="utf-8")
    options = [
        *(f"-max_total_time={seconds}", f"-max_len={MAX_LENGTH_BYTES}", f"-timeout={SECONDS_FOR_ONE_INPUT}"),
        *(f"-rss_limit_mb={MEMORY_MB}", f"-dict={words}", f"-artifact_prefix={FINDINGS}/", "-verbosity=1"),
    ]
    child = [sys.executable, "-m", __spec__.name, "--child", *options, *(inputs or [str(CORPUS)])]
    with subprocess.Popen(child, stderr=subprocess.PIPE, text=True, errors="replace") as process:
        assert process.stderr is not None
        log = []
        for line in process.stderr:
            log.append(line)
            if not line.startswith(("INFO:", "#", "WARNING:", '"')) or "DONE" in line:
                sys.stderr.write(line)
    return _report("".join(log), process.returncode)


def _report(output: str, exit_code: int) -> int:
    figures = [value for match in _COUNTED.finditer(output) for value in match.groups() if value]
    names = ("coverage", "features", "inputs kept", "executions", "seconds")
    findings = sorted(path.name for path in FINDINGS.iterdir())
    figures_text = ", ".join(f"{name} {value}" for name, value in zip(names, figures, strict=False))
    sys.stdout.write(
        f"fuzz: {figures_text or 'no figures'}; findings {len(findings)}{': ' if findings else ''}{', '.join(findings)}\n"
    )
    return 1 if findings or exit_code else 0


def child(arguments: list[str]) -> None:
    """Hand this process over to libFuzzer, which never returns."""
    import atheris  # noqa: PLC0415  comes with the 'fuzz' extra

    with atheris.instrument_imports(include=["bridge", "otel_mqtrace"]):  # top-level packages only
        from tests.proofs.fuzz.laws import hold_for  # noqa: PLC0415  imported here so that it is instrumented
    atheris.Setup([sys.argv[0], *arguments], hold_for)
    atheris.Fuzz()


def main() -> int:
    """Fuzz for as long as is asked."""
    if sys.argv[1:2] == ["--child"]:
        child(sys.argv[2:])
    parser = argparse.ArgumentParser(description="Fuzz the native codec.")
    parser.add_argument("--seconds", type=int, default=60, help="how long (default: 60)")
    parser.add_argument("inputs", nargs="*", help="run these inputs once instead, such as a finding")
    asked = parser.parse_args()
    if find_spec("atheris") is None:
        sys.stdout.write("fuzz: SKIPPED: no atheris for this Python here (pip install --group fuzz)\n")
        return 0
    return fuzz(asked.seconds, asked.inputs)


if __name__ == "__main__":
    raise SystemExit(main())
