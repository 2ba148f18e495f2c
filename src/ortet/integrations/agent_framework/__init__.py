"""Stores conversations and workflow checkpoints of Microsoft's Agent Framework.

Start with `OrtetHistoryProvider` (`history.py`) or `OrtetCheckpointStorage` (`checkpoints.py`).
Large values of a checkpoint are split into parts that are stored once.

- `messages`: converts framework messages to session messages and back.
- `values`: converts checkpoint values to plain data and back, without pickle.

Invariants:

- An AgentSession is one Ortet session; checkpoints are records of a session.
- Decoding a checkpoint creates only allowed types and runs no pickled code by default.
- Saved messages and checkpoints are on disk when the call returns.

Importing this package without the framework raises Unsupported("extra_missing"). It may import
`integrations._shared`, `hub`, `sessions` and the layers below.
"""

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
