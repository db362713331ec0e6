"""The stubs are the documentation of the extension: every name in them exists, and no other does."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

import mlx.core  # noqa: F401  (_ops links to its library)
import pytest

import pomona

MODULES = ("_core", "_ops")


def stub_names(tree: ast.Module | ast.ClassDef) -> dict[str, ast.AST]:
    """Functions, classes, properties and attributes declared in a body."""
    names: dict[str, ast.AST] = {}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names[node.name] = node
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names[node.target.id] = node
    return names


@pytest.mark.parametrize("name", MODULES)
def test_stub_and_module_agree(name: str) -> None:
    module = importlib.import_module(f"pomona.{name}")
    stub = Path(pomona.__file__).with_name(f"{name}.pyi")
    declared = stub_names(ast.parse(stub.read_text()))
    public = {attribute for attribute in dir(module) if not attribute.startswith("_")}
    assert set(declared) == public
    for class_name, node in declared.items():
        if not isinstance(node, ast.ClassDef):
            continue
        members = set(stub_names(node)) - {"__init__"}
        present = {m for m in vars(getattr(module, class_name)) if not m.startswith("_")}
        assert members == present, class_name
