"""The store, directory and session that an MCP server works on.

The session is opened for one call and released after it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ortet.cli.call import CliCall
from ortet.cli.session_args import find_session
from ortet.errors import Conflict, Invalid, NotFound, Refused

if TYPE_CHECKING:
    from ortet.hub.hub import Hub
    from ortet.sessions.reader import SessionReader
    from ortet.sessions.session import Session
    from ortet.sessions.table import SessionRow
    from ortet.workspaces.workspace import Workspace

_LEASE_TIMEOUT_SECONDS = 5.0
"""Time for which a session that another process has open is tried again.

A command of the user or a hook takes less.
"""

_LEASE_RETRY_SECONDS = 0.05
_TRIES = 100


class McpContext:
    """Finds the store and session as a command line call does, but lives as long as the server.

    The store stays open after its first use. The session is open only within `open_session`. Used
    by one thread at a time.

    Args:
        session: Name of the session; by default that of the directory.
        agent: The agent that the session belongs to.
        store: URL of the store; by default that of the directory.
    """

    def __init__(
        self, *, session: str | None = None, agent: str = "default", store: str | None = None
    ) -> None:
        self._session_name = session
        self.agent = agent
        self._store = store
        self.call = CliCall(self._open_hub)
        self._session_id = ""  # set when the session was found

    def __enter__(self) -> McpContext:
        return self

    def __exit__(self, *error: Any) -> None:
        call, self.call = self.call, CliCall(self._open_hub)
        call.__exit__(*error)

    def _open_hub(self, url: str | None, *, cwd: Path, create: bool) -> Hub:
        from ortet.config.environment import open_hub

        # Not with `one_shot`: such a hub may fork, and this server has threads.
        return open_hub(url or self._store, cwd=cwd, create=create, watch=False)

    @property
    def hub(self) -> Hub:
        """The hub, which stays open until this context ends.

        Raises NotFound(`no_store`) if the store does not exist.
        """
        return self.call.hub

    @property
    def has_hub(self) -> bool:
        """True if the store exists and is open."""
        return self.call.has_hub

    @property
    def directory(self) -> Path:
        """The workspace: the directory of the nearest pointer file, else that of the server."""
        pointer = self.call.pointer()
        return (pointer.directory if pointer is not None else self.call.cwd).resolve()

    # Finding the session

    def current_session(self) -> SessionRow | None:
        """Return the session of this server, or None if it does not exist yet."""
        from ortet.sessions.table import ARCHIVED, CLOSED, SessionTable

        try:
            hub = self.hub
        except NotFound as error:
            if error.kind != "no_store":
                raise
            return None
        if self._session_id:
            with suppress(NotFound):  # the session was removed
                row = SessionTable(hub.catalog).get(self._session_id)
                if row.status not in (CLOSED, ARCHIVED):
                    return row
        matching = self._look_up_session(hub)
        self._session_id = matching.id if matching is not None else ""
        return matching

    def _look_up_session(self, hub: Hub) -> SessionRow | None:
        rows, place = hub.sessions(), str(self.directory)
        if self._session_name is not None:  # if two agents use this name, prefer ours
            ours = [
                one for one in rows if (one.agent, one.name) == (self.agent, self._session_name)
            ]
            if ours:
                return ours[0]
        try:
            return find_session(self.call, self._session_name)
        except NotFound as error:
            if error.kind != "no_session":
                raise
        # A session of this directory that has not used its files has no workspace yet. Skip forks.
        fresh = (one for one in rows if one.path == place and one.family == one.id)
        return next(fresh, None) if self._session_name is None else None

    def require_session(self) -> SessionRow:
        """Return the session of this server.

        Raises NotFound(`no_session`) if it does not exist yet.
        """
        row = self.current_session()
        if row is None:
            raise NotFound(
                "no_session",
                f"nothing is recorded for {self.directory} yet: the first tool that writes, such "
                "as commit or say, begins its session",
            )
        return row

    def require_store(self) -> None:
        """Raise NotFound(`no_session`) if there is no store yet."""
        if self.current_session() is None and not self.has_hub:
            self.require_session()

    def session_name(self) -> str:
        """Return the name that the session has, or will have."""
        row = self.current_session()
        if row is not None:
            return row.name
        return self._session_name or self._free_name()

    def _free_name(self) -> str:
        """Return the name of the workspace, with a number if another session has it."""
        from ortet.workspaces.table import stem_of

        try:
            hub = self.hub
        except NotFound:
            return stem_of(self.directory.name)
        taken = {one.name for one in hub.sessions() if one.agent == self.agent}
        stem = self.call.branch() or stem_of(self.directory.name)
        names = (stem if n == 1 else f"{stem}-{n}" for n in range(1, _TRIES))
        return next((name for name in names if name not in taken), stem)

    # Opening the session

    @contextmanager
    def open_session(self) -> Iterator[Session]:
        """Open the session for the block, and create it if needed. It is released afterwards."""
        hub = self._open_or_create_hub()
        try:
            yield self._open_with_retry(hub)
        finally:
            hub.internals.pause_open_sessions()

    def _open_or_create_hub(self) -> Hub:
        with suppress(NotFound):
            return self.hub
        self._check_directory()  # before a store is created in vain
        return self.call.create_hub()

    def _open_with_retry(self, hub: Hub) -> Session:
        deadline = time.monotonic() + _LEASE_TIMEOUT_SECONDS
        while True:
            try:
                return self._open_or_begin(hub)
            except Refused as error:
                if error.kind != "lease_held" or time.monotonic() > deadline:
                    raise
            time.sleep(_LEASE_RETRY_SECONDS)

    def _open_or_begin(self, hub: Hub) -> Session:
        row = self.current_session()
        if row is not None:
            return hub.session(row.name, agent=row.agent, environment="asked")
        self._check_directory()
        try:
            return hub.session(
                self._session_name or self._free_name(),
                agent=self.agent,
                workspace=self.directory,
                environment="asked",
            )
        except Conflict:
            if self.current_session() is None:
                raise
            return self._open_or_begin(hub)  # another process created the session first

    def _check_directory(self) -> None:
        """Refuse the home and root directories, unless `ortet init` was run there.

        A client may start the server anywhere, and a commit includes the whole directory.
        """
        from ortet.config.environment import home_directory

        place, top = self.directory, home_directory()
        whole = (Path(place.anchor), top.resolve() if top else None)
        if self.call.pointer() is None and place in whole:
            raise Invalid(
                "no_workspace",
                f"{place} is no directory to keep whole: start the server in a project, with "
                "`ortet -C DIR mcp`, or run `ortet init` there if this one is meant",
            )

    @contextmanager
    def read_session(self) -> Iterator[SessionReader]:
        """Yield the session for reading, even if another process has it open."""
        row = self.require_session()
        yield self.hub.get(row.id)

    @contextmanager
    def open_files(self) -> Iterator[Workspace | None]:
        """Yield the files without the session, for reading; None if there are none yet."""
        row = self.current_session()
        if row is None and (not self.has_hub or self.call.pointer() is None):
            yield None
        elif row is None:
            with self.call.workspace(writes=False) as workspace:
                yield workspace
        elif row.has_files and self.hub.workspaces.table.get(row.branch) is not None:
            with self.hub.workspace(name=row.branch) as workspace:
                yield workspace
        elif row.path:  # the session exists but has not used its files yet
            with self.open_session() as session:
                yield session.machine
        else:
            yield None

    def head_branch(self) -> str | None:
        """Return the branch that HEAD means."""
        row = self.current_session()
        return row.branch if row is not None else self.call.branch()
