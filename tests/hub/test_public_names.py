"""The public names of the hub are listed, and their docstrings name the arguments."""

from __future__ import annotations

import inspect
import re

import pytest

from ortet.hub.governance.service import Governance
from ortet.hub.hub import Hub
from ortet.hub.maintenance import Maintenance
from ortet.hub.memory_queries import MemoryQueries
from ortet.hub.transfer import Transfer

VERBS = {
    "approve",
    "archive",
    "audit",
    "bill",
    "branches",
    "close",
    "comment",
    "diff",
    "diff_runs",
    "drop",
    "erase",
    "export",
    "get",
    "import_",
    "is_open",
    "log",
    "pull",
    "push",
    "recall",
    "remove",
    "restore",
    "session",
    "sessions",
    "show",
    "sweep",
    "tag",
    "tags",
    "turn",
    "unarchive",
    "verify",
    "whatif",
    "workspace",
}
FACETS = {"governance", "maintenance", "memory", "swarms", "transfer", "vault"}
INTERNAL = {"internals"}
"""Names for other packages of ortet."""

OF_FACETS = {
    Governance: "archive audit bill erase export_jsonl hold release remove retain retention "
    "unarchive",
    Maintenance: "backup drop leftovers sweep tidy verify",
    MemoryQueries: "consolidate diff episodes recall",
    Transfer: "export from_carry from_checkpoint import_ pull push",
}


def public(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")}


def undocumented_arguments(kind: type, name: str) -> list[str]:
    """Return the arguments that the docstring of a public name leaves out."""
    member = inspect.getattr_static(kind, name)
    function = getattr(member, "fget", None) or getattr(member, "func", member)
    text = inspect.getdoc(function) or ""
    assert text, f"{name} has no docstring"
    parameters = [one for one in inspect.signature(function).parameters if one != "self"]
    return [one for one in parameters if not re.search(rf"\b{one}\b", text)]


def test_the_public_names_grow_only_on_purpose() -> None:
    assert public(Hub) == VERBS | FACETS | INTERNAL


@pytest.mark.parametrize("facet", OF_FACETS, ids=lambda facet: facet.__name__)
def test_the_names_of_a_facet_grow_only_on_purpose(facet: type) -> None:
    assert public(facet) == set(OF_FACETS[facet].split())


@pytest.mark.parametrize("name", sorted(VERBS | FACETS | INTERNAL))
def test_a_docstring_names_all_arguments(name: str) -> None:
    assert undocumented_arguments(Hub, name) == []


@pytest.mark.parametrize("facet", OF_FACETS, ids=lambda facet: facet.__name__)
def test_a_docstring_of_a_facet_names_all_arguments(facet: type) -> None:
    assert {n: args for n in public(facet) if (args := undocumented_arguments(facet, n))} == {}
