"""``__all__`` is the truth about what a module offers."""

import ast
import importlib

from tests.support.source_tree import name_of, shipped, tree_of


def _declared(path):
    for node in tree_of(path).body:
        targets = [node.target] if isinstance(node, ast.AnnAssign) else getattr(node, "targets", [])
        if any(isinstance(target, ast.Name) and target.id == "__all__" for target in targets):
            return ast.literal_eval(node.value)
    return None


def _defined(path):
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return [node.name for node in tree_of(path).body if isinstance(node, kinds) and not node.name.startswith("_")]


def _module_name(path):
    return name_of(path).removesuffix(".py").removesuffix("/__init__").replace("/", ".")


WITH_ALL = [path for path in shipped() if _declared(path) is not None]


def test_modules_with_public_functions_declare_them():
    """A module that defines public functions or classes has an ``__all__``."""
    assert [name_of(path) for path in shipped() if _defined(path) and _declared(path) is None] == []


def test_every_declared_name_exists_once():
    """Every name of ``__all__`` can be had from its module, lazily or not."""
    wrong = {}
    for path in WITH_ALL:
        names, module = _declared(path), importlib.import_module(_module_name(path))
        if len(names) != len(set(names)) or not all(hasattr(module, name) for name in names):
            wrong[name_of(path)] = names
    assert wrong == {}


def test_every_public_definition_is_declared():
    """A function or class without an underscore is in ``__all__``: else it should have the underscore."""
    missing = {name_of(path): set(_defined(path)) - set(_declared(path)) for path in WITH_ALL}
    assert {name: names for name, names in missing.items() if names} == {}
