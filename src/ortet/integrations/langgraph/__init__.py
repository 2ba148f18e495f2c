"""LangGraph: `OrtetSaver`, a checkpointer, and `OrtetStore`, a long-term store, on an Ortet hub."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ortet.errors import Unsupported

if TYPE_CHECKING:
    from ortet.integrations.langgraph.checkpointer import OrtetSaver
    from ortet.integrations.langgraph.store.store import OrtetStore

__all__ = ["OrtetSaver", "OrtetStore"]

_MODULE_BY_NAME = {"OrtetSaver": "checkpointer", "OrtetStore": "store.store"}


def __getattr__(name: str) -> Any:
    if name not in _MODULE_BY_NAME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(f"{__name__}.{_MODULE_BY_NAME[name]}"), name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("langgraph", "langchain_core"):
            raise
        raise Unsupported(
            "extra_missing",
            'LangGraph is not installed here: pip install "ortet[langgraph]"',
        ) from error
