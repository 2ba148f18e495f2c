"""The artifact facet of a session: versions of results, their content and lineage."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, BinaryIO

from ortet._util.failpoints import failpoint
from ortet._util.validation import FLAG, check_text, require
from ortet.journal.events import Draft
from ortet.journal.state.records import Artifact
from ortet.sessions.actions import artifacts
from ortet.sessions.actions.artifacts import Lineage, Orphans, StoredContent, data_of, find
from ortet.sessions.actions.model_calls import as_bytes
from ortet.sessions.context import SessionContext
from ortet.sessions.writing.pipeline import VerbPipeline, need_writer
from ortet.store.sweep_retry import retry_on_sweep

if TYPE_CHECKING:
    from ortet.workspaces.workspace import Workspace

_SECRET_HINT = "make it without (variables of a kernel: declare others)"


class ArtifactStore:
    """The artifacts of a session.

    `workspace` gives the files of the session, or None if it has none.
    """

    def __init__(
        self,
        context: SessionContext,
        pipeline: VerbPipeline | None = None,
        *,
        workspace: Callable[[], Workspace | None] = lambda: None,
    ) -> None:
        self._context = context
        self.store = context.store
        self._pipeline = pipeline
        self._workspace = workspace

    @property
    def _verbs(self) -> VerbPipeline:
        return need_writer(self._pipeline)

    def artifact(
        self,
        name: str | os.PathLike[str],
        *,
        kind: str = "",
        data: bytes | str | BinaryIO | None = None,
        media: str = "",
        link: str = "",
        why: str = "",
        allow_secrets: bool = False,
    ) -> Artifact:
        """Store an artifact. The same name again makes the next version.

        The artifact records the action in which it was made.

        Args:
            name: the name, or the path of the file in the workspace if there is no `data` and no
                `link`.
            kind: what it is, for example "report".
            data: the content, or an open file that is read from its first byte.
            media: the media type; by default guessed from the name.
            link: where the content is, if it is not stored.
            why: the reason.
            allow_secrets: store it even if it holds a known secret.

        Raises:
            Refused: "secret_found" if it holds a known secret.
        """
        check_text(kind=kind, media=media, link=link, why=why)
        require(FLAG, allow_secrets=allow_secrets)
        with self.store.secrets.allow(allow_secrets):
            made, kept = self.store_version(
                name, kind=kind, data=data, media=media, link=link, why=why
            )
        self._verbs.auto_commit_if_due("artifact", made)
        return kept

    @retry_on_sweep
    def store_version(
        self,
        name: str | os.PathLike[str],
        *,
        kind: str,
        data: bytes | str | BinaryIO | None,
        media: str = "",
        link: str = "",
        why: str = "",
    ) -> tuple[dict[str, Any], Artifact]:
        """Store the next version of an artifact, and return its event data and the artifact."""
        self._verbs.begin_change()
        text = artifacts.check_name(name)
        with self.store.writing():  # a sweep must not delete the content before the event exists
            content = StoredContent("", 0)
            if data is not None and not isinstance(data, bytes | str) and hasattr(data, "fileno"):
                fd = artifacts.descriptor(data, text)
                content = artifacts.store_open(self.store.objects, fd, text, f"the file of {text}")
            elif data is not None:
                held = as_bytes(data)
                if search := self.store.objects.scanner:
                    search.data(held, f"artifact {text}", _SECRET_HINT)
                content = artifacts.store_content(self.store.objects, held)
            elif not link:
                text, path = artifacts.locate(text, self._root())
                content = artifacts.store_file(self.store.objects, path, text)
            self.store.objects.flush()
            failpoint("artifact.stored")
            with self._verbs.writer.exclusive():  # two threads must not make the same version
                made = {
                    "name": text,
                    "version": artifacts.last_version(self._context.state.artifacts, text) + 1,
                    "oid": content.oid,
                    "size": content.size,
                    "kind": kind,
                    "media": media or artifacts.guess_media(text, data),
                    "link": link,
                    "action": self._verbs.effects.current(),
                    "why": why,
                }
                # durable at once: only an event in the catalog protects its content from a sweep
                self._verbs.writer.add(
                    Draft("artifact", made, self.store.author, content.refs), durable=True
                )
                return made, artifacts.find(self._context.state.artifacts, text, None)

    def orphans(self) -> Orphans:
        """Return artifacts whose content is lost, and files without an artifact."""
        known, files = self.artifacts(), self._workspace()
        return Orphans(
            missing=artifacts.missing_content(self.store.objects, known),
            files=artifacts.unaccounted_files(files, known) if files is not None else [],
        )

    # reading

    def artifacts(self) -> list[Artifact]:
        """Return all versions of all artifacts, by name."""
        return list(self._context.state.artifacts)

    def artifact_data(self, name: str, version: int | None = None) -> bytes:
        """Return the content of an artifact; the last version by default.

        Raises:
            NotFound: there is no such artifact or version.
        """
        return data_of(self.store.objects, find(self._context.state.artifacts, name, version))

    def lineage(self, name: str, version: int | None = None) -> Lineage:
        """Return the artifact with the action and the reason that led to it."""
        artifact = find(self._context.state.artifacts, name, version)
        action = self._context.state.effects.get(artifact.action) if artifact.action else None
        return Lineage(artifact, action, artifact.why or (action.why if action else ""))

    # private

    def _root(self) -> os.PathLike[str] | None:
        files = self._workspace()
        return files.path if files is not None else None
