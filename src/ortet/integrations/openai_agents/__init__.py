"""Stores sessions of the OpenAI Agents SDK in an Ortet store.

Start with `OrtetSession` in `session.py`; pass it to `Runner.run(…, session=…)`.

- `session`: `OrtetSession` and `OrtetCompactingSession`, which compacts without a service.
- `conversation`: what both share: items of the current branch, calls in order in a thread.
- `turns`: turns, and the tokens that each one used.
- `branches`: branches, which are forks of the session.
- `compaction`: support of the SDK's own compaction, and local compaction.
- `items`: convert items of the Responses API to messages and back.
- `item_cache`: cache the items of an open session.

Invariants:

- The items of the SDK are messages of one session; a branch is a fork of it.
- Every item can be read back unchanged.
- Calls of one object run in the order in which they are made, each completely or not at all.

Importing this package without the SDK raises Unsupported("extra_missing"). It may import
`integrations._shared`, `hub`, `sessions` and the layers below.
"""

from __future__ import annotations

from ortet.errors import Unsupported

try:
    import agents as _agents  # noqa: F401 - the SDK, or a word about how to get it
except ImportError as _error:
    raise Unsupported(
        "extra_missing",
        'the OpenAI Agents SDK is not installed: pip install "ortet[openai-agents]"',
    ) from _error

from ortet.integrations.openai_agents.session import OrtetCompactingSession, OrtetSession

__all__ = ["OrtetCompactingSession", "OrtetSession"]
