"""Artifacts of a session by name and version, and their lineage. Separate operations stream their
bytes.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from ortet.errors import Invalid
from ortet.journal.state.records import Artifact
from ortet.server.operations.registry import operation
from ortet.server.pagination import Page, Paged, paginate
from ortet.server.schemas import OperationRequest
from ortet.sessions.actions.artifacts import Lineage, Orphans
from ortet.sessions.reader import SessionReader
from ortet.sessions.session import Session

ArtifactName = Annotated[str, msgspec.Meta(min_length=1, max_length=1000)]
Version = Annotated[int, msgspec.Meta(ge=1, le=10**9)]


class ListArtifacts(Paged, frozen=True):
    """`versions`: all versions, not only the last version of each artifact. `name` and `kind`: only
    artifacts with this name or kind.
    """

    name: str | None = None
    kind: str | None = None
    versions: bool = False


@operation("GET", "/sessions/{session}/artifacts")
def list_artifacts(view: SessionReader, ask: ListArtifacts) -> Page[Artifact]:
    """List the artifacts of a session by name. An artifact is a file, a text or a link."""
    listed = sorted(view.artifacts(), key=lambda one: (one.name, one.version))
    if not ask.versions:
        listed = list({one.name: one for one in listed}.values())
    chosen = [
        one for one in listed if ask.name in (None, one.name) and ask.kind in (None, one.kind)
    ]
    return paginate(chosen, ask, lambda one: f"{one.name}@{one.version}")


class KeepArtifact(OperationRequest, frozen=True):
    """`link`: the address of the content. `data`: the content as text. If both are missing, the
    content is the file of this name in the workspace.
    """

    name: ArtifactName
    link: str = ""
    data: str | None = None
    kind: str = ""
    media: str = ""
    why: str = ""


@operation("POST", "/sessions/{session}/artifacts", status=201)
def artifact(session: Session, ask: KeepArtifact) -> Artifact:
    """Store an artifact. If the name exists already, this is its next version. A PUT request stores
    bytes.
    """
    if ask.link and ask.data is not None:
        raise Invalid("bad_request", "link and data exclude each other: give one of them")
    if not ask.link and ask.data is None and not session.internals.row.has_files:
        raise Invalid("no_workspace", f"the session has no file {ask.name!r}: give link or data")
    return session.artifact(
        ask.name, link=ask.link, data=ask.data, kind=ask.kind, media=ask.media, why=ask.why
    )


class AskLineage(OperationRequest, frozen=True):
    """`version`: the version of the artifact, by default the last."""

    name: ArtifactName
    version: Version | None = None


@operation("GET", "/sessions/{session}/lineage")
def lineage(view: SessionReader, ask: AskLineage) -> Lineage:
    """Show the lineage of an artifact: the action that made it, and the reason."""
    return view.artifact_store.lineage(ask.name, ask.version)


@operation("POST", "/sessions/{session}/orphans")
def orphans(session: Session) -> Orphans:
    """Find artifacts whose content is missing, and files that no event explains."""
    return session.artifact_store.orphans()
