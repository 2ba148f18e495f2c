"""Names say what a thing is: a class name is unique, and no name is a bare participle."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import ortet

SOURCE = Path(ortet.__file__).parent
PARTICIPLE = re.compile(r"_?(told|said|given|kept|made|found|known|seen|held)", re.IGNORECASE)

PUBLIC = {
    "kernels/link.py": "a field that the guide of kernels documents",
}
"""File -> why one of its names is a participle."""


def definitions() -> Iterator[tuple[Path, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef]]:
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                yield path, node


def test_a_class_name_is_unique_in_the_package() -> None:
    places = defaultdict(list)
    for path, node in definitions():
        if isinstance(node, ast.ClassDef):
            places[node.name].append(path.relative_to(SOURCE).as_posix())
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def test_no_class_or_function_is_named_by_a_bare_participle() -> None:
    assert [
        f"{path.relative_to(SOURCE)}: {node.name}"
        for path, node in definitions()
        if PARTICIPLE.fullmatch(node.name) and not path.as_posix().endswith(tuple(PUBLIC))
    ] == []


def test_no_docstring_begins_with_the_same() -> None:
    """Such a docstring needs the line above it."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    assert [
        f"{path.relative_to(SOURCE)}: {text.splitlines()[0]}"
        for path in sorted(SOURCE.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, kinds)
        and (text := ast.get_docstring(node) or "").startswith("The same")
    ] == []
