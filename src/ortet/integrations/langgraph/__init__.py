"""LangGraph adapter: `OrtetSaver`, a checkpointer, and `OrtetStore`, a long-term store.

Start with `checkpointer.py` (`OrtetSaver`) or `store/store.py` (`OrtetStore`).

- `threads`: the threads of a store, read up to their last event.
- `thread`: the checkpoints and pending writes of one thread, folded from the journal.
- `values`: encodes channel values as parts that are stored once.
- `write`, `pending_writes`: append checkpoints and task writes in one transaction.
- `read`: builds the results of the checkpointer interface.
- `head_index`: finds the latest checkpoint without reading the whole journal.
- `branch_path`: decides which messages belong to the current branch of checkpoints.

Invariants:

- A LangGraph thread is one session. Its messages are messages of that session.
- A message or value that several checkpoints contain is stored once.
- `put` and `put_writes` are durable when they return.

Importing `OrtetSaver` or `OrtetStore` without LangGraph raises Unsupported("extra_missing"). This
package may import `integrations._shared`, `config`, `hub`, `sessions` and the layers below.
"""

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
