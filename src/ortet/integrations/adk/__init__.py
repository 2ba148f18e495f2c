"""Services of Google's Agent Development Kit (ADK) on an Ortet store.

Start with `OrtetSessionService` (`sessions.py`), `OrtetArtifactService` (`artifacts.py`) or
`OrtetMemoryService` (`memory.py`).

- `sessions`: also the state of apps and users, and the session pool of a hub.
- `events`: convert ADK events to journal events and back.

Invariants:

- An ADK session is one Ortet session, named APP/USER/SESSION.
- Data of a user outside a session is in the Ortet session APP/USER.
- An event is durable when `append_event` returns, in one transaction with its state rows.

Importing this package without google-adk raises Unsupported("extra_missing"). It may import
`integrations._shared`, `hub`, `sessions` and the layers below.
"""

from ortet.errors import Unsupported

try:
    import google.adk as _adk
except ModuleNotFoundError as error:
    raise Unsupported(
        "extra_missing",
        f"this needs the package google-adk ({error.name} is missing): pip install 'ortet[adk]'",
    ) from error

from ortet.integrations.adk.artifacts import OrtetArtifactService
from ortet.integrations.adk.memory import OrtetMemoryService
from ortet.integrations.adk.sessions import OrtetSessionService

del _adk

__all__ = ["OrtetArtifactService", "OrtetMemoryService", "OrtetSessionService"]
