"""What a hub does with the memories of its sessions: finds, gathers and compares them."""

from __future__ import annotations

from collections.abc import Collection
from functools import cached_property
from typing import TYPE_CHECKING, cast

import msgspec

from ortet._util.validation import CALLABLE, FLAG, TEXT, optional, require
from ortet.errors import Invalid, NotFound
from ortet.store.context import StoreContext

if TYPE_CHECKING:
    from ortet.history.refs import Ref
    from ortet.hub.hub import Hub
    from ortet.journal.state.records import Episode
    from ortet.memory.extraction.extracting import Extractor
    from ortet.memory.extraction.summaries import Summariser
    from ortet.memory.library import Library
    from ortet.sessions.hits import RecallResult
    from ortet.sessions.manager import SessionManager
    from ortet.sessions.memory.consolidate import ConsolidationReport
    from ortet.sessions.memory.report import MemoryDiff
    from ortet.sessions.times import Moment

_MAX_RECALL_ATTEMPTS = 20


class MemoryQueries:
    """The half of Hub that deals with memory. Who recalls nothing loads nothing of it."""

    _store: StoreContext

    def recall(
        self,
        query: str,
        k: int = 10,
        *,
        agent: Collection[str] | str | None = None,
        session: str | None = None,
        tiers: Collection[str] | str | None = None,
        at: Moment | None = None,
        on: Moment | None = None,
        since: Moment | None = None,
        scope: str | None = None,
        explain: bool = False,
    ) -> RecallResult:
        """The k memories nearest to a question in all sessions, those of an `agent` or several, or
        one, and in what they share, or in one `scope` alone; see `Session.recall`."""
        from ortet.sessions.memory import recall as remembering

        asked = remembering.parse_query(
            query, k, tiers=tiers, at=at, on=on, since=since, scope=scope
        )
        minds, tries = self._manager(), _MAX_RECALL_ATTEMPTS
        while True:
            try:
                reach = remembering.all_searchable_logs(
                    minds, agent=agent, session=session, word=asked.scope
                )
                return remembering.recall(minds, reach, asked, explain=explain)
            except NotFound as error:  # of a session that another process removes
                tries -= 1
                if error.kind != "no_timeline" or not tries:
                    raise

    @cached_property
    def library(self) -> Library:
        """Where memories are found again: an index of the journals, which is made of them."""
        from ortet.memory.library import Library

        parts = self._store
        return Library(
            parts.root / "local" / "memory",
            parts.clock,
            embedder=parts.embedder,
            index_factory=parts.shelves,
        )

    @cached_property
    def summariser(self) -> Summariser:
        """Tells what was said in an episode, in a few words; set it to have your own."""
        from ortet.memory.extraction.summaries import summarise

        return summarise

    def _close_library(self) -> None:
        library: Library | None = self.__dict__.get("library")
        if library is not None:
            library.close()

    def episodes(
        self,
        *,
        agent: str | None = None,
        session: str | None = None,
        since: Moment | None = None,
        until: Moment | None = None,
        outcome: str | None = None,
    ) -> list[Episode]:
        """What happened in all sessions, of an `agent` or of one session; the oldest first."""
        optional(TEXT, agent=agent, session=session)
        minds = self._manager()
        meant = minds.table.resolve(session) if session is not None else None
        found: dict[str, Episode] = {}
        for row in minds.all() if meant is None else [minds.table.get(meant)]:
            if agent in (None, row.agent) and row.status != "archived":
                told = minds.get(row.id).episodes(since=since, until=until, outcome=outcome)
                for one in told:
                    others = agent is not None and one.participants[:1] not in ([], [agent])
                    if (meant is None and not others) or one.source is None:
                        named = one.session or row.name
                        found.setdefault(one.id, msgspec.structs.replace(one, session=named))
        return sorted(found.values(), key=lambda one: (one.time, one.id))

    def consolidate(
        self, agent: str = "default", *, extractor: Extractor | None = None, dry_run: bool = False
    ) -> ConsolidationReport:
        """Make facts of an agent's episodes, each with the event that it is from: for all its
        sessions, or, of a session that was opened with a user's scope, for that user's.

        What is said already, or was given up since, is linked and not learned. Nothing is
        rewritten, and what was done is not done again. `dry_run` tells what it would add.
        """
        from ortet.memory.extraction.extracting import RuleExtractor
        from ortet.sessions.memory.consolidate import consolidate
        from ortet.sessions.table import check_agent

        require(FLAG, dry_run=dry_run)
        optional(CALLABLE, extractor=extractor)
        if extractor is not None and not isinstance(getattr(extractor, "name", None), str):
            raise Invalid(
                "no_name",
                "the extractor has no name: give it one, as text; another name is asked about "
                "every episode anew",
            )
        chosen = extractor if extractor is not None else RuleExtractor()
        return consolidate(self._manager(), check_agent(agent), chosen, dry_run=dry_run)

    def memory_diff(self, old: Ref, new: Ref) -> MemoryDiff:
        """What is believed at one commit or branch and not at another, and what happened since."""
        from ortet.sessions.memory.report import memory_diff

        hub = cast("Hub", self)
        return memory_diff(self._manager(), hub.refs.resolve(old), hub.refs.resolve(new))

    def _manager(self) -> SessionManager:
        return cast("Hub", self)._session_manager()
