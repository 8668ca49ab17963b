"""Fixtures of the proof: each corpus reconciled once."""

import pytest

from tests.faults.corpora import CORPORA
from tests.faults.runs import reconciled


@pytest.fixture(scope="session")
def corpora():
    """The corpora of seed 0, by name."""
    return {name: made(0) for name, made in CORPORA.items()}


@pytest.fixture(scope="session")
def judged_corpora(corpora, tmp_path_factory):
    """What the real job says of each corpus, from files to verdicts, by name."""
    root = tmp_path_factory.mktemp("corpora")
    return {name: reconciled(corpus, root / name) for name, corpus in corpora.items()}
