"""Measures folders, names, inheritance, import cycles and public names of the source tree.

`scripts/structure` prints the table, and so does `scripts/lint`.
"""

from __future__ import annotations

import ast
from collections import Counter, defaultdict
from pathlib import Path

SOURCE = Path(__file__).resolve().parent.parent / "src"
LARGE_FOLDERS = ("cli/commands", "server/operations", "machines/standalone")


def module_name(path: Path) -> str:
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


TREES = {module_name(path): (path, ast.parse(path.read_text())) for path in SOURCE.rglob("*.py")}
CLASSES = {
    f"{module}.{node.name}": node
    for module, (_, tree) in TREES.items()
    for node in ast.walk(tree)
    if isinstance(node, ast.ClassDef)
}


def imports_of(module: str) -> dict[str, str]:
    """Return local name -> full name of everything that a module imports from the package."""
    found = {}
    for node in ast.walk(TREES[module][1]):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("ortet"):
            for alias in node.names:
                found[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    return found


IMPORTS = {module: imports_of(module) for module in TREES}


def edges(module: str) -> set[str]:
    """Return the modules that a module imports, type-only and function-level imports included."""
    found = set()
    for full in IMPORTS[module].values():
        target = full if full in TREES else full.rpartition(".")[0]
        if target in TREES and target != module:
            found.add(target)
    return found


def largest_cycle() -> int:
    """Return the size of the largest strongly connected component (Tarjan, without recursion)."""
    graph = {module: sorted(edges(module)) for module in TREES}
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    on_stack: set[str] = set()
    largest = 0
    for root, first in graph.items():
        if root in index:
            continue
        work = [(root, iter(first))]
        index[root] = low[root] = len(index)
        stack.append(root)
        on_stack.add(root)
        while work:
            node, targets = work[-1]
            for target in targets:
                if target not in index:
                    index[target] = low[target] = len(index)
                    stack.append(target)
                    on_stack.add(target)
                    work.append((target, iter(graph[target])))
                    break
                if target in on_stack:
                    low[node] = min(low[node], index[target])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == index[node]:
                    size = 0
                    while True:
                        top = stack.pop()
                        on_stack.discard(top)
                        size += 1
                        if top == node:
                            break
                    largest = max(largest, size)
    return largest


def bases_of(full: str) -> list[str]:
    module = full.rpartition(".")[0]
    names = [ast.unparse(base).partition("[")[0] for base in CLASSES[full].bases]
    known = [IMPORTS[module].get(name, f"{module}.{name}") for name in names if "." not in name]
    return [name for name in known if name in CLASSES]


def is_contract(full: str) -> bool:
    """Return True for a protocol, and for a class of which every method is abstract."""
    bases = {ast.unparse(base).rpartition(".")[2].partition("[")[0] for base in CLASSES[full].bases}
    methods = [
        item
        for item in CLASSES[full].body
        if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    return "Protocol" in bases or (
        bool(methods)
        and all(
            any("abstractmethod" in ast.unparse(mark) for mark in item.decorator_list)
            for item in methods
        )
    )


def is_record(full: str) -> bool:
    """Return True for a record or an exception, also one that extends another."""
    bases = {ast.unparse(base).rpartition(".")[2] for base in CLASSES[full].bases}
    if bases & {"Struct", "NamedTuple", "Exception", "Enum", "StrEnum"}:
        return True
    return any(is_record(base) for base in bases_of(full))


def depth(full: str) -> int:
    """Return the length of the longest chain of concrete classes that ends in this class."""
    own = 0 if is_contract(full) or is_record(full) else 1
    return own + max((depth(base) for base in bases_of(full)), default=0)


def public_names(full: str) -> set[str]:
    found = {
        item.name
        for item in CLASSES[full].body
        if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef) and item.name[0] != "_"
    }
    for base in bases_of(full):
        found |= public_names(base)
    return found


def docstrings() -> list[str]:
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    return [
        text
        for _, tree in TREES.values()
        for node in ast.walk(tree)
        if isinstance(node, kinds) and (text := ast.get_docstring(node))
    ]


def main() -> None:
    folders: Counter[str] = Counter()
    small = 0
    for path, tree in TREES.values():
        if path.name == "__init__.py":
            continue
        folders[path.parent.relative_to(SOURCE / "ortet").as_posix()] += 1
        if path.read_text().count("\n") < 60 and "of its own" not in (
            ast.get_docstring(tree) or ""
        ):
            small += 1
    places = defaultdict(set)
    for full in CLASSES:
        places[full.rpartition(".")[2]].add(full)
    texts = docstrings()
    named = {
        name: len(public_names(f"ortet.{name}"))
        for name in ("sessions.session.Session", "hub.hub.Hub", "workspaces.workspace.Workspace")
    }
    large = [name for name, size in folders.items() if size > 16 and name not in LARGE_FOLDERS]
    for label, value in {
        "modules": sum(folders.values()),
        "folders with more than 16 modules": f"{len(large)} {' '.join(sorted(large))}",
        "modules below 60 lines without a stated reason": small,
        "class names used more than once": sum(len(found) > 1 for found in places.values()),
        "deepest chain of concrete classes": max(map(depth, CLASSES)),
        "largest import cycle": largest_cycle(),
        "public names of Session / Hub / Workspace": " / ".join(map(str, named.values())),
        "docstrings that begin 'The same'": sum(text.startswith("The same") for text in texts),
    }.items():
        print(f"{label:<48}{value}")


if __name__ == "__main__":
    main()
