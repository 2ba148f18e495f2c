"""Fixtures stay in one place: a name has few definitions, and no test imports another test.

A fixture that several files need belongs to tests/fixtures or to the conftest.py of their folder.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parent
MOST = 3
"""How many files may define a fixture of one name."""

MORE = {
    "opener": 10,  # contracts of ortet.testing: each backend gives its own
    "engine": 4,
    "bucket": 5,
    "catalog": 4,
    "hub": 8,  # with a clock, a vault, or on a shared store
    "store": 7,  # of objects, or of an adapter
    "ws": 4,  # on another engine, or with commits
    "url": 4,  # of a store with another bucket
    "server": 5,  # of HTTP, PostgreSQL, Valkey or a model
    "here": 12,  # scenes of one file each
    "scene": 8,
    "session": 6,
    "hosts": 5,
    "root": 5,
    "setting": 5,
    "place": 4,
    "bench": 4,
    "index": 4,
    "s": 5,
}
"""Names that more files define, because the fixtures differ: name -> how many files at most."""


def modules() -> Iterator[tuple[str, ast.Module]]:
    for path in sorted(TESTS.rglob("*.py")):
        yield path.relative_to(TESTS).as_posix(), ast.parse(path.read_bytes())


def fixture_name(node: ast.FunctionDef | ast.AsyncFunctionDef) -> str | None:
    """Return the name of the fixture that a function defines, or None."""
    for decorator in node.decorator_list:
        function = decorator.func if isinstance(decorator, ast.Call) else decorator
        if ast.unparse(function) not in ("pytest.fixture", "fixture"):
            continue
        given = decorator.keywords if isinstance(decorator, ast.Call) else []
        names = [word.value for word in given if word.arg == "name"]
        return str(ast.literal_eval(names[0])) if names else node.name
    return None


def definitions() -> dict[str, list[str]]:
    """Return the files that define a fixture, by its name."""
    found: dict[str, set[str]] = defaultdict(set)
    for path, module in modules():
        for node in ast.walk(module):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and (
                name := fixture_name(node)
            ):
                found[name].add(path)
    return {name: sorted(paths) for name, paths in found.items()}


def test_no_fixture_is_defined_in_many_files() -> None:
    many = {
        name: paths for name, paths in definitions().items() if len(paths) > MORE.get(name, MOST)
    }
    assert not many, f"use the fixture of tests/fixtures, or choose a telling name: {many}"


def test_limits_are_not_larger_than_needed() -> None:
    found = definitions()
    counts = {name: len(found.get(name, ())) for name in MORE}
    loose = {name: count for name, count in counts.items() if count < MORE[name]}
    assert not loose, f"lower these limits in MORE: {loose}"


def test_no_module_imports_a_test_or_a_conftest() -> None:
    wrong = []
    for path, module in modules():
        for node in ast.walk(module):
            if isinstance(node, ast.ImportFrom) and node.module:
                last = node.module.rpartition(".")[2]
                near = node.level > 0 or node.module.startswith("tests.")
                if near and (last == "conftest" or last.startswith("test_")):
                    wrong.append(f"{path}: {node.module}")
    assert not wrong, f"move what they share to tests/fixtures: {wrong}"
