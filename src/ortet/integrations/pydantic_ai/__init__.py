"""Message histories of Pydantic AI, kept in an Ortet store."""

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
