"""`OrtetArtifactService`: stores ADK artifacts as artifacts of sessions."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from google.adk.artifacts import BaseArtifactService, artifact_util
from google.adk.artifacts.base_artifact_service import ArtifactVersion, ensure_part
from google.adk.errors.input_validation_error import InputValidationError
from google.genai import types

from ortet.errors import NotFound
from ortet.hub.hub import Hub, hub_of
from ortet.integrations.adk.events import decode_field, encode_field, plain_state
from ortet.integrations.adk.sessions import adk_session_name, get_adk_session_pool, run_in_thread
from ortet.journal.state.records import Artifact
from ortet.sessions.actions.artifacts import data_of as content_of
from ortet.sessions.actions.artifacts import key_of, last_version
from ortet.sessions.reader import SessionReader
from ortet.sessions.writing.bulk_import import append_events
from ortet.sessions.writing.large_events import EventInput, full_data

TEXT, INLINE, LINK, DELETED = "text", "inline", "link", "deleted"
"""Artifact kinds, as `artifacts()` lists them."""

DETAILS = "adk.artifact"
"""Event kind before an artifact event, with the fields that an artifact cannot hold."""

_USERS = "user:"
_MAX_REFERENCE_DEPTH = 5


class OrtetArtifactService(BaseArtifactService):
    """An ADK artifact service on an Ortet store.

    Artifacts of a session are in that session. Artifacts of a user are in a session of the user.
    Saving again adds a version. A deleted artifact is no longer listed but stays in the journal.

    In all methods, a file name that begins with "user:" names an artifact of the user, and
    `session_id` is needed for all other names.

    Example:
        runner = Runner(..., artifact_service=OrtetArtifactService(hub))
    """

    def __init__(self, hub: Hub, *, agent: str = "default") -> None:
        """Use an open store.

        Args:
            hub: The open store.
            agent: Agent that owns the sessions.
        """
        self._pool = get_adk_session_pool(hub, agent)

    async def save_artifact(
        self,
        *,
        app_name: str,
        user_id: str,
        filename: str,
        artifact: types.Part | dict[str, Any],
        session_id: str | None = None,
        custom_metadata: dict[str, Any] | None = None,
    ) -> int:
        """Store an artifact as a new version; durable when this returns.

        Args:
            app_name: Name of the app.
            user_id: Id of the user.
            filename: Name of the artifact.
            artifact: Text, bytes, or a reference to a file.
            session_id: Id of the session.
            custom_metadata: Data to store with the version.

        Returns:
            The number of the version; the first is 0.

        Raises:
            InputValidationError: If the artifact or a name is not valid.
        """
        name = _artifact_session_name(app_name, user_id, session_id, filename)
        part = ensure_part(artifact)
        _check_reference(part, app_name, user_id, session_id)
        metadata = plain_state(custom_metadata or {})
        return await run_in_thread(self._save, name, filename, part, metadata)

    async def load_artifact(
        self,
        *,
        app_name: str,
        user_id: str,
        filename: str,
        session_id: str | None = None,
        version: int | None = None,
    ) -> types.Part | None:
        """Return a version of an artifact, by default the newest, or None if it does not exist.

        References to other artifacts are followed.
        """
        for hops in range(_MAX_REFERENCE_DEPTH, -1, -1):
            name = _artifact_session_name(app_name, user_id, session_id, filename)
            part = await run_in_thread(self._load, name, filename, version)
            if part is None or not artifact_util.is_artifact_ref(part):
                return part
            assert part.file_data is not None
            parsed = artifact_util.resolve_artifact_reference(
                file_uri=part.file_data.file_uri or "",
                app_name=app_name,
                user_id=user_id,
                session_id=session_id,
                remaining_depth=hops,
            )
            app_name, user_id, session_id, filename, version = parsed
        return None

    async def list_artifact_keys(
        self, *, app_name: str, user_id: str, session_id: str | None = None
    ) -> list[str]:
        """Return the names of the artifacts of a user, and of a session if one is given."""
        names = [adk_session_name(app_name, user_id)]
        if session_id is not None:
            names.append(adk_session_name(app_name, user_id, session_id))
        keys: set[str] = set()
        for name in names:
            keys |= await run_in_thread(self._keys, name)
        return sorted(keys)

    async def delete_artifact(
        self, *, app_name: str, user_id: str, filename: str, session_id: str | None = None
    ) -> None:
        """Delete an artifact. Version numbers start again at 0; the journal keeps the old ones."""
        name = _artifact_session_name(app_name, user_id, session_id, filename)
        await run_in_thread(self._delete, name, filename)

    async def list_versions(
        self, *, app_name: str, user_id: str, filename: str, session_id: str | None = None
    ) -> list[int]:
        """Return the version numbers of an artifact."""
        versions = await self.list_artifact_versions(
            app_name=app_name, user_id=user_id, filename=filename, session_id=session_id
        )
        return [artifact_version.version for artifact_version in versions]

    async def list_artifact_versions(
        self, *, app_name: str, user_id: str, filename: str, session_id: str | None = None
    ) -> list[ArtifactVersion]:
        """Return the versions of an artifact with their metadata, oldest first."""
        name = _artifact_session_name(app_name, user_id, session_id, filename)
        scope = session_id if name.count("/") == 2 else None
        uri = artifact_util.get_artifact_uri(app_name, user_id, filename, 0, scope)
        return await run_in_thread(self._versions, name, filename, uri)

    async def get_artifact_version(
        self,
        *,
        app_name: str,
        user_id: str,
        filename: str,
        session_id: str | None = None,
        version: int | None = None,
    ) -> ArtifactVersion | None:
        """Return the metadata of a version, by default the newest, or None if there is none."""
        versions = await self.list_artifact_versions(
            app_name=app_name, user_id=user_id, filename=filename, session_id=session_id
        )
        number = len(versions) - 1 if version is None else version
        return versions[number] if 0 <= number < len(versions) else None

    # Synchronous bodies, run in a thread.

    def _save(self, name: str, filename: str, part: types.Part, metadata: dict[str, Any]) -> int:
        data = part.model_dump(mode="json", exclude_none=True)
        arguments, details = _split_part(part, data)
        if metadata:
            details["metadata"] = metadata
        with self._pool.writing(name) as session:
            if details:
                key = {"name": filename, "version": _last(session, filename) + 1}
                append_events(
                    session, [EventInput(DETAILS, {**key, **encode_field("details", details)})]
                )
            stored = session.artifact(filename, **arguments)
            return stored.version - 1 - _deleted_version(session, filename)

    def _load(self, name: str, filename: str, version: int | None) -> types.Part | None:
        with suppress(NotFound), self._pool.reading(name) as view:
            base, last = _deleted_version(view, filename), _last(view, filename)
            wanted = last if version is None else base + 1 + version
            if base < wanted <= last and (version is None or version >= 0):
                part = _build_part(view, _get_version(view, filename, wanted))
                return None if _is_empty(part) else part
        return None

    def _keys(self, name: str) -> set[str]:
        with suppress(NotFound), self._pool.reading(name) as view:
            newest = {one.name: one for one in view.artifacts()}
            return {
                one.name for one in newest.values() if one.kind != DELETED and _is_adk_artifact(one)
            }
        return set()

    def _delete(self, name: str, filename: str) -> None:
        with suppress(NotFound), self._pool.writing(name, create=False) as session:
            if _last(session, filename) > _deleted_version(session, filename):
                session.artifact(filename, kind=DELETED, data=b"")

    def _versions(self, name: str, filename: str, uri: str) -> list[ArtifactVersion]:
        versions: list[ArtifactVersion] = []
        with suppress(NotFound), self._pool.reading(name) as view:
            base, last = _deleted_version(view, filename), _last(view, filename)
            stem = uri.removeprefix("artifact").removesuffix("0")
            for number in range(base + 1, last + 1):
                one = _get_version(view, filename, number)
                details = _details(view, one)
                linked = one.kind == LINK and one.link.startswith("artifact://")
                versions.append(
                    ArtifactVersion(
                        version=number - 1 - base,
                        canonical_uri=f"ortet{stem}{number - 1 - base}",
                        custom_metadata=details.get("metadata", {}),
                        create_time=one.time / 1e9,
                        mime_type=None if linked else details.get("media", one.media or None),
                    )
                )
        return versions


def _artifact_session_name(app: str, user: str, session: str | None, filename: str) -> str:
    """Return the name of the session that holds an artifact."""
    artifact_util.validate_path_segment(app, "app_name")
    artifact_util.validate_path_segment(user, "user_id")
    if filename.startswith(_USERS):
        return adk_session_name(app, user)
    if session is None:
        raise InputValidationError("Session ID must be provided for session-scoped artifacts.")
    artifact_util.validate_path_segment(session, "session_id")
    return adk_session_name(app, user, session)


def _check_reference(part: types.Part, app: str, user: str, session: str | None) -> None:
    if part.inline_data is None and part.text is None and part.file_data is None:
        raise InputValidationError("Not supported artifact type.")
    if artifact_util.is_artifact_ref(part):
        assert part.file_data is not None
        uri = part.file_data.file_uri or ""
        parsed = artifact_util.parse_artifact_uri(uri)
        if parsed is None:
            raise InputValidationError(f"Invalid artifact reference URI: {uri}")
        artifact_util.validate_artifact_reference_scope(
            app_name=app, user_id=user, session_id=session, parsed_uri=parsed
        )


def _split_part(part: types.Part, data: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split an ADK part into artifact arguments and the fields that an artifact cannot hold."""
    details: dict[str, Any] = {}
    if part.inline_data is not None:
        blob = part.inline_data
        fields = {"kind": INLINE, "data": blob.data or b"", "media": blob.mime_type or ""}
        del data["inline_data"]
        rest = blob.model_dump(mode="json", exclude_none=True, exclude={"data", "mime_type"})
        if blob.mime_type is None:
            details["media"] = None
        if blob.data is None:
            rest["data"] = None
        if rest:
            details["blob"] = rest
    elif part.text is not None:
        fields = {"kind": TEXT, "data": part.text.encode("utf-8", "surrogatepass")}
        fields["media"] = "text/plain"
        del data["text"]
    else:
        file = data.pop("file_data")
        fields = {
            "kind": LINK,
            "link": file.pop("file_uri", ""),
            "media": file.pop("mime_type", ""),
        }
        if not fields["media"]:
            details["media"] = None
        if not fields["link"]:
            fields["data"] = b""
        if file:
            details["file"] = file
    if data:
        details["part"] = data
    return fields, details


def _build_part(view: SessionReader, artifact: Artifact) -> types.Part:
    details = _details(view, artifact)
    data: dict[str, Any] = dict(details.get("part", {}))
    media = details.get("media", artifact.media or None)
    part = types.Part.model_validate(data)
    if artifact.kind == TEXT:
        part.text = content_of(view.internals.store.objects, artifact).decode(
            "utf-8", "surrogatepass"
        )
    elif artifact.kind == LINK:
        file = {"file_uri": artifact.link or None, "mime_type": media, **details.get("file", {})}
        part.file_data = types.FileData.model_validate(file)
    else:
        part.inline_data = types.Blob(
            mime_type=media,
            data=content_of(view.internals.store.objects, artifact),
            **details.get("blob", {}),
        )
    return part


def _details(view: SessionReader, artifact: Artifact) -> dict[str, Any]:
    """Return the extra fields from the event before the artifact, if that belongs to it."""
    for event in view.events(max(0, artifact.seq - 2), artifact.seq - 1):
        if event.kind == DETAILS and not event.erased:
            data = full_data(hub_of(view).store, event)
            if (data.get("name"), data.get("version")) == (artifact.name, artifact.version):
                details: dict[str, Any] = decode_field("details", data)
                return details
    return {}


def _is_empty(part: types.Part) -> bool:
    """Return True for the placeholder that an ADK rewind saves for a missing artifact."""
    return part == types.Part() or artifact_util._is_rewind_tombstone(part)


def _is_adk_artifact(artifact: Artifact) -> bool:
    return artifact.kind in (TEXT, INLINE, LINK)


def _last(view: SessionReader, name: str) -> int:
    return last_version(view.internals.state.artifacts, name)


def _get_version(view: SessionReader, name: str, version: int) -> Artifact:
    artifact = view.internals.state.artifacts.get(key_of(name, version))
    assert artifact is not None  # Versions have no gaps.
    return artifact


def _deleted_version(view: SessionReader, name: str) -> int:
    """Return the version of the last deletion, or 0. ADK's numbers restart after it."""
    versions = range(_last(view, name), 0, -1)
    return next((one for one in versions if _get_version(view, name, one).kind == DELETED), 0)
