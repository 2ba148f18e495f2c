"""The public names of a workspace are listed, and their docstrings name the arguments."""

from __future__ import annotations

import inspect
import re

import pytest

from ortet.workspaces.workspace import Workspace

VERBS = {
    "close",
    "commit",
    "diff",
    "fork",
    "kernel",
    "land",
    "log",
    "merge",
    "redo",
    "resolve",
    "restore",
    "resume",
    "rewind",
    "run",
    "shell",
    "spawn",
    "status",
    "suspend",
    "undo",
    "wait_for_changes",
}
ATTRIBUTES = {"control_socket", "engine", "head", "losses", "name", "path", "row"}
FACETS = {"kernels", "programs"}
INTERNAL = {"announce_forks", "fork_with_extras"}
"""Names for sessions, which fork together with their workspace."""


def test_the_public_names_grow_only_on_purpose() -> None:
    assert {
        name for name in dir(Workspace) if not name.startswith("_")
    } == VERBS | ATTRIBUTES | FACETS | INTERNAL


@pytest.mark.parametrize("name", sorted(VERBS | ATTRIBUTES | FACETS | INTERNAL))
def test_a_docstring_names_all_arguments(name: str) -> None:
    member = inspect.getattr_static(Workspace, name)
    function = getattr(member, "fget", None) or getattr(member, "func", member)
    text = inspect.getdoc(function) or ""
    assert text, f"{name} has no docstring"
    parameters = [one for one in inspect.signature(function).parameters if one != "self"]
    assert [one for one in parameters if not re.search(rf"\b{one}\b", text)] == []
