"""`OrtetSessionStore`: the session store of the Claude Agent SDK on an open hub."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast
from uuid import uuid4

from anyio import to_thread
from claude_agent_sdk import (
    SessionKey,
    SessionListSubkeysKey,
    SessionStore,
    SessionStoreEntry,
    SessionStoreListEntry,
    project_key_for_directory,
)
from claude_agent_sdk.types import SessionSummaryEntry

from ortet.errors import Conflict, NotFound, OrtetError
from ortet.hub.hub import Hub, hub_of
from ortet.ids import from_hex
from ortet.integrations._shared.session_pool import AdapterSessionPool, session_name
from ortet.integrations.claude.rewind import (
    FIRST_TURN_MESSAGE,
    RESUME_MESSAGE,
    Rewound,
    Turn,
    rewind_transcript,
    seq_of,
    turns_of,
)
from ortet.integrations.claude.transcript import (
    LISTING_EVENT,
    TRANSCRIPT_EVENT,
    TranscriptEntry,
    TranscriptListing,
    data_of,
    entry_of,
    fold_listing,
    is_prompt,
    listing,
    make_transcript_event,
    prompt_of,
    read_listing,
    read_transcript,
    to_journal_event,
    transcript_session_name,
)
from ortet.journal.conversation.text import one_line
from ortet.sessions.history.event_commit import commit_at
from ortet.sessions.history.fork_session import fork_named_session
from ortet.sessions.history.shared_directory import commit_directory_head, commit_with_files
from ortet.sessions.memory.recall import session_event_log
from ortet.sessions.session import Session
from ortet.sessions.writing.bulk_import import append_events, commit_if_many_events
from ortet.sessions.writing.large_events import EventInput
from ortet.store.sweep_retry import run_with_sweep_retry
from ortet.workspaces.table import existing_directory
from ortet.workspaces.workspace import Workspace

T = TypeVar("T")
_MAX_TITLE_CHARS = 72
_MAX_CACHED_TRANSCRIPTS = 256
"""Number of transcripts whose known line ids stay in memory."""
_LEASE_TIMEOUT_SECONDS = 20.0
"""Seconds to wait for another process; the SDK allows `append` sixty."""


class _TranscriptState:
    """Cached knowledge of a transcript, up to one event of a timeline."""

    def __init__(self, timeline: str) -> None:
        self.timeline = timeline
        self.seq = 0
        self.has_begun = False
        self.uuids: set[str] = set()
        self.listing_data: dict[str, Any] = {}
        self.uncommitted_entries: list[TranscriptEntry] | None = (
            None  # lines that are written but whose files are not committed
        )


class OrtetSessionStore(SessionStore):
    """Stores transcripts of the Claude Agent SDK as sessions of an agent.

    Each line is a message or a record. It is durable when `append` returns. A line whose uuid is
    already known is not written again.

    Example:
        store = OrtetSessionStore(ortet.open(), workspace=".")
        async for message in query(prompt=..., options=ClaudeAgentOptions(session_store=store)):
            ...
    """

    def __init__(
        self,
        hub: Hub,
        *,
        workspace: str | os.PathLike[str] | None = None,
        agent: str = "default",
    ) -> None:
        """Use an open store.

        Args:
            hub: The open store.
            workspace: Directory that the agent works in. If given, every batch is committed
                together with its files, including changes by others, and `rewind` restores both.
            agent: Agent that owns the sessions.

        Raises:
            Conflict: "workspace_taken", if another session works in the directory.
        """
        self._pool = AdapterSessionPool(hub, agent=agent, lease_timeout=_LEASE_TIMEOUT_SECONDS)
        self._states: dict[str, _TranscriptState] = {}
        self._workspace_path = None if workspace is None else existing_directory(workspace)
        if self._workspace_path is not None:
            with self._pool.hub() as own:
                cast(Workspace, self._files(own)).commit(FIRST_TURN_MESSAGE)

    def close(self) -> None:
        """Release all sessions."""
        self._pool.close()

    # Methods that the SDK calls.

    async def append(self, key: SessionKey, entries: list[SessionStoreEntry]) -> None:
        """Append lines to a transcript; durable when this returns.

        Args:
            key: Project, session and, for a subagent, its path.
            entries: The lines. Lines that are stored already are skipped.

        Raises:
            Refused: kind "lease_held", if another process keeps the session open.
        """
        await _in_thread(self._append, key, cast(list[TranscriptEntry], entries))

    async def load(self, key: SessionKey) -> list[SessionStoreEntry] | None:
        """Return the lines of a transcript, or None if it does not exist."""
        return await _in_thread(self._load, key)

    async def list_sessions(self, project_key: str) -> list[SessionStoreListEntry]:
        """Return the sessions of a project with the time of their last line."""
        listings = await _in_thread(self._listed, project_key)
        return [
            {"session_id": listing.key["session_id"], "mtime": listing.mtime}
            for listing in listings
        ]

    async def list_session_summaries(self, project_key: str) -> list[SessionSummaryEntry]:
        """Return the summaries of the sessions of a project."""
        listings = await _in_thread(self._listed, project_key)
        return [listing.summary for listing in listings]

    async def delete(self, key: SessionKey) -> None:
        """Remove a transcript and those of its subagents. Nothing happens if there is none."""
        await _in_thread(self._delete, key)

    async def list_subkeys(self, key: SessionListSubkeysKey) -> list[str]:
        """Return the paths of the subagents of a session."""
        name = transcript_session_name(cast(SessionKey, key))
        listings = await _in_thread(self._list_below, name, 3)
        return [listing.key["subpath"] for listing in listings if "subpath" in listing.key]

    # Methods beyond the SDK's interface.

    async def turns(
        self, session_id: str, *, directory: str | os.PathLike[str] | None = None
    ) -> list[Turn]:
        """Return the requests of a session in order.

        Args:
            session_id: the session.
            directory: the project directory; by default the workspace, else the current directory.

        Raises:
            NotFound: "no_session", if there is no such transcript.
        """
        name = transcript_session_name(self._key(session_id, directory))

        def read_turns() -> list[Turn]:
            with self._pool.reading(name) as view:
                return turns_of(view)

        return await _in_thread(read_turns)

    async def rewind(
        self,
        session_id: str,
        to: str | int,
        *,
        directory: str | os.PathLike[str] | None = None,
    ) -> Rewound:
        """Rewind conversation and files. No commit is lost.

        Args:
            session_id: the session.
            to: uuid of the last message to keep, a number of turns to undo, or a commit from
                `turns` or an earlier rewind.
            directory: the project directory; by default the workspace, else the current directory.

        Returns:
            The commit of the state before, and whether the files are exactly those at the message.

        Raises:
            NotFound: If there is no such transcript, message, turn or commit.
        """
        name = transcript_session_name(self._key(session_id, directory))

        def rewind_open() -> Rewound:
            with self._pool.writing(name, create=False) as session:
                self._states.pop(name, None)
                return rewind_transcript(session, self._files(hub_of(session)), to)

        return await _in_thread(rewind_open)

    async def fork(
        self,
        session_id: str,
        *,
        up_to_message_id: str | None = None,
        directory: str | os.PathLike[str] | None = None,
    ) -> str:
        """Fork a session.

        The cost does not depend on the length of the transcript. Transcripts of subagents are not
        copied.

        Args:
            session_id: the session to fork.
            up_to_message_id: uuid of the last message to keep; by default all messages.
            directory: the project directory; by default the workspace, else the current directory.

        Returns:
            The id of the new session.

        Raises:
            NotFound: If there is no such transcript or message.
        """
        key = self._key(session_id, directory)
        return await _in_thread(self._fork, key, up_to_message_id)

    # Synchronous bodies, run in a thread.

    def _append(self, key: SessionKey, entries: list[TranscriptEntry]) -> None:
        name = transcript_session_name(key)
        if not entries:
            return
        with self._pool.writing(name) as session:
            known = self._catch_up(name, session, key)
            files = None if "subpath" in key else self._files(hub_of(session))
            if known.uncommitted_entries != entries:
                self._write(session, known, key, entries, files)
            if files is None:
                commit_if_many_events(session, "transcript")
            else:
                known.uncommitted_entries = entries
                commit_with_files(session, files, _title(entries))
                known.uncommitted_entries = None

    def _write(
        self,
        session: Session,
        state: _TranscriptState,
        key: SessionKey,
        entries: list[TranscriptEntry],
        files: Workspace | None,
    ) -> None:
        new, uuids = [], set[str]()
        inputs: list[EventInput] = []
        for entry in entries:
            event_input = to_journal_event(entry, is_subagent="subpath" in key)
            uuid = entry.get("uuid")
            if isinstance(uuid, str):
                if uuid in state.uuids or uuid in uuids:
                    continue
                uuids.add(uuid)
            new.append(entry)
            inputs.append(event_input)
        if not inputs:
            return
        if not state.has_begun:
            if files is not None:
                commit_directory_head(session, files, FIRST_TURN_MESSAGE)
            inputs.insert(0, make_transcript_event(key))
        data = fold_listing(key, state.listing_data, new)
        events = append_events(session, [*inputs, listing(key, data)])
        state.has_begun, state.listing_data, state.seq = True, data, events[-1].seq
        state.uuids |= uuids

    def _catch_up(self, name: str, session: Session, key: SessionKey) -> _TranscriptState:
        """Update the cached state with events that other processes have written."""
        known, timeline = self._states.pop(name, None), session.internals.row.timeline
        if known is None or known.timeline != timeline:
            known = _TranscriptState(timeline)
        self._states[name] = known  # Move it to the end: the order is least recently used first.
        if len(self._states) > _MAX_CACHED_TRANSCRIPTS:
            del self._states[next(iter(self._states))]
        upto, since = session.internals.state.core.events, list[TranscriptEntry]()
        for event in session.events(known.seq, upto):
            if event.kind == LISTING_EVENT and not event.erased:
                known.listing_data, since = data_of(hub_of(session), event), []
            elif event.kind == TRANSCRIPT_EVENT:
                known.has_begun = True
            elif (entry := entry_of(hub_of(session), event)) is not None:
                since.append(entry)
                if isinstance(uuid := entry.get("uuid"), str):
                    known.uuids.add(uuid)
        known.seq, known.listing_data = upto, fold_listing(key, known.listing_data, since)
        return known

    def _load(self, key: SessionKey) -> list[SessionStoreEntry] | None:
        name = transcript_session_name(key)
        try:
            with self._pool.reading(name) as view:
                transcript = read_transcript(view)
        except NotFound as error:
            if error.kind != "no_session":
                raise
            return None
        if transcript is None:
            return None
        if self._workspace_path is not None and "subpath" not in key:
            # A resume follows. Commit changes that a person made, so that they are not part of the
            # next turn.
            with suppress(OrtetError), self._pool.writing(name, create=False) as session:
                files = self._files(hub_of(session))
                assert files is not None
                commit_with_files(session, files, RESUME_MESSAGE)
        return [cast(SessionStoreEntry, entry) for _, entry in transcript.lines]

    def _listed(self, project_key: str) -> list[TranscriptListing]:
        return [
            listing
            for listing in self._list_below(session_name(project_key), 2)
            if "subpath" not in listing.key
        ]

    def _list_below(self, name: str, depth: int) -> list[TranscriptListing]:
        """List the transcripts whose session names start with `name`.

        Forks that were not made by `fork` are left out.
        """
        listings = []
        for other in self._pool.names(f"{name}/"):
            if other.count("/") == depth - 1:
                with self._pool.hub() as hub:
                    sessions = hub.internals.session_manager
                    row = sessions.table.find(self._pool.agent, other)
                    listing = (
                        read_listing(hub, session_event_log(sessions.services, row))
                        if row
                        else None
                    )
                if listing is not None and transcript_session_name(listing.key) == other:
                    listings.append(listing)
        return listings

    def _delete(self, key: SessionKey) -> None:
        name = transcript_session_name(key)
        subs = (
            []
            if "subpath" in key
            else [transcript_session_name(one.key) for one in self._list_below(name, 3)]
        )
        for other in [*subs, name]:
            self._states.pop(other, None)
            with suppress(NotFound), self._pool.closed_session(other) as (hub, row):
                hub.remove(row.id)

    def _fork(self, key: SessionKey, upto: str | None) -> str:
        new: SessionKey = {"project_key": key["project_key"], "session_id": str(uuid4())}
        with self._pool.writing(transcript_session_name(key), create=False) as session:
            transcript = read_transcript(session)
            if transcript is None:
                raise NotFound("no_session", f"there is no transcript {key['session_id']!r}")
            hub, seq = hub_of(session), None if upto is None else seq_of(transcript, upto)
            copy = run_with_sweep_retry(
                hub.store, lambda: _fork_at(session, transcript_session_name(new), seq)
            )
            copied = read_listing(hub, copy.internals.event_log)
            data = copied.data if copied is not None else {}
            append_events(
                copy,
                [make_transcript_event(new, forked_from=key["session_id"]), listing(new, data)],
            )
        return new["session_id"]

    def _files(self, hub: Hub) -> Workspace | None:
        """Return the workspace, opened in this hub; None if the store has no workspace.

        Raises:
            Conflict: "workspace_taken" if another session works in this directory.
        """
        if self._workspace_path is None:
            return None
        for workspace in hub.workspaces.find_open():
            row = workspace.row
            if row.directory == self._workspace_path and row.files == "inplace":
                return workspace
        files = hub.workspace(self._workspace_path, files="inplace")
        other = hub.internals.session_manager.table.find_by_branch(files.name)
        if other is not None:
            files.close()
            raise Conflict(
                "workspace_taken",
                f"session {other.name!r} works in {self._workspace_path} already, and its commits "
                "hold the "
                "files: leave workspace= out, or remove that session",
            )
        return files

    def _key(self, session_id: str, directory: str | os.PathLike[str] | None) -> SessionKey:
        place = self._workspace_path if directory is None else Path(directory)
        return {"project_key": project_key_for_directory(place), "session_id": session_id}


def _fork_at(session: Session, name: str, seq: int | None) -> Session:
    """Fork the session under `name`, at its head or at event `seq`."""
    with session.internals.store.writing():  # The commit may be reachable only by its id.
        point = from_hex(session.commit("fork point").oid)
        if seq is not None:
            point = commit_at(
                hub_of(session).internals.services,
                session.internals.row,
                session.internals.event_log,
                seq,
            )
        return fork_named_session(session, name, point)


async def _in_thread(function: Callable[..., T], *args: Any) -> T:
    return await to_thread.run_sync(partial(function, *args))


def _title(entries: list[TranscriptEntry]) -> str:
    prompt = next((prompt_of(entry) for entry in reversed(entries) if is_prompt(entry)), "")
    return one_line(prompt, _MAX_TITLE_CHARS) or "turn"
