"""Conversations and workflow checkpoints of Microsoft's Agent Framework, kept in an Ortet store."""

from __future__ import annotations

from ortet.errors import Unsupported

try:
    import agent_framework as _framework  # noqa: F401 - it, or a word about how to get it
except ImportError as _error:
    raise Unsupported(
        "extra_missing",
        'the Agent Framework is not installed: pip install "ortet[agent-framework]"',
    ) from _error

from ortet.integrations.agent_framework.checkpoints import OrtetCheckpointStorage
from ortet.integrations.agent_framework.history import OrtetHistoryProvider

__all__ = ["OrtetCheckpointStorage", "OrtetHistoryProvider"]
