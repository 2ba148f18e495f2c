"""The context of one session, and the services that its collaborators share.

`SessionServices` belongs to the store: the table, the shared scopes, the search index. It knows no
open session. `SessionContext` belongs to one handle and is the only mutable object that the
collaborators of the handle share.

Invariants: `set_row` is the only way to change the row, and `switch` the only way to move to
another timeline. A context without a writer belongs to a reader.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

from ortet._util.validation import COUNT, optional, require
from ortet.history.tree.tree import Maps
from ortet.journal.event_chain import EventChain
from ortet.sessions.history.load import LoadedSession, load_session
from ortet.sessions.memory.shared_scopes import SharedScopes
from ortet.sessions.services import ForkPointCache
from ortet.sessions.table import SessionRow, SessionTable
from ortet.sessions.writing.inbox import pending_events

if TYPE_CHECKING:
    from ortet.history.commits import CommitInfo
    from ortet.journal.event_log import EventLog, TimelineSpan
    from ortet.journal.events import Event
    from ortet.journal.state.state import SessionState
    from ortet.memory.base import IndexFactory
    from ortet.memory.embedders.base import Embedder
    from ortet.memory.extraction.summaries import Summariser
    from ortet.memory.library import Library
    from ortet.sessions.actions.ledger import LedgerIndex
    from ortet.sessions.results import ArchiveRecord
    from ortet.store.context import StoreContext
    from ortet.workspaces.manager import WorkspaceManager


class SessionHub(Protocol):
    """The verbs of the hub that sessions call."""

    def archive(self, session: str, why: str = "") -> ArchiveRecord: ...

    def audit(self, session: str) -> object: ...

    def remove(self, session: str) -> None: ...


class SessionServices:
    """The services of a store that sessions need. They know no open session."""

    def __init__(
        self,
        store: StoreContext,
        workspaces: WorkspaceManager,
        *,
        hub: SessionHub,
        embedder: Embedder | str | None = None,
        index_factory: IndexFactory | None = None,
    ) -> None:
        self.hub = hub
        self.store = store
        self.workspaces = workspaces
        self.embedder = embedder
        self._index_factory = index_factory
        self.table = SessionTable(store.catalog)
        self.maps = Maps(store.objects)
        self.chain = EventChain(store.objects.hasher, store.random)
        self.fork_point_cache: ForkPointCache | None = None
        self.timelines: dict[bytes, str] = {}
        self.foreign_spans: dict[tuple[bytes, int], list[TimelineSpan]] = {}
        self.origins: dict[str, str] = {}
        self.ledger_indexes: dict[str, LedgerIndex] = {}
        self.scopes = SharedScopes(self)
        self._epoch = store.objects.epoch

    def new_id(self) -> str:
        return self.store.new_id()

    @cached_property
    def library(self) -> Library:
        """The search index of all journals. It can be rebuilt from them."""
        from ortet.memory.library import Library

        return Library(
            self.store.root / "local" / "memory",
            self.store.clock,
            embedder=self.embedder,
            index_factory=self._index_factory,
        )

    def close(self) -> None:
        """Close the search index, if it was opened."""
        library: Library | None = self.__dict__.get("library")
        if library is not None:
            library.close()

    @cached_property
    def summariser(self) -> Summariser:
        """Function that summarises an episode in a few words. Assign another to replace it."""
        from ortet.memory.extraction.summaries import summarise

        return summarise

    def all(self) -> list[SessionRow]:
        return self.table.all()

    def load(self, row: SessionRow) -> LoadedSession:
        """Load the present state of a session."""
        if self._epoch != self.store.objects.epoch:  # a sweep has removed objects
            self._epoch = self.store.objects.epoch
            self.maps.clear_cache()
            self.scopes.forget()
        return load_session(self, row)

    def read(self, id_: str) -> SessionContext:
        """Return the context of a session for reading, without a lease."""
        with self.table.reading(id_) as row:
            loaded = self.load(row)
        return SessionContext(self, row, loaded.line, loaded.mind)

    def state_of(self, id_: str) -> SessionState:
        """Return the present state of a session."""
        return self.read(id_).state


class EventBuffer(Protocol):
    """The part of an event writer that readers of the session need."""

    @property
    def position(self) -> int | None:
        """The last event that is visible in a replay; None if all are."""

    def flush(self) -> None:
        """Make buffered events visible."""


class SessionHook(Protocol):
    """Called around the verbs of an open session, in the order of `SessionContext.hooks`."""

    def before_action(self) -> None:
        """An action begins."""

    def before_commit(self) -> None:
        """A commit begins. Events that are added now belong to it."""

    def before_move(self, verb: str) -> None:
        """The session leaves its state, which is committed, for that of another commit."""


class SessionContext:
    """The mutable state of one session handle. Its collaborators share it.

    `dirty` is True if something worth a commit happened since the last commit.
    """

    def __init__(
        self,
        services: SessionServices,
        row: SessionRow,
        event_log: EventLog,
        state: SessionState,
        *,
        writer: EventBuffer | None = None,
        dirty: bool = False,
    ) -> None:
        self.services = services
        self.store = services.store
        self.row = row
        self.event_log = event_log
        self.state = state
        self.dirty = dirty
        self.hooks: list[SessionHook] = []
        self._writer = writer

    @property
    def id(self) -> str:
        return self.row.id

    @property
    def name(self) -> str:
        return self.row.name

    @property
    def agent(self) -> str:
        return self.row.agent

    @property
    def status(self) -> str:
        return self.row.status

    @property
    def goal(self) -> str:
        return self.state.core.goal

    @property
    def head(self) -> CommitInfo | None:
        """Return the last commit of the session, or None."""
        found = self.store.catalog.head(f"branch:{self.row.branch}")
        return self.store.history.info(found.oid) if found else None

    @property
    def is_replaying(self) -> bool:
        """True if the session replays recorded events."""
        return self._writer is not None and self._writer.position is not None

    def events(self, after: int = 0, upto: int | None = None) -> Iterator[Event]:
        """Return the events in order; see `SessionReader.events`."""
        require(COUNT, after=after)
        optional(COUNT, upto=upto)
        if self._writer is not None:
            position = self._writer.position
            if position is not None:
                upto = position if upto is None else min(upto, position)
            self._writer.flush()
        return self._events(after, upto)

    def _events(self, after: int, upto: int | None) -> Iterator[Event]:
        yield from self.event_log.events(after, upto)
        if upto is None:
            yield from pending_events(self.store.catalog, self.row.id)

    def flush(self) -> None:
        """Make buffered events visible to readers."""
        if self._writer is not None:
            self._writer.flush()

    def set_row(self, row: SessionRow) -> None:
        """Use `row` as the row of the session, after it was written."""
        self.row = row

    def switch(self, row: SessionRow, event_log: EventLog, state: SessionState) -> None:
        """Continue on another timeline."""
        self.row, self.event_log, self.state = row, event_log, state

    def now(self) -> int:
        return self.store.clock.now_ns()
