"""Every promise has its test, and every test here its promise."""

import ast

import pytest

from otel_mqtrace.config import Settings
from tests.contract.promises import PROMISES
from tests.support.source_tree import ROOT, tree_of


def _tests_of(file):
    tests = (
        node for node in ast.walk(tree_of(ROOT / file)) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    )
    return {node.name for node in tests if node.name.startswith("test_")}


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: f"{promise.section}: {promise.row}")
def test_promise_has_a_test(promise):
    assert promise.tests
    assert [f"{file}::{test}" for file, test in promise.tests if test not in _tests_of(file)] == []


def test_no_test_here_is_without_a_promise():
    promised = {test for promise in PROMISES for test in promise.tests}
    files = {file for file, _ in promised if file.startswith("tests/contract/")}
    assert sorted((file, test) for file in files for test in _tests_of(file) if (file, test) not in promised) == []


def test_every_promised_variable_is_a_setting():
    rows = {promise.row for promise in PROMISES if promise.row.startswith("MQTRACE_")}
    assert {row.removeprefix("MQTRACE_").lower() for row in rows} <= set(Settings.__dataclass_fields__)
    assert len(rows) == 17
