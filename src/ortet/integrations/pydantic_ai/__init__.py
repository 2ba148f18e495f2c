"""Stores message histories of Pydantic AI in an Ortet store.

Start with `OrtetHistory` in `history.py`: `await chat.run(agent, "…")`.

- `history`: loads, runs and saves a conversation, and has the event loop for synchronous runs.
- `messages`: converts Pydantic AI messages to session messages and back.

Invariants:

- A conversation is one session; a message of Pydantic AI is one message of it.
- A message that this release of Pydantic AI cannot read stays stored unchanged.
- Each message of a run is stored as soon as it exists.

Importing this package without Pydantic AI raises Unsupported("extra_missing"). It may import
`integrations._shared`, `hub`, `sessions` and the layers below.
"""

from __future__ import annotations

from ortet.errors import Unsupported

try:
    import pydantic_ai as _framework  # noqa: F401 - it, or a word about how to get it
except ImportError as _error:
    raise Unsupported(
        "extra_missing", 'Pydantic AI is not installed: pip install "ortet[pydantic-ai]"'
    ) from _error

from ortet.integrations.pydantic_ai.history import OrtetHistory

__all__ = ["OrtetHistory"]
