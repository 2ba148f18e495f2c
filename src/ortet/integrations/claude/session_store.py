"""`OrtetSessionStore`: the SessionStore of the Claude Agent SDK on an opened store."""

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
from ortet.hub.hub import Hub
from ortet.ids import from_hex
from ortet.integrations._shared.session_pool import Lent, session_name
from ortet.integrations.claude.entries import Entry, entry_of, is_prompt, prompt_of, telling_of
from ortet.integrations.claude.listing import (
    BEGUN,
    LISTED,
    Listed,
    begun,
    data_of,
    folded,
    listed,
    listing,
    name_of,
    read,
)
from ortet.integrations.claude.rewind import FIRST, RESUMED, Rewound, Turn, rewind, seq_of, turns_of
from ortet.journal.conversation.text import one_line
from ortet.sessions.history.forking import fork_as
from ortet.sessions.history.rewind import commit_at
from ortet.sessions.history.shared_directory import commit_with, hold
from ortet.sessions.memory.recall import line_of
from ortet.sessions.session import Session
from ortet.sessions.writing.telling import Telling, seal_if_long, tell
from ortet.store.sweep_retry import repeated
from ortet.workspaces.places import existing
from ortet.workspaces.workspace import Workspace

T = TypeVar("T")
_TITLE = 72
_MOST = 256
"""Transcripts of which is remembered which lines they have."""
_PATIENCE = 20.0
"""Seconds to wait for another process; the SDK gives `append` sixty."""


class _Known:
    """What this process knows of a transcript, as of one event of a timeline."""

    def __init__(self, timeline: str) -> None:
        self.timeline = timeline
        self.seq = 0
        self.begun = False
        self.uuids: set[str] = set()
        self.data: dict[str, Any] = {}
        self.left: list[Entry] | None = None  # written, and their files are not committed yet


class OrtetSessionStore(SessionStore):
    """Transcripts as sessions of an agent: each line is a message or a record, durable when
    `append` returns, and a line of a uuid that is known is not written again.

    With `workspace`, the directory that the agent works in, every batch is committed together with
    the files, whoever changed them, and `rewind` brings both back.
    """

    def __init__(
        self,
        hub: Hub,
        *,
        workspace: str | os.PathLike[str] | None = None,
        agent: str = "default",
    ) -> None:
        self._lent = Lent(hub, agent=agent, patience=_PATIENCE)
        self._known: dict[str, _Known] = {}
        self._place = None if workspace is None else existing(workspace)
        if self._place is not None:
            with self._lent.hub() as own:
                cast(Workspace, self._files(own)).commit(FIRST)

    def close(self) -> None:
        """Let every session go."""
        self._lent.close()

    # what the SDK calls

    async def append(self, key: SessionKey, entries: list[SessionStoreEntry]) -> None:
        await _in_thread(self._append, key, cast(list[Entry], entries))

    async def load(self, key: SessionKey) -> list[SessionStoreEntry] | None:
        return await _in_thread(self._load, key)

    async def list_sessions(self, project_key: str) -> list[SessionStoreListEntry]:
        found = await _in_thread(self._listed, project_key)
        return [{"session_id": one.key["session_id"], "mtime": one.mtime} for one in found]

    async def list_session_summaries(self, project_key: str) -> list[SessionSummaryEntry]:
        return [one.summary for one in await _in_thread(self._listed, project_key)]

    async def delete(self, key: SessionKey) -> None:
        await _in_thread(self._delete, key)

    async def list_subkeys(self, key: SessionListSubkeysKey) -> list[str]:
        found = await _in_thread(self._below, name_of(cast(SessionKey, key)), 3)
        return [one.key["subpath"] for one in found if "subpath" in one.key]

    # what it can beside that

    async def turns(
        self, session_id: str, *, directory: str | os.PathLike[str] | None = None
    ) -> list[Turn]:
        """What was asked for, in order. `directory` is the project's, else the workspace, else the
        current one."""
        name = name_of(self._key(session_id, directory))

        def look() -> list[Turn]:
            with self._lent.reading(name) as view:
                return turns_of(view)

        return await _in_thread(look)

    async def rewind(
        self,
        session_id: str,
        to: str | int,
        *,
        directory: str | os.PathLike[str] | None = None,
    ) -> Rewound:
        """Conversation and files as they were behind the message of uuid `to`, or before the last
        `to` turns; also a commit that `turns` or a rewind named. Nothing is lost by it."""
        name = name_of(self._key(session_id, directory))

        def go() -> Rewound:
            with self._lent.writing(name, create=False) as session:
                self._known.pop(name, None)
                return rewind(session, self._files(session.hub), to)

        return await _in_thread(go)

    async def fork(
        self,
        session_id: str,
        *,
        up_to_message_id: str | None = None,
        directory: str | os.PathLike[str] | None = None,
    ) -> str:
        """Another session that goes on from here, or from a message on: its id. Costs the same
        however long the transcript is; subagents' transcripts stay with the first."""
        key = self._key(session_id, directory)
        return await _in_thread(self._fork, key, up_to_message_id)

    # inside, in a thread

    def _append(self, key: SessionKey, entries: list[Entry]) -> None:
        name = name_of(key)
        if not entries:
            return
        with self._lent.writing(name) as session:
            known = self._catch_up(name, session, key)
            files = None if "subpath" in key else self._files(session.hub)
            if known.left != entries:
                self._write(session, known, key, entries, files)
            if files is None:
                seal_if_long(session, "transcript")
            else:
                known.left = entries
                commit_with(session, files, _title(entries))
                known.left = None

    def _write(
        self,
        session: Session,
        known: _Known,
        key: SessionKey,
        entries: list[Entry],
        files: Workspace | None,
    ) -> None:
        new, uuids = [], set[str]()
        told: list[Telling] = []
        for entry in entries:
            telling = telling_of(entry, sub="subpath" in key)
            uuid = entry.get("uuid")
            if isinstance(uuid, str):
                if uuid in known.uuids or uuid in uuids:
                    continue
                uuids.add(uuid)
            new.append(entry)
            told.append(telling)
        if not told:
            return
        if not known.begun:
            if files is not None:
                hold(session, files, FIRST)
            told.insert(0, begun(key))
        data = folded(key, known.data, new)
        events = tell(session, [*told, listing(key, data)])
        known.begun, known.data, known.seq = True, data, events[-1].seq
        known.uuids |= uuids

    def _catch_up(self, name: str, session: Session, key: SessionKey) -> _Known:
        """With what other processes have written meanwhile."""
        known, timeline = self._known.pop(name, None), session.row.timeline
        if known is None or known.timeline != timeline:
            known = _Known(timeline)
        self._known[name] = known  # at the end: the one used last
        if len(self._known) > _MOST:
            del self._known[next(iter(self._known))]
        upto, since = session.mind.core.events, list[Entry]()
        for event in session.events(known.seq, upto):
            if event.kind == LISTED and not event.erased:
                known.data, since = data_of(session.hub, event), []
            elif event.kind == BEGUN:
                known.begun = True
            elif (entry := entry_of(session.hub, event)) is not None:
                since.append(entry)
                if isinstance(uuid := entry.get("uuid"), str):
                    known.uuids.add(uuid)
        known.seq, known.data = upto, folded(key, known.data, since)
        return known

    def _load(self, key: SessionKey) -> list[SessionStoreEntry] | None:
        name = name_of(key)
        try:
            with self._lent.reading(name) as view:
                told = read(view)
        except NotFound as error:
            if error.kind != "no_session":
                raise
            return None
        if told is None:
            return None
        if self._place is not None and "subpath" not in key:
            # it is about to go on: what a person changed meanwhile is not of the next turn
            with suppress(OrtetError), self._lent.writing(name, create=False) as session:
                files = self._files(session.hub)
                assert files is not None
                commit_with(session, files, RESUMED)
        return [cast(SessionStoreEntry, entry) for _, entry in told.lines]

    def _listed(self, project_key: str) -> list[Listed]:
        return [
            one for one in self._below(session_name(project_key), 2) if "subpath" not in one.key
        ]

    def _below(self, name: str, parts: int) -> list[Listed]:
        """Transcripts whose names go on from this one; forks that were made otherwise are none."""
        found = []
        for other in self._lent.names(f"{name}/"):
            if other.count("/") == parts - 1:
                with self._lent.hub() as hub:
                    row = hub._minds().roll.find(self._lent.agent, other)
                    one = listed(hub, line_of(hub._minds(), row)) if row else None
                if one is not None and name_of(one.key) == other:
                    found.append(one)
        return found

    def _delete(self, key: SessionKey) -> None:
        name = name_of(key)
        subs = [] if "subpath" in key else [name_of(one.key) for one in self._below(name, 3)]
        for other in [*subs, name]:
            self._known.pop(other, None)
            with suppress(NotFound), self._lent.aside(other) as (hub, row):
                hub.remove(row.id)

    def _fork(self, key: SessionKey, upto: str | None) -> str:
        new: SessionKey = {"project_key": key["project_key"], "session_id": str(uuid4())}
        with self._lent.writing(name_of(key), create=False) as session:
            told = read(session)
            if told is None:
                raise NotFound("no_session", f"there is no transcript {key['session_id']!r}")
            hub, seq = session.hub, None if upto is None else seq_of(told, upto)
            copy = repeated(hub, lambda: _copied(session, name_of(new), seq))
            found = listed(hub, copy.line)
            data = found.data if found is not None else {}
            tell(copy, [begun(new, forked_from=key["session_id"]), listing(new, data)])
        return new["session_id"]

    def _files(self, hub: Hub) -> Workspace | None:
        """The workspace, open in this hub. Conflict("workspace_taken") where a session of its own
        works in it."""
        if self._place is None:
            return None
        for one in hub.opened():
            if one.row.directory == self._place and one.row.files == "inplace":
                return one
        files = hub.workspace(self._place, files="inplace")
        other = hub._minds().roll.of_branch(files.name)
        if other is not None:
            files.close()
            raise Conflict(
                "workspace_taken",
                f"session {other.name!r} works in {self._place} already, and its commits hold the "
                "files: leave workspace= out, or remove that session",
            )
        return files

    def _key(self, session_id: str, directory: str | os.PathLike[str] | None) -> SessionKey:
        place = self._place if directory is None else Path(directory)
        return {"project_key": project_key_for_directory(place), "session_id": session_id}


def _copied(session: Session, name: str, seq: int | None) -> Session:
    """A fork of this name, of the head or of what was so at an event."""
    with session.hub.writing():  # the commit may be one that only its id leads to
        point = from_hex(session.commit("fork point").oid)
        if seq is not None:
            point = commit_at(session.hub._minds(), session.row, session.line, seq)
        return fork_as(session, name, point)


async def _in_thread(function: Callable[..., T], *args: Any) -> T:
    return await to_thread.run_sync(partial(function, *args))


def _title(entries: list[Entry]) -> str:
    asked = next((prompt_of(one) for one in reversed(entries) if is_prompt(one)), "")
    return one_line(asked, _TITLE) or "turn"
