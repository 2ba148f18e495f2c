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
    from ortet.journal.checkpoint import AgentCheckpoint
    from ortet.journal.upcast import upcast
    from ortet.memory.embedders import Embedder
    from ortet.session.actions import action
    from ortet.session.hub import Hub
    from ortet.session.session import Session
    from ortet.session.workspace import Workspace

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
    from ortet.config import open_hub  # lazily: `ortet --version` must not load a database

    return open_hub(url, embedder=embedder)


_LAZY = {
    "AgentCheckpoint": "ortet.journal.checkpoint",
    "Hub": "ortet.session.hub",
    "Session": "ortet.session.session",
    "Workspace": "ortet.session.workspace",
    "action": "ortet.session.actions",
    "upcast": "ortet.journal.upcast",
}


def __dir__() -> list[str]:
    return sorted(__all__)  # also what is loaded at first use: help() and completion show it


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        from importlib import import_module

        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'ortet' has no attribute {name!r}")
