"""Read-only access to a session: its events, state and reports.

`hub.get` returns a `SessionReader`. It needs no lease. `Session` adds the verbs that write. Both
are facades: the work is done by the facets, which share one `SessionContext`.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from functools import cached_property
from typing import TYPE_CHECKING

import msgspec

from ortet.history.commits import CommitInfo
from ortet.journal.conversation.context import ModelContext
from ortet.journal.conversation.text import TokenCounter, estimate_tokens
from ortet.journal.environment import Environment
from ortet.journal.event_log import EventLog
from ortet.journal.events import Event
from ortet.journal.reports.briefing import Briefing
from ortet.journal.reports.progress import ProgressLog
from ortet.journal.state.records import (
    Artifact,
    Effect,
    Fact,
    Message,
)
from ortet.journal.state.state import SessionState
from ortet.sessions.actions.accounting import Accounting
from ortet.sessions.actions.artifacts import ArtifactStore
from ortet.sessions.actions.session_actions import SessionActions
from ortet.sessions.context import SessionContext, SessionServices
from ortet.sessions.conversation import Conversation
from ortet.sessions.environment.environments import recorded_environments
from ortet.sessions.environment.external_state import ExternalState
from ortet.sessions.memory.session_memory import SessionMemory
from ortet.sessions.table import SessionRow
from ortet.sessions.times import Moment

if TYPE_CHECKING:
    from ortet.journal.reports.checkpoint import AgentCheckpoint
    from ortet.sessions.environment.handover import Handover
    from ortet.sessions.results import RecallResult
    from ortet.store.context import StoreContext


class ReaderInternals(msgspec.Struct, frozen=True):
    """What other packages of ortet use of a session that is opened for reading.

    Programs of users must not use it: it changes without notice.

    Attributes:
        context: The mutable state of the handle, which its facets share.
    """

    context: SessionContext

    @property
    def row(self) -> SessionRow:
        """Return the catalog row of the session."""
        return self.context.row

    @property
    def event_log(self) -> EventLog:
        """Return the event log of the session."""
        return self.context.event_log

    @property
    def state(self) -> SessionState:
        """Return the state that the events add up to. Only events change it."""
        return self.context.state

    @property
    def store(self) -> StoreContext:
        """Return the services of the store that the session is in."""
        return self.context.store

    @property
    def services(self) -> SessionServices:
        """Return the services that all sessions of the store share."""
        return self.context.services

    @property
    def is_replaying(self) -> bool:
        """True if the session replays recorded events."""
        return self.context.is_replaying


class SessionReader:
    """A session opened for reading. It takes no lease."""

    def __init__(self, context: SessionContext) -> None:
        self._context = context

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r} of {self.agent}, {self.status}>"

    # facets

    @cached_property
    def conversation(self) -> Conversation:
        """Messages, plan, questions, decisions, notes and custom records."""
        return Conversation(self._context)

    @cached_property
    def memory(self) -> SessionMemory:
        """Facts, lessons, episodes, recall, context and briefing."""
        return SessionMemory(self._context)

    @cached_property
    def actions(self) -> SessionActions:
        """Actions, effects and approvals."""
        return SessionActions(self._context)

    @cached_property
    def accounting(self) -> Accounting:
        """Spends, limits and model calls."""
        return Accounting(self._context)

    @cached_property
    def artifact_store(self) -> ArtifactStore:
        """Versions of artifacts, their content and lineage."""
        return ArtifactStore(self._context)

    @cached_property
    def external(self) -> ExternalState:
        """Collaborations, rate limits, tokens and browser state."""
        return ExternalState(self._context)

    # properties

    @property
    def id(self) -> str:
        """Return the id of the session."""
        return self._context.row.id

    @property
    def name(self) -> str:
        """Return the name, which is unique among the sessions of the agent."""
        return self._context.row.name

    @property
    def agent(self) -> str:
        """Return the name of the agent that the session belongs to."""
        return self._context.row.agent

    @property
    def status(self) -> str:
        """Return the status: "open", "active", "paused", "closed" or "archived"."""
        return self._context.row.status

    @property
    def head(self) -> CommitInfo | None:
        """Return the last commit of the session, or None."""
        return self._context.head

    @property
    def goal(self) -> str:
        """Return the goal, or ""."""
        return self._context.goal

    @property
    def steps(self) -> list[str]:
        """Return the steps of the plan."""
        return list(self._context.state.core.plan)

    @property
    def step(self) -> int:
        """Return the number of the current step, from 0."""
        return self._context.state.core.step

    @cached_property
    def internals(self) -> ReaderInternals:
        """Return the parts that other packages of ortet use. They are not public."""
        return ReaderInternals(self._context)

    # events and reports

    def events(self, after: int = 0, upto: int | None = None) -> Iterator[Event]:
        """Return the events in order, starting with those inherited from parent sessions.

        Entries of the inbox that are not in the journal yet follow at the end, without a sequence
        number. They have `waiting` set, and are left out if `upto` is given.

        Args:
            after: skip events up to this sequence number.
            upto: the last sequence number to return.
        """
        return self._context.events(after, upto)

    def messages(self, last: int | None = None) -> list[Message]:
        """Return the messages that are in context, in order.

        Messages on an abandoned path of the conversation are left out.

        Args:
            last: return only this many of the newest messages. This reads only these.
        """
        return self.conversation.messages(last)

    def records(self, kind: str | None = None) -> list[Event]:
        """Return the events of kinds that programs define, all or of one kind.

        `data` is in the newest schema that is registered in this process.
        """
        return self.conversation.records(kind)

    def context(
        self, query: str = "", tokens: int = 8000, *, count: TokenCounter = estimate_tokens
    ) -> ModelContext:
        """Return the summary and the newest messages that fit, as input for a model.

        With a `query`, recalled facts, episodes and older messages follow at the end, together with
        the goal, the plan and open questions.

        Args:
            query: what the context is for; empty for no recall.
            tokens: the size limit.
            count: counts the tokens of a text.
        """
        return self.memory.context(query, tokens, count=count)

    def briefing(self, tokens: int = 2000, *, count: TokenCounter = estimate_tokens) -> Briefing:
        """Return the mental state for the next worker, as Markdown and as data.

        Args:
            tokens: the size limit.
            count: counts the tokens of a text.
        """
        return self.memory.briefing(tokens, count=count)

    def recall(
        self,
        query: str,
        k: int = 10,
        *,
        tiers: Collection[str] | str | None = None,
        at: Moment | None = None,
        on: Moment | None = None,
        since: Moment | None = None,
        scope: str | None = None,
        explain: bool = False,
    ) -> RecallResult:
        """Return the k memories nearest to a query, best first.

        It searches messages ("working"), episodes ("episodic") and facts ("semantic") of this
        session and its shared scopes. `h.text` is the exact content and `h.source` its event.
        Recall changes nothing.

        Args:
            query: the text to search for.
            k: the number of hits.
            tiers: restrict the search to these tiers.
            at: only what was known at this time.
            on: only facts that are valid at this time.
            since: only what happened from this time on.
            scope: search only this scope.
            explain: set `h.scores`.
        """
        return self.memory.recall(
            query, k, tiers=tiers, at=at, on=on, since=since, scope=scope, explain=explain
        )

    def facts(
        self,
        *,
        scope: str | None = None,
        about: str | None = None,
        at: Moment | None = None,
        on: Moment | None = None,
        past: bool = False,
    ) -> list[Fact]:
        """Return the believed facts, oldest first.

        Args:
            scope: only facts of this scope; by default all that the session sees.
            about: only facts with this subject.
            at: facts believed at this time, retracted since or not.
            on: facts valid at this time, by their `since` and `until`.
            past: include retracted facts.
        """
        return self.memory.facts(scope=scope, about=about, at=at, on=on, past=past)

    def artifacts(self) -> list[Artifact]:
        """Return all versions of all artifacts, by name."""
        return self.artifact_store.artifacts()

    def log(self, *, limit: int | None = None) -> list[CommitInfo]:
        """Return the commits of the session's branch, newest first.

        Args:
            limit: the largest number of commits to return.
        """
        store = self._context.store
        head = store.catalog.head(f"branch:{self._context.row.branch}")
        return list(store.history.log(head.oid, limit=limit)) if head is not None else []

    def environment(self) -> Environment | None:
        """Return the environment of the workspace as last recorded, or None."""
        return recorded_environments(self._context)[1]

    def handover(self, directory: str | os.PathLike[str]) -> Handover:
        """Write feature_list.json, progress.md and BRIEFING.md for the next worker.

        Args:
            directory: where to write the files.

        Raises:
            Conflict: a file of that name exists and was not written by a handover. Nothing is
                written.
        """
        from ortet.sessions.environment import handover
        from ortet.sessions.profiles import check_directory

        place = check_directory(directory, inside=False)
        briefing = self.briefing(handover.BRIEFING_TOKENS).markdown
        return handover.write(place, handover.contents(self._context, ProgressLog(), briefing))

    def checkpoint(self) -> AgentCheckpoint:
        """Return goal, plan, conversation, knowledge and position as one portable record."""
        from ortet.sessions.portable.checkpoint import checkpoint_of

        return checkpoint_of(self._context)

    def carry(self) -> str:
        """Return the session state as signed text for a client.

        `hub.transfer.from_carry` opens it.
        """
        from ortet.sessions.portable.carry_token import carry

        return carry(self._context)

    def effects(self) -> list[Effect]:
        """Return all effects of this session and its family. A restore removes none of them."""
        return self.actions.effects()

    def unsettled(self) -> list[Effect]:
        """Return the effects whose outcome nobody knows, oldest first.

        Their process died, or they are `once` actions that raised an exception. Find out whether
        each happened, then call `s.actions.settle(effect.id, outcome)`, or with `failed=True`.
        """
        return self.actions.unsettled()
