"""Sessions of the OpenAI Agents SDK, kept in an Ortet store."""

from __future__ import annotations

from ortet.errors import Unsupported

try:
    import agents as _agents  # noqa: F401 - the SDK, or a word about how to get it
except ImportError as _error:
    raise Unsupported(
        "extra_missing",
        'the OpenAI Agents SDK is not installed: pip install "ortet[openai-agents]"',
    ) from _error

from ortet.integrations.openai_agents.compacting import OrtetCompactingSession
from ortet.integrations.openai_agents.session import OrtetSession

__all__ = ["OrtetCompactingSession", "OrtetSession"]
