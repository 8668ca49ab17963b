"""What is public is documented and everything is annotated."""

import ast

from tests.support.source_tree import functions_of, name_of, shipped, tree_of


def _functions():
    return [function for path in shipped() for function in functions_of(path)]


def test_every_function_is_annotated_in_full():
    assert {f.qualified: f.unannotated for f in _functions() if f.unannotated} == {}


def test_every_public_function_and_method_has_a_docstring():
    assert [f.qualified for f in _functions() if f.public and not f.documented] == []


def test_every_public_class_has_a_docstring():
    bare = [
        f"{name_of(path)}:{node.name}"
        for path in shipped()
        for node in tree_of(path).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_") and not ast.get_docstring(node)
    ]
    assert bare == []


def test_every_module_has_a_docstring():
    """A package file may stay empty."""
    modules = [path for path in shipped() if path.name not in {"__init__.py", "__main__.py"}]
    assert [name_of(path) for path in modules if not ast.get_docstring(tree_of(path))] == []
