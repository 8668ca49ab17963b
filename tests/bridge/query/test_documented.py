"""``docs/query.md`` lists every finding and every key of the JSON."""

from __future__ import annotations

import re
from dataclasses import fields

import pytest

from bridge.query.details import answer_json
from bridge.query.findings import FINDING_CODES
from bridge.query.search import Searched
from bridge.query.timeline import Consume, Event, Finding, Recall, Send, TransactionEnd
from tests.support.archives import ID, answer_of, landed, pub
from tests.support.source_tree import ROOT

DOCUMENT = (ROOT / "docs" / "query.md").read_text(encoding="utf-8")


PARTS = {
    "searched": Searched,
    "findings[]": Finding,
    "sends[]": Send,
    "transaction_ends[]": TransactionEnd,
    "recalls[]": Recall,
    "timeline[]": Event,
}


def test_every_finding_has_its_line():
    assert tuple(re.findall(r"^\| `([a-z_]+)` \| [a-z]", DOCUMENT, re.MULTILINE)[:15]) == FINDING_CODES


@pytest.mark.parametrize(
    ("row", "keys"),
    [
        *((row, {one.name for one in fields(kind)}) for row, kind in PARTS.items()),
        ("attempts[]", {*(one.name for one in fields(Consume)), "elapsed_ms"}),
        ("messages[]", set(answer_json(answer_of(landed(pub()), ID))["messages"][0])),
    ],
)
def test_every_key_of_a_part_is_in_its_row(row, keys):
    (documented,) = re.findall(rf"^\| `{re.escape(row)}` \| `([^`]+)` \|$", DOCUMENT, re.MULTILINE)
    assert set(documented.split(", ")) == keys
