"""Sessions of the Claude Agent SDK, kept in a store: `OrtetSessionStore(hub)`."""

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
