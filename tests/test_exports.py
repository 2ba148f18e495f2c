"""The names that `import ortet` gives: each resolves, and each result type is among them."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import ortet
from ortet.hub.governance.service import Governance
from ortet.hub.maintenance import Maintenance
from ortet.hub.memory_queries import MemoryQueries
from ortet.hub.transfer import Transfer
from ortet.sessions.reader import SessionReader
from ortet.sessions.session import Session
from ortet.workspaces.programs import WorkspaceKernels, WorkspacePrograms

SOURCE = Path(ortet.__file__).parent

PUBLIC_CLASSES = [
    ortet.Hub,
    Governance,
    Maintenance,
    MemoryQueries,
    Transfer,
    SessionReader,
    Session,
    ortet.Workspace,
    WorkspacePrograms,
    WorkspaceKernels,
    ortet.Kernel,
    ortet.SessionKernel,
    ortet.Job,
]

NOT_FOR_USERS = {
    "ControlSocket",
    "ChangeNotice",
    "ForkParent",
    "KernelReply",
    "Lease",
    "WorkspaceRow",
}
"""Records that only other parts of the package read."""


def records_of_ortet() -> set[str]:
    return {
        node.name
        for path in SOURCE.rglob("*.py")
        for node in ast.parse(path.read_bytes()).body
        if isinstance(node, ast.ClassDef)
        for base in node.bases
        if ast.unparse(base) in ("msgspec.Struct", "StateRecord", "NamedTuple", "str")
    }


def names_in(annotation: object) -> set[str]:
    tree = ast.parse(str(annotation), mode="eval")
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}


def returned_names(owner: type) -> dict[str, set[str]]:
    returned = {}
    for name, member in inspect.getmembers(owner):
        function = member.fget if isinstance(member, property) else member
        if name.startswith("_") or not inspect.isfunction(function):
            continue
        annotation = function.__annotations__.get("return", "None")
        returned[f"{owner.__name__}.{name}"] = names_in(annotation)
    return returned


@pytest.mark.parametrize("name", ortet.__all__)
def test_every_exported_name_resolves(name: str) -> None:
    assert getattr(ortet, name) is not None
    assert name in dir(ortet)


@pytest.mark.parametrize("name", [name for name in ortet.__all__ if name != "__version__"])
def test_every_exported_name_has_a_docstring(name: str) -> None:
    assert inspect.getdoc(getattr(ortet, name))


def described_attributes(record: type) -> list[str]:
    """Return the names in the section `Attributes:` of a docstring."""
    section = (inspect.getdoc(record) or "").partition("\nAttributes:\n")[2]
    return re.findall(r"^ {4}(\w+): \S", section, re.MULTILINE)


def fields_of(name: str) -> list[str]:
    """Return the fields of an exported record, or [] if the name is no record."""
    record = getattr(ortet, name)
    return list(getattr(record, "__struct_fields__", getattr(record, "_fields", ())))


@pytest.mark.parametrize("name", ortet.__all__)
def test_the_docstring_of_a_record_describes_each_attribute(name: str) -> None:
    if fields := fields_of(name):
        assert described_attributes(getattr(ortet, name)) == fields


def test_every_record_that_a_public_verb_returns_is_exported() -> None:
    records = records_of_ortet() - NOT_FOR_USERS
    missing = {
        f"{verb} -> {name}"
        for owner in PUBLIC_CLASSES
        for verb, names in returned_names(owner).items()
        for name in names & records
        if name not in ortet.__all__
    }
    assert missing == set()


def test_type_checkers_see_exactly_the_names_that_are_exported() -> None:
    tree = ast.parse((SOURCE / "__init__.py").read_bytes())
    typed: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            for line in node.body:
                assert isinstance(line, ast.ImportFrom)
                typed |= {alias.name for alias in line.names}
                lazy = {ortet._LAZY[alias.name] for alias in line.names}
                assert lazy == {line.module}
    assert typed == ortet._LAZY.keys()
    assert typed < set(ortet.__all__)


def test_import_ortet_loads_no_module_but_its_errors() -> None:
    code = "import sys, ortet; print(*sorted(n for n in sys.modules if n.startswith('ortet.')))"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.split() == ["ortet.errors"]


def test_no_public_verb_of_a_hub_or_workspace_takes_unnamed_options() -> None:
    facets = (Governance, Maintenance, MemoryQueries, Transfer, WorkspacePrograms)
    for owner in (ortet.Hub, ortet.Workspace, *facets):
        for name, member in inspect.getmembers(owner, inspect.isfunction):
            if not name.startswith("_"):
                parameters = inspect.signature(member).parameters.values()
                assert not any(p.kind is p.VAR_KEYWORD for p in parameters), f"{owner}.{name}"
