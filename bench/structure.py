"""Measures folders, names, inheritance, import cycles and public names of the source tree.

`scripts/structure` prints the table, and so does `scripts/lint`. `tests/test_structure.py` uses the
functions to check the limits.
"""

from __future__ import annotations

import ast
from collections import Counter, defaultdict
from pathlib import Path

SOURCE = Path(__file__).resolve().parent.parent / "src"
LARGE_FOLDERS = ("cli/commands", "server/operations", "machines/standalone")
MAX_MODULES = 16
MIN_LINES = 60
RECORD_BASES = {"Struct", "NamedTuple", "Exception", "Enum", "StrEnum", "IntEnum", "TypedDict"}


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
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.startswith("ortet."):
                    found[alias.asname or alias.name] = alias.name
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


def import_cycles() -> list[list[str]]:
    """Return the modules of each import cycle (Tarjan's algorithm, without recursion)."""
    graph = {module: sorted(edges(module)) for module in TREES}
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    on_stack: set[str] = set()
    cycles: list[list[str]] = []
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
                    members = stack[stack.index(node) :]
                    del stack[-len(members) :]
                    on_stack.difference_update(members)
                    if len(members) > 1:
                        cycles.append(sorted(members))
    return cycles


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


def is_abstract(full: str) -> bool:
    """Return True for a contract, also one with default methods."""
    return is_contract(full) or any(
        isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef)
        and any("abstractmethod" in ast.unparse(mark) for mark in item.decorator_list)
        for item in CLASSES[full].body
    )


def concrete_bases(full: str) -> list[str]:
    """Return the bases that are neither contracts nor records nor exceptions."""
    return [base for base in bases_of(full) if not is_abstract(base) and not is_record(base)]


def is_record(full: str) -> bool:
    """Return True for a record or an exception, also one that extends another."""
    bases = {ast.unparse(base).rpartition(".")[2] for base in CLASSES[full].bases}
    if bases & RECORD_BASES:
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


def folder_sizes() -> Counter[str]:
    """Return the number of modules of each folder."""
    return Counter(
        path.parent.relative_to(SOURCE / "ortet").as_posix()
        for path, _ in TREES.values()
        if path.name != "__init__.py"
    )


def large_folders() -> list[str]:
    return sorted(
        name
        for name, size in folder_sizes().items()
        if size > MAX_MODULES and name not in LARGE_FOLDERS
    )


def small_modules() -> list[str]:
    """Return the modules below 60 lines whose docstring does not say "of its own"."""
    return sorted(
        path.relative_to(SOURCE / "ortet").as_posix()
        for path, tree in TREES.values()
        if path.name not in ("__init__.py", "__main__.py")
        and path.read_text().count("\n") < MIN_LINES
        and "of its own" not in " ".join((ast.get_docstring(tree) or "").split())
    )


def package_docstrings() -> dict[str, int]:
    """Return the number of lines of the docstring of each package below `ortet`."""
    return {
        module: len((ast.get_docstring(tree) or "").splitlines())
        for module, (path, tree) in TREES.items()
        if path.name == "__init__.py" and module != "ortet"
    }


def main() -> None:
    places = defaultdict(set)
    for full in CLASSES:
        places[full.rpartition(".")[2]].add(full)
    texts = docstrings()
    named = {
        name: len(public_names(f"ortet.{name}"))
        for name in ("sessions.session.Session", "hub.hub.Hub", "workspaces.workspace.Workspace")
    }
    large = large_folders()
    for label, value in {
        "modules": folder_sizes().total(),
        "folders with more than 16 modules": f"{len(large)} {' '.join(large)}",
        "modules below 60 lines without a stated reason": len(small_modules()),
        "class names used more than once": sum(len(found) > 1 for found in places.values()),
        "deepest chain of concrete classes": max(map(depth, CLASSES)),
        "largest import cycle": max(map(len, import_cycles()), default=1),
        "public names of Session / Hub / Workspace": " / ".join(map(str, named.values())),
        "docstrings that begin 'The same'": sum(text.startswith("The same") for text in texts),
    }.items():
        print(f"{label:<48}{value}")


if __name__ == "__main__":
    main()
