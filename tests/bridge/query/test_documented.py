"""``docs/query.md`` lists every finding and every key of the JSON."""

from __future__ import annotations

import re
from dataclasses import fields

import pytest

from bridge.query.findings import FINDING_CODES
from bridge.query.render.details import answer_json
from bridge.query.search import Searched
from bridge.query.timeline import Consume, Event, Finding, Recall, Send, TransactionEnd
from tests.support.archives import ID, answer_of, landed, pub
from tests.support.source_tree import ROOT

DOCUMENT = (ROOT / "docs" / "query.md").read_text(encoding="utf-8")


def test_every_finding_has_its_line():
    assert tuple(re.findall(r"^\| `([a-z_]+)` \| [a-z]", DOCUMENT, re.MULTILINE)[:15]) == FINDING_CODES


@pytest.mark.parametrize(
    ("row", "kind", "further"),
    [
        ("searched", Searched, ()),
        ("findings[]", Finding, ()),
        ("sends[]", Send, ()),
        ("transaction_ends[]", TransactionEnd, ()),
        ("recalls[]", Recall, ()),
        ("attempts[]", Consume, ("elapsed_ms",)),
        ("timeline[]", Event, ()),
    ],
)
def test_every_key_of_a_part_is_in_its_row(row, kind, further):
    assert _told(row) == {*(one.name for one in fields(kind)), *further}


def test_the_keys_of_a_message_are_in_its_row():
    (message,) = answer_json(answer_of(landed(pub()), ID))["messages"]
    assert _told("messages[]") == set(message)


def _told(row):
    (keys,) = re.findall(rf"^\| `{re.escape(row)}` \| `([^`]+)` \|$", DOCUMENT, re.MULTILINE)
    return set(keys.split(", "))
