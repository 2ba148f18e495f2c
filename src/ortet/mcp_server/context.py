"""Where a coding agent works: the store, directory and session that one server is for, each opened
for one call and let go of behind it."""

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
"""Seconds for which a session that another process has open is asked for again: a command of its
user's, or a hook, is done in less."""

_LEASE_RETRY_SECONDS = 0.05
_TRIES = 100


class McpContext(CliCall):
    """As a call of the command line finds its store and session, but it stays: the store is open
    from the first use on, the session only within `writing`. One thread at a time."""

    def __init__(
        self, *, session: str | None = None, agent: str = "default", store: str | None = None
    ) -> None:
        super().__init__()
        self._session_name = session
        self.agent = agent
        self._store = store
        self._session_id = ""  # the id of the session, once it was found

    def __enter__(self) -> McpContext:
        return self

    def __exit__(self, *error: Any) -> None:
        self._hub = None
        super().__exit__(*error)

    def open_hub(self, url: str | None = None, *, create: bool) -> Hub:
        from ortet.config.environment import open_hub

        # not `alone`: that one may fork, and a server has threads
        hub = open_hub(url or self._store, cwd=self.cwd, create=create, watch=False)
        return self._stack.enter_context(hub)

    @property
    def has_hub(self) -> bool:
        """Whether there is a store, and it was looked at."""
        return self._hub is not None

    @property
    def directory(self) -> Path:
        """The workspace: that of the nearest pointer, else where the server was started."""
        pointer = self.pointer()
        return (pointer.directory if pointer is not None else self.cwd).resolve()

    # which session

    def current_session(self) -> SessionRow | None:
        """The session that is meant, if it was begun."""
        from ortet.sessions.table import ARCHIVED, CLOSED, SessionTable

        try:
            hub = self.hub
        except NotFound as error:
            if error.kind != "no_store":
                raise
            return None
        if self._session_id:
            with suppress(NotFound):  # it was removed
                row = SessionTable(hub.catalog).get(self._session_id)
                if row.status not in (CLOSED, ARCHIVED):
                    return row
        found = self._look_up_session(hub)
        self._session_id = found.id if found is not None else ""
        return found

    def _look_up_session(self, hub: Hub) -> SessionRow | None:
        rows, place = hub.sessions(), str(self.directory)
        if self._session_name is not None:  # of two with this name, ours
            ours = [
                one for one in rows if (one.agent, one.name) == (self.agent, self._session_name)
            ]
            if ours:
                return ours[0]
        try:
            return find_session(self, self._session_name)
        except NotFound as error:
            if error.kind != "no_session":
                raise
        # begun here, and not in its files yet, so that these are no workspace; no fork of it
        fresh = (one for one in rows if one.path == place and one.family == one.id)
        return next(fresh, None) if self._session_name is None else None

    def require_session(self) -> SessionRow:
        row = self.current_session()
        if row is None:
            raise NotFound(
                "no_session",
                f"nothing is recorded for {self.directory} yet: the first tool that writes, such "
                "as commit or say, begins its session",
            )
        return row

    def require_store(self) -> None:
        """NotFound("no_session") before anything was recorded at all."""
        if self.current_session() is None and not self.has_hub:
            self.require_session()

    def session_name(self) -> str:
        """What the session is called, or will be."""
        row = self.current_session()
        if row is not None:
            return row.name
        return self._session_name or self._free_name()

    def _free_name(self) -> str:
        """The workspace's, as far as no other session has it."""
        from ortet.workspaces.table import stem_of

        try:
            hub = self.hub
        except NotFound:
            return stem_of(self.directory.name)
        taken = {one.name for one in hub.sessions() if one.agent == self.agent}
        stem = self.branch() or stem_of(self.directory.name)
        names = (stem if n == 1 else f"{stem}-{n}" for n in range(1, _TRIES))
        return next((name for name in names if name not in taken), stem)

    # opening it

    @contextmanager
    def open_session(self) -> Iterator[Session]:
        """The session, begun if it was not, for the block; then anybody else may have it."""
        if self._hub is None:
            self._hub = self._open_or_create_hub()
        hub = self._hub
        try:
            yield self._open_with_retry(hub)
        finally:
            hub.pause_open_sessions()

    def _open_or_create_hub(self) -> Hub:
        with suppress(NotFound):
            return self.open_hub(create=False)
        self._check_directory()  # before a store is made for nothing
        return self.open_hub(create=True)

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
            return self._open_or_begin(hub)  # another process was faster to begin it

    def _check_directory(self) -> None:
        """A client may have started us anywhere: nobody wants all of a home in each commit."""
        from ortet.config.environment import home_directory

        place, top = self.directory, home_directory()
        whole = (Path(place.anchor), top.resolve() if top else None)
        if self.pointer() is None and place in whole:
            raise Invalid(
                "no_workspace",
                f"{place} is no directory to keep whole: start the server in a project, with "
                "`ortet -C DIR mcp`, or run `ortet init` there if this one is meant",
            )

    @contextmanager
    def read_session(self) -> Iterator[SessionReader]:
        """The session as it is, whoever has it open."""
        row = self.require_session()
        yield self.hub.get(row.id)

    @contextmanager
    def open_files(self) -> Iterator[Workspace | None]:
        """Its files, to look at without the session; None where there are none yet."""
        row = self.current_session()
        if row is None and (self._hub is None or self.pointer() is None):
            yield None
        elif row is None:
            with self.workspace(writes=False) as workspace:
                yield workspace
        elif row.has_files and self.hub.workspace_table.get(row.branch) is not None:
            with self.hub.workspace(name=row.branch) as workspace:
                yield workspace
        elif row.path:  # it was begun, and has not used them yet
            with self.open_session() as session:
                yield session.machine
        else:
            yield None

    def head_branch(self) -> str | None:
        """The branch that HEAD means."""
        row = self.current_session()
        return row.branch if row is not None else self.branch()
