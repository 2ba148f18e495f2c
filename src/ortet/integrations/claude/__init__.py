"""Stores sessions of the Claude Agent SDK in an Ortet store.

Start with `OrtetSessionStore(hub)` in `session_store.py`; pass it to the SDK as session store.

- `transcript`: convert transcript lines to journal events and back, and read what the SDK lists.
- `rewind`: list turns and rewind conversation and files together.

Invariants:

- A transcript is one session. A subagent's transcript is a session of its own.
- Every line that the SDK appends can be read back unchanged.
- A line whose uuid is already stored is not written again.

Importing this package without `claude_agent_sdk` raises Unsupported("extra_missing"). It may import
`integrations._shared`, `hub`, `sessions`, `workspaces` and the layers below.
"""

from ortet.errors import Unsupported

try:
    import claude_agent_sdk as _sdk
except ModuleNotFoundError as error:
    raise Unsupported(
        "extra_missing",
        f"this needs the package {error.name}: pip install 'ortet[claude]'",
    ) from error

from ortet.integrations.claude.rewind import Rewound, Turn
from ortet.integrations.claude.session_store import OrtetSessionStore

del _sdk

__all__ = ["OrtetSessionStore", "Rewound", "Turn"]
