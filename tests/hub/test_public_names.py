"""The public names of the hub are listed, and their docstrings name the arguments."""

from __future__ import annotations

import inspect
import re

import pytest

from ortet.hub.hub import Hub

VERBS = {
    "approve",
    "archive",
    "audit",
    "bill",
    "branches",
    "close",
    "comment",
    "consolidate",
    "diff",
    "diff_runs",
    "drop",
    "episodes",
    "erase",
    "export",
    "from_carry",
    "from_checkpoint",
    "get",
    "has_open_sessions",
    "import_",
    "is_open",
    "log",
    "memory_diff",
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
FACETS = {"governance", "maintenance", "swarms", "transfer", "vault"}
INTERNAL = {"open_branch_session", "pause_open_sessions", "session_manager"}
"""Names for the surfaces, which open the sessions of other programs."""


def test_the_public_names_grow_only_on_purpose() -> None:
    assert {name for name in dir(Hub) if not name.startswith("_")} == VERBS | FACETS | INTERNAL


@pytest.mark.parametrize("name", sorted(VERBS | FACETS | INTERNAL))
def test_a_docstring_names_all_arguments(name: str) -> None:
    member = inspect.getattr_static(Hub, name)
    function = getattr(member, "fget", None) or getattr(member, "func", member)
    text = inspect.getdoc(function) or ""
    assert text, f"{name} has no docstring"
    parameters = [one for one in inspect.signature(function).parameters if one != "self"]
    assert [one for one in parameters if not re.search(rf"\b{one}\b", text)] == []
