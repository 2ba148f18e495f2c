"""Verbs of the hub that search, consolidate and compare the memories of all sessions."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

import msgspec

from ortet._util.validation import CALLABLE, FLAG, TEXT, optional, require
from ortet.errors import Invalid, NotFound

if TYPE_CHECKING:
    from ortet.history.refs import Ref
    from ortet.journal.state.records import Episode
    from ortet.memory.extraction.facts import Extractor
    from ortet.sessions.manager import SessionManager
    from ortet.sessions.memory.consolidate import ConsolidationReport
    from ortet.sessions.memory.report import MemoryDiff
    from ortet.sessions.results import RecallResult
    from ortet.sessions.times import Moment

_MAX_RECALL_ATTEMPTS = 20


class MemoryQueries:
    """Searches and compares the memories of all sessions. Imports happen in the verbs."""

    def __init__(self, sessions: SessionManager) -> None:
        self._sessions = sessions

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
        """Return the `k` memories that match a query best, from all sessions.

        Args:
            query: The question, in natural language.
            k: Largest number of hits.
            agent: Search only sessions of this agent, or of these agents.
            session: Search only this session and the scopes that it shares.
            tiers: Search only "working" (messages), "episodic" (episodes) or "semantic" (facts).
            at: Search only what was recorded up to this time.
            on: Return only facts that are valid at this time.
            since: Return only memories from this time on.
            scope: Search only this shared scope, such as "user:NAME".
            explain: Fill `scores` of each hit with the parts of its score.

        Returns:
            Hits, best first. `text` is the exact stored text, `source` its event.

        `Session.recall` searches one open session.
        """
        from ortet.sessions.memory import recall as remembering

        asked = remembering.parse_query(
            query, k, tiers=tiers, at=at, on=on, since=since, scope=scope
        )
        sessions, tries = self._sessions, _MAX_RECALL_ATTEMPTS
        while True:
            try:
                reach = remembering.all_searchable_logs(
                    sessions.services, agent=agent, session=session, word=asked.scope
                )
                return remembering.recall(sessions.services, reach, asked, explain=explain)
            except NotFound as error:  # another process is removing that session; search again
                tries -= 1
                if error.kind != "no_timeline" or not tries:
                    raise

    def episodes(
        self,
        *,
        agent: str | None = None,
        session: str | None = None,
        since: Moment | None = None,
        until: Moment | None = None,
        outcome: str | None = None,
    ) -> list[Episode]:
        """Return the episodes of all sessions, oldest first.

        Args:
            agent: Only episodes of this agent.
            session: Only episodes of this session: an id, a name, or agent/name.
            since: Only episodes from this time on.
            until: Only episodes up to this time.
            outcome: Only episodes with this outcome.
        """
        optional(TEXT, agent=agent, session=session)
        sessions = self._sessions
        meant = sessions.table.resolve(session) if session is not None else None
        found: dict[str, Episode] = {}
        for row in sessions.all() if meant is None else [sessions.table.get(meant)]:
            if agent in (None, row.agent) and row.status != "archived":
                told = sessions.get(row.id).memory.episodes(
                    since=since, until=until, outcome=outcome
                )
                for one in told:
                    others = agent is not None and one.participants[:1] not in ([], [agent])
                    if (meant is None and not others) or one.source is None:
                        named = one.session or row.name
                        found.setdefault(one.id, msgspec.structs.replace(one, session=named))
        return sorted(found.values(), key=lambda one: (one.time, one.id))

    def consolidate(
        self, agent: str = "default", *, extractor: Extractor | None = None, dry_run: bool = False
    ) -> ConsolidationReport:
        """Extract facts from the episodes of an agent and add them to shared memory.

        Each fact records the event that it comes from. Facts of a session that has a user scope go
        to that user's scope. All others go to the agent's scope. A fact that is already known, or
        was retracted since, is linked and not added. Episodes that an extractor has processed are
        not processed again.

        Args:
            agent: The agent.
            extractor: A callable with a `name`. The default is the rule-based `RuleExtractor`.
            dry_run: Only report the facts that would be added.

        Raises:
            Invalid: kind "no_name", if the extractor has no name.
        """
        from ortet.memory.extraction.facts import RuleExtractor
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
        return consolidate(self._sessions.services, check_agent(agent), chosen, dry_run=dry_run)

    def diff(self, old: Ref, new: Ref) -> MemoryDiff:
        """Compare the facts of two commits or branches, and list the episodes between them.

        Args:
            old: A branch, tag, commit id or its prefix.
            new: The ref that is compared with `old`.

        Returns:
            The facts that were learned, changed and forgotten, and the episodes.

        Raises:
            NotFound: If a ref does not exist.
        """
        from ortet.sessions.memory.report import memory_diff

        refs = self._sessions.store.refs
        return memory_diff(self._sessions.services, refs.resolve(old), refs.resolve(new))
