"""Services of Google's Agent Development Kit, kept in a store: sessions, artifacts, memory."""

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
