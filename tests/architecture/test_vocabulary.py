"""Attribute names are the registry's, or carry our own prefix."""

import ast
import importlib
import pkgutil
import re

import pytest
from opentelemetry.semconv import _incubating, attributes

from otel_mqtrace import semconv
from tests.support.source_tree import ROOT, name_of, shipped, tree_of

OURS = "mqtrace."


def _registry() -> set[str]:
    names: set[str] = set()
    for package in (attributes, importlib.import_module(f"{_incubating.__name__}.attributes")):
        for info in pkgutil.iter_modules(package.__path__, prefix=f"{package.__name__}."):
            module = importlib.import_module(info.name)
            names |= {value for value in vars(module).values() if isinstance(value, str)}
    return names


def _literals(*prefixes: str) -> dict[str, str]:
    return {name: value for name, value in vars(semconv).items() if name.startswith(prefixes) and "." in str(value)}


def test_registry_names_are_in_the_installed_conventions_package():
    ours_to_check = _literals("MESSAGING_", "SERVER_", "ERROR_", "NETWORK_", "CLIENT_")
    newer_than_package = {"messaging.kafka.cluster.id"}
    missing = {name: value for name, value in ours_to_check.items() if value not in _registry() | newer_than_package}
    assert len(ours_to_check) > 10
    assert missing == {}


def test_the_registry_s_namespace_is_not_grown():
    assert [value for value in _literals("MQTRACE_").values() if not value.startswith(OURS)] == []


def test_no_name_is_spelled_twice():
    values = [
        value for value in vars(semconv).values() if isinstance(value, str) and value.startswith((OURS, "messaging."))
    ]
    assert len(values) == len(set(values))


def test_a_client_knows_no_attribute():
    """What is intercepted is told to the hooks in their words; only they say it in attributes."""
    spelled = {value for value in vars(semconv).values() if isinstance(value, str) and "." in value}
    a_name = re.compile(r"(messaging|mqtrace(?!\.client\.)|server|error)\.[a-z_.]+\Z")  # mqtrace.client.… are metrics
    found = [
        f"{name_of(path)}:{node.lineno}: {node.value}"
        for path in shipped()
        if path.is_relative_to(ROOT / "otel_mqtrace" / "clients")
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        if node.value in spelled or a_name.match(node.value)
    ]
    assert found == []


@pytest.mark.parametrize("adapter", ["aiokafka", "rocketmq"])
def test_a_small_adapter_uses_no_attribute_s_constant(adapter):
    found = [
        f"{name_of(path)}:{node.lineno}: {node.attr}"
        for path in shipped()
        if path.is_relative_to(ROOT / "otel_mqtrace" / "clients" / adapter)
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "semconv"
        if not node.attr.startswith(("HEADER_", "SEND_"))
    ]
    assert found == []
