"""Ortet: git for the whole AI agent."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from ortet.errors import (
    Conflict,
    Corrupt,
    Diverged,
    Invalid,
    NotFound,
    OrtetError,
    RecordedFailure,
    Refused,
    Unavailable,
    Unsettled,
    Unsupported,
)

if TYPE_CHECKING:
    from ortet.hub.hub import Hub
    from ortet.journal.reports.checkpoint import AgentCheckpoint
    from ortet.journal.upcasts import upcast
    from ortet.memory.embedders.base import Embedder
    from ortet.sessions.actions.actions import action
    from ortet.sessions.session import Session
    from ortet.workspaces.workspace import Workspace

__version__ = "0.1.0"

__all__ = [
    "AgentCheckpoint",
    "Conflict",
    "Corrupt",
    "Diverged",
    "Hub",
    "Invalid",
    "NotFound",
    "OrtetError",
    "RecordedFailure",
    "Refused",
    "Session",
    "Unavailable",
    "Unsettled",
    "Unsupported",
    "Workspace",
    "__version__",
    "action",
    "open",
    "upcast",
]


def open(
    url: str | os.PathLike[str] | None = None, *, embedder: Embedder | str | None = None
) -> Hub:
    """Open a store; by default $ORTET_URL, the nearest .ortet file or the user's data directory.

    `embedder` finds memories by meaning, too: "wordllama", "minilm" or one of your own.
    """
    from ortet.config.environment import (
        open_hub,  # lazily: `ortet --version` must not load a database
    )

    return open_hub(url, embedder=embedder)


_LAZY = {
    "AgentCheckpoint": "ortet.journal.reports.checkpoint",
    "Hub": "ortet.hub.hub",
    "Session": "ortet.sessions.session",
    "Workspace": "ortet.workspaces.workspace",
    "action": "ortet.sessions.actions.actions",
    "upcast": "ortet.journal.upcasts",
}


def __dir__() -> list[str]:
    return sorted(__all__)  # also what is loaded at first use: help() and completion show it


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        from importlib import import_module

        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'ortet' has no attribute {name!r}")
