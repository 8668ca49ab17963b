"""The documents a reader sees, and the blocks of code in them."""

import re
from dataclasses import dataclass
from textwrap import dedent

from tests.support.source_tree import ROOT, name_of
from tools.generated_docs import DOCS

DOCUMENTS = [*sorted(ROOT.glob("*.md")), *sorted(DOCS.rglob("*.md"))]
INSTALLED = ("README.md", "docs/quickstart.md", "docs/how-to/")
"""Pages whose commands ``make test-install`` carries out in environments of their own."""
FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """One fenced block: ``number`` counts from 0 in its page."""

    page: str
    number: int
    language: str
    text: str

    def __str__(self):
        return f"{self.page}-{self.number}"


def blocks(*languages):
    """Return the blocks in these languages, all without any."""
    return [
        Block(name_of(path), number, language, dedent(text))
        for path in DOCUMENTS
        for number, (_, language, text) in enumerate(FENCE.findall(path.read_text(encoding="utf-8")))
        if not languages or language in languages
    ]
