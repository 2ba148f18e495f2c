"""Where a coding agent works: the store, directory and session that one server is for, each opened
for one call and let go of behind it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ortet.cli.call import Call
from ortet.cli.session_args import find
from ortet.errors import Conflict, Invalid, NotFound, Refused

if TYPE_CHECKING:
    from ortet.hub.hub import Hub
    from ortet.sessions.reader import View
    from ortet.sessions.session import Session
    from ortet.sessions.table import SessionRow
    from ortet.workspaces.workspace import Workspace

_PATIENCE = 5.0
"""Seconds for which a session that another process has open is asked for again: a command of its
user's, or a hook, is done in less."""

_PAUSE = 0.05
_TRIES = 100


class Desk(Call):
    """As a call of the command line finds its store and session, but it stays: the store is open
    from the first use on, the session only within `writing`. One thread at a time."""

    def __init__(
        self, *, session: str | None = None, agent: str = "default", store: str | None = None
    ) -> None:
        super().__init__()
        self._word = session
        self.agent = agent
        self._store = store
        self._known = ""  # the id of the session, once it was found

    def __enter__(self) -> Desk:
        return self

    def __exit__(self, *error: Any) -> None:
        self._hub = None
        super().__exit__(*error)

    def open_hub(self, url: str | None = None, *, create: bool) -> Hub:
        from ortet.config.environment import open_hub

        # not `alone`: that one may fork, and a server has threads
        hub = open_hub(url or self._store, cwd=self.here, create=create, watch=False)
        return self._stack.enter_context(hub)

    @property
    def opened_hub(self) -> bool:
        """Whether there is a store, and it was looked at."""
        return self._hub is not None

    @property
    def directory(self) -> Path:
        """The workspace: that of the nearest pointer, else where the server was started."""
        pointer = self.pointer()
        return (pointer.directory if pointer is not None else self.here).resolve()

    # which session

    def begun(self) -> SessionRow | None:
        """The session that is meant, if it was begun."""
        from ortet.sessions.table import ARCHIVED, CLOSED, Roll

        try:
            hub = self.hub
        except NotFound as error:
            if error.kind != "no_store":
                raise
            return None
        if self._known:
            with suppress(NotFound):  # it was removed
                row = Roll(hub.catalog).get(self._known)
                if row.status not in (CLOSED, ARCHIVED):
                    return row
        found = self._looked_up(hub)
        self._known = found.id if found is not None else ""
        return found

    def _looked_up(self, hub: Hub) -> SessionRow | None:
        rows, place = hub.sessions(), str(self.directory)
        if self._word is not None:  # of two with this name, ours
            ours = [one for one in rows if (one.agent, one.name) == (self.agent, self._word)]
            if ours:
                return ours[0]
        try:
            return find(self, self._word)
        except NotFound as error:
            if error.kind != "no_session":
                raise
        # begun here, and not in its files yet, so that these are no workspace; no fork of it
        fresh = (one for one in rows if one.path == place and one.family == one.id)
        return next(fresh, None) if self._word is None else None

    def need(self) -> SessionRow:
        row = self.begun()
        if row is None:
            raise NotFound(
                "no_session",
                f"nothing is recorded for {self.directory} yet: the first tool that writes, such "
                "as commit or say, begins its session",
            )
        return row

    def need_store(self) -> None:
        """NotFound("no_session") before anything was recorded at all."""
        if self.begun() is None and not self.opened_hub:
            self.need()

    def name(self) -> str:
        """What the session is called, or will be."""
        row = self.begun()
        if row is not None:
            return row.name
        return self._word or self._free_name()

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
    def writing(self) -> Iterator[Session]:
        """The session, begun if it was not, for the block; then anybody else may have it."""
        if self._hub is None:
            self._hub = self._made()
        hub = self._hub
        try:
            yield self._patiently(hub)
        finally:
            hub.let_go()

    def _made(self) -> Hub:
        with suppress(NotFound):
            return self.open_hub(create=False)
        self._check_place()  # before a store is made for nothing
        return self.open_hub(create=True)

    def _patiently(self, hub: Hub) -> Session:
        deadline = time.monotonic() + _PATIENCE
        while True:
            try:
                return self._opened(hub)
            except Refused as error:
                if error.kind != "lease_held" or time.monotonic() > deadline:
                    raise
            time.sleep(_PAUSE)

    def _opened(self, hub: Hub) -> Session:
        row = self.begun()
        if row is not None:
            return hub.session(row.name, agent=row.agent, environment="asked")
        self._check_place()
        try:
            return hub.session(
                self._word or self._free_name(),
                agent=self.agent,
                workspace=self.directory,
                environment="asked",
            )
        except Conflict:
            if self.begun() is None:
                raise
            return self._opened(hub)  # another process was faster to begin it

    def _check_place(self) -> None:
        """A client may have started us anywhere: nobody wants all of a home in each commit."""
        from ortet.config.environment import home

        place, top = self.directory, home()
        whole = (Path(place.anchor), top.resolve() if top else None)
        if self.pointer() is None and place in whole:
            raise Invalid(
                "no_workspace",
                f"{place} is no directory to keep whole: start the server in a project, with "
                "`ortet -C DIR mcp`, or run `ortet init` there if this one is meant",
            )

    @contextmanager
    def reading(self) -> Iterator[View]:
        """The session as it is, whoever has it open."""
        row = self.need()
        yield self.hub.get(row.id)

    @contextmanager
    def files(self) -> Iterator[Workspace | None]:
        """Its files, to look at without the session; None where there are none yet."""
        row = self.begun()
        if row is None and (self._hub is None or self.pointer() is None):
            yield None
        elif row is None:
            with self.workspace(writes=False) as workspace:
                yield workspace
        elif row.has_files and self.hub.registry.get(row.branch) is not None:
            with self.hub.workspace(name=row.branch) as workspace:
                yield workspace
        elif row.path:  # it was begun, and has not used them yet
            with self.writing() as session:
                yield session.machine
        else:
            yield None

    def head_branch(self) -> str | None:
        """The branch that HEAD means."""
        row = self.begun()
        return row.branch if row is not None else self.branch()
