"""Documents against code: links, commands, settings, deployment files and make targets."""

import re
import shlex
import sys
from functools import cache
from importlib import import_module
from importlib.metadata import distributions
from itertools import pairwise

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

import otel_mqtrace
from bridge.addresses import Kind
from otel_mqtrace import testing
from otel_mqtrace.config import ENVIRONMENT_PREFIX, Settings
from otel_mqtrace.doctor.findings import WORDS
from otel_mqtrace.wire import native
from tests.support.documents import DOCUMENTS, FENCE, blocks
from tests.support.source_tree import ROOT, name_of
from tools.generated_docs import DOCS, PAGES

LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
TOML = import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
PROJECT = TOML.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
COMMANDS = PROJECT["entry-points"]["mqtrace.commands"]
ODD_WORDS = re.compile(
    r"\b(?:whoever|nobody|somebody|mend(?:s|ed)?|goe?s? by|held against|what becomes of|what became of|of which none)\b"
    r"|[Tt]his (?:page|module|package) knows"
)
WRITTEN_ELSEWHERE = {
    "CHANGELOG.md",
    "docs/architecture.md",
    "docs/performance.md",
    "docs/reconciliation/proof.md",
    "docs/reference/command-line.md",
    "docs/scoreboard.md",
}


def _targets() -> set[str]:
    return set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))


@cache
def _options_of(command: str) -> set[str]:
    page = PAGES["reference/command-line.md"]()
    [section] = [part for part in page.split("\n## ") if part.startswith(f"mqtrace {command}\n")]
    return set(re.findall(r"--[a-z][a-z-]*", section))


@pytest.mark.parametrize("name", PAGES)
def test_generated_page_is_current(name):
    assert (DOCS / name).read_text(encoding="utf-8") == PAGES[name](), "run: make docs"


@pytest.mark.parametrize("block", blocks("sh"), ids=str)
def test_commands_in_the_documents_exist(block):
    for line in block.text.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        for before, after in pairwise(words):
            if before == "make":
                assert after in _targets()
            if before == "mqtrace" and not after.startswith("-"):
                assert after in COMMANDS
                own = " ".join(words).split(f"mqtrace {after}", 1)[1].split(" | ")[0].split()
                options = [word.split("=")[0] for word in own if word.startswith("--") and word != "--"]
                assert [option for option in options if option not in _options_of(after)] == []
    settings = {ENVIRONMENT_PREFIX + name.upper() for name in Settings.__dataclass_fields__}
    assert set(re.findall(r"\bMQTRACE_[A-Z_]+", block.text)) <= settings


@pytest.mark.parametrize("path", DOCUMENTS, ids=name_of)
def test_links_in_the_documents_lead_somewhere(path):
    dead = []
    for link in LINK.findall(FENCE.sub("", path.read_text(encoding="utf-8"))):
        if re.match(r"[a-z]+:", link):
            continue
        file, _, anchor = link.partition("#")
        target = (path.parent / file).resolve() if file else path
        headings = re.findall(r"^#+ (.+)$", target.read_text(encoding="utf-8"), re.MULTILINE) if anchor else []
        anchors = {re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-") for heading in headings}
        if not target.exists() or (anchor and anchor not in anchors):
            dead.append(link)
    assert dead == []


@pytest.mark.parametrize("path", [path for path in DOCUMENTS if name_of(path) not in WRITTEN_ELSEWHERE], ids=name_of)
def test_documents_use_plain_english(path):
    text = re.sub(r"`[^`\n]*`", "", FENCE.sub("", path.read_text(encoding="utf-8")))
    assert ODD_WORDS.findall(text) == []


@pytest.mark.parametrize("path", DOCUMENTS, ids=name_of)
def test_no_table_is_wider_than_a_page(path):
    rows = [line.replace("\\|", "") for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("|")]
    assert [row for row in rows if row.count("|") - 1 > 16] == []


def test_every_setting_and_every_command_is_in_the_documents():
    page = (DOCS / "operations.md").read_text(encoding="utf-8")
    missing = [name for name in Settings.__dataclass_fields__ if f"`{ENVIRONMENT_PREFIX}{name.upper()}`" not in page]
    page = (DOCS / "quickstart.md").read_text(encoding="utf-8")
    assert missing + [command for command in COMMANDS if f"mqtrace {command}" not in page] == []


def test_every_finding_of_the_doctor_is_in_the_documents():
    page = (DOCS / "operations.md").read_text(encoding="utf-8")
    table = page.partition("| finding | meaning |")[2].partition("\n\n")[0]
    assert set(re.findall(r"`(\w+)`", table)) == {name.partition("/")[0] for name in WORDS}


def test_python_reference_names_what_an_application_imports():
    page = (DOCS / "reference" / "python.md").read_text(encoding="utf-8")
    public = (*otel_mqtrace.__all__, *testing.__all__, *native.__all__, *Settings.__dataclass_fields__)
    assert [name for name in public if not re.search(rf"`{name}\b", page)] == []
    assert re.findall(r":::|:(?:class|meth|func|mod|data):|``", page) == []


def test_help_of_otlp_names_every_source_of_spans():
    page = (DOCS / "reference" / "command-line.md").read_text(encoding="utf-8")
    rows = [line for line in page.splitlines() if line.startswith("| `--otlp ")]
    assert len(rows) == 2  # reconcile and graph
    sources = ("file", "directory", "glob", "kafka://BOOTSTRAP/TOPIC", Kind.JAEGER.value)
    assert [row for row in rows if not all(source in row for source in sources)] == []


def test_every_make_target_explains_itself():
    """``make help`` is made from the comments beside the targets."""
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    explained = set(re.findall(r"^([a-z-]+):.*## \S", text, re.MULTILINE))
    assert _targets() - explained == {"java", "lint", "format", "types", "contracts", "documents"}


def test_change_log_has_the_version_of_the_project_file():
    newest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert newest is not None
    assert newest[1] == PROJECT["version"]


def test_pins_without_a_marker_are_releases_for_the_oldest_python():
    oldest = PROJECT["requires-python"].removeprefix(">=") + ".13"
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = {canonicalize_name(pin.name) for line in lines if "#" not in line and not (pin := Requirement(line)).marker}
    needs = {canonicalize_name(each.name): each.metadata["Requires-Python"] or "" for each in distributions()}
    assert [name for name in pins & needs.keys() if oldest not in SpecifierSet(needs[name])] == []
