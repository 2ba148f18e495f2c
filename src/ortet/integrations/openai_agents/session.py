"""`OrtetSession`: a session of the OpenAI Agents SDK in an Ortet store; its branches are forks."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from agents.memory.session_settings import SessionSettings

from ortet._util.validation import CALLABLE, COUNT, POSITIVE_COUNT, check_text, optional, require
from ortet.errors import Conflict, Invalid, NotFound
from ortet.hub.hub import Hub, hub_of
from ortet.integrations._shared.messages import clear_context, replace_messages_from
from ortet.integrations._shared.session_pool import session_name
from ortet.integrations.openai_agents.conversation import MAIN_BRANCH
from ortet.integrations.openai_agents.item_cache import item_cache_for
from ortet.integrations.openai_agents.items import Item, is_user, messages_of
from ortet.integrations.openai_agents.turns import TurnTrackingConversation
from ortet.journal.conversation.compaction import Summarise
from ortet.sessions.history.forking import NamedForks, fork_named
from ortet.sessions.history.rewind import commit_at
from ortet.sessions.reader import SessionReader
from ortet.sessions.recollect import last_compaction
from ortet.sessions.session import Session
from ortet.sessions.table import ARCHIVED, CLOSED
from ortet.store.sweep_retry import run_with_sweep_retry

if TYPE_CHECKING:
    from agents import RunContextWrapper
    from agents.memory.session import OpenAIResponsesCompactionArgs, _CompactionSnapshot


# Replaces the last items of a conversation in one write, for the SDK's own compaction.
#
# The SDK asks OpenAI's service for the compacted items.

SeqItem = tuple[int, Item]
"""An item with the event of its message."""


class CompactableConversation(TurnTrackingConversation):
    """The part of OrtetSession that OpenAIResponsesCompactionSession uses if present."""

    async def _get_compaction_snapshot(self, limit: int, **_: Any) -> _CompactionSnapshot | None:
        """Return the latest items, with a function that replaces some of them.

        The function replaces nothing and returns False if the conversation changed since. Return
        None if a summary of ours is in context: the SDK then replaces everything.
        """
        from agents.memory.session import _CompactionSnapshot

        require(POSITIVE_COUNT, limit=limit)
        found = await self._worker.do(lambda: self._read(self._stored_items))
        if found is None:
            return None
        timeline, placed = found
        latest, complete = placed[-limit:], len(placed) <= limit

        async def replace(start: int, output: list[Any]) -> bool:
            expected = latest[start:]
            whole = complete and start == 0

            def write(session: Session) -> bool:
                now = self._stored_items(session)
                if not expected or now is None or now[0] != timeline:
                    return False
                if now[1][-len(expected) :] != expected or (whole and len(now[1]) != len(placed)):
                    return False
                return _replace_tail(session, now[1], len(expected), list(output), all_items=whole)

            return bool(await self._worker.do(lambda: self._write(write)))

        return _CompactionSnapshot([item for _, item in latest], complete, replace)  # type: ignore[misc]

    def _stored_items(self, view: SessionReader) -> tuple[str, list[SeqItem]] | None:
        past = last_compaction(view)
        if past is not None and (past.summary or past.rules):
            return None
        placed = [(one.seq, one.item) for one in item_cache_for(view).stored_items(view)]
        return view.event_log.timeline, placed


def _replace_tail(
    session: Session, stored: Sequence[SeqItem], count: int, output: list[Any], *, all_items: bool
) -> bool:
    if all_items:
        return clear_context(session, messages_of(output))
    at = len(stored) - count
    seq = stored[at][0]
    kept = [item for other, item in stored[:at] if other == seq]  # items of the same message
    replace_messages_from(session, seq, messages_of([*kept, *output]))
    return True


_NOTE = "openai.branch"
"""The note of a fork with its branch id and its session."""
_MAX_NAME_ATTEMPTS = 1000


class OrtetSession(CompactableConversation):
    """A session for `Runner.run(…, session=…)`.

    The Ortet session has the same name. If the id is not a valid name, the name ends in a hash of
    it.

    Branches work as in AdvancedSQLiteSession, but nothing is copied. A branch is a fork whose
    timeline starts before the turn that it branches from.

    Args:
        session_id: the id of the conversation.
        hub: the open store.
        agent: the agent that owns the session.
        branch: the branch to start on.
        session_settings: settings of the SDK.
        options: options of `hub.session` for a new session, such as goal, budget and profile.
    """

    def __init__(
        self,
        session_id: str,
        hub: Hub,
        *,
        agent: str = "default",
        branch: str = MAIN_BRANCH,
        session_settings: SessionSettings | dict[str, Any] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(session_id, hub, agent=agent, session_settings=session_settings, **options)
        self._current_name = self._name
        if branch != MAIN_BRANCH:
            self._current_name = self._session_name(branch)
            self._branch = branch

    @property
    def branch(self) -> str:
        """The id of the current branch."""
        return self._branch

    async def create_branch_from_turn(
        self, turn_number: int, branch_name: str | None = None
    ) -> str:
        """Create a branch that starts before a turn, switch to it and return its id.

        Raises:
            NotFound: "no_turn" if there is no such turn.
            Conflict: "name_taken" if a branch of that name exists or existed.
        """
        require(POSITIVE_COUNT, turn_number=turn_number)
        optional(_NAME, branch_name=branch_name)
        return await self._worker.do(lambda: self._create_branch(turn_number, branch_name))

    async def create_branch_from_content(
        self, search_term: str, branch_name: str | None = None
    ) -> str:
        """Create a branch before the first turn whose user message contains `search_term`.

        See `create_branch_from_turn`.
        """
        turns = await self.find_turns_by_content(search_term)
        if not turns:
            raise NotFound("no_turn", f"no user said {search_term!r}: get_conversation_turns()")
        return await self.create_branch_from_turn(turns[0]["turn"], branch_name)

    async def switch_to_branch(self, branch_id: str) -> None:
        """Switch to a branch.

        Raises:
            NotFound: "no_branch" if it does not exist.
        """
        await self._worker.do(lambda: self._switch(branch_id))

    async def delete_branch(self, branch_id: str, force: bool = False) -> None:
        """Close a branch.

        Its name stays taken, and `hub.get` still reads it. Closing the current branch needs
        `force`, which switches to main.
        """
        await self._worker.do(lambda: self._delete(branch_id, force))

    async def list_branches(self) -> list[dict[str, Any]]:
        """Return all branches with their message counts, including forks made by other means."""
        return await self._worker.do(self._list)

    # Synchronous bodies, run in the worker thread.

    def _session_name(self, branch: str | None = None) -> str:
        if branch is None or branch == self._branch:
            return self._current_name if self._branch != MAIN_BRANCH else self._name
        if branch == MAIN_BRANCH:
            return self._name
        check_text(branch_id=branch)
        for name, id_ in self._forks():
            if id_ == branch:
                return name
        raise NotFound(
            "no_branch", f"there is no branch {branch!r}: list_branches() has those there are"
        )

    def _all_names(self) -> list[str]:
        return [self._name, *(name for name, _ in self._forks())]

    def _forks(self) -> list[tuple[str, str]]:
        """Return the session name and branch id of each branch except main."""
        found = []
        for name in self._pool.names(f"{self._name}/"):
            with self._pool.reading(name) as view:
                if view.status not in (CLOSED, ARCHIVED):
                    found.append((name, self._id_of(view)))
        return found

    def _id_of(self, view: SessionReader) -> str:
        told = view.notes().get(_NOTE)
        if isinstance(told, dict) and told.get("session") == view.id:
            return str(told.get("id"))
        return view.name.removeprefix(f"{self._name}/")

    def _create_branch(self, number: int, branch_name: str | None) -> str:
        base = branch_name or f"branch_from_turn_{number}"
        with self._pool.writing(self._session_name(), create=False) as session:
            turn = self._turn(session, number)
            id_, fork = self._branch_off(
                session, turn.seq - 1, base, exact_name=branch_name is not None
            )
            fork.note(_NOTE, {"id": id_, "session": fork.id})
            name = fork.name
        self._branch, self._current_name = id_, name
        self._open_calls = set()
        return id_

    def _branch_off(
        self, session: Session, seq: int, base: str, *, exact_name: bool
    ) -> tuple[str, Session]:
        def make() -> tuple[str, Session]:
            with session.store.writing():
                session.commit("before a branch")
                point = commit_at(session._sessions, session.row, session.event_log, seq)
                return self._fork(session, point, base, exact_name=exact_name)

        return run_with_sweep_retry(hub_of(session).store, make)

    def _fork(
        self, session: Session, point: Any, base: str, *, exact_name: bool
    ) -> tuple[str, Session]:
        used = {name.rpartition("/")[2] for name in self._pool.names(f"{self._name}/")}
        for number in range(1, _MAX_NAME_ATTEMPTS):
            id_ = base if number == 1 else f"{base}_{number}"
            tail = session_name(id_)
            if tail not in used and id_ != MAIN_BRANCH:
                named = NamedForks((tail,), lambda _: ())
                (fork,) = fork_named(session._sessions, session, point, named)
                return id_, fork
            if exact_name:
                break
        raise Conflict(
            "name_taken", f"there is or was a branch {base!r} already: give another name"
        )

    def _switch(self, branch: str) -> None:
        name = self._session_name(branch)
        self._branch, self._current_name = branch, name
        self._open_calls = set()

    def _delete(self, branch: str, force: bool) -> None:
        if branch == MAIN_BRANCH:
            raise Invalid("bad_branch", "main stays: clear_session() begins anew")
        name = self._session_name(branch)
        if branch == self._branch:
            if not force:
                raise Conflict(
                    "current_branch",
                    f"{branch!r} is the current branch: switch to another, or give force=True",
                )
            self._switch(MAIN_BRANCH)
        self._close(name)

    def _close(self, name: str) -> None:
        with self._pool.writing(name, create=False) as session:
            session.close("branch deleted")

    def _list(self) -> list[dict[str, Any]]:
        found = []
        for name, id_ in [(self._name, MAIN_BRANCH), *self._forks()]:
            told = self._read(lambda view, id_=id_: self._branch_summary(view, id_), name)  # type: ignore[misc]
            found += [told] if told is not None else []
        return sorted(found, key=lambda one: str(one["created_at"]))

    def _branch_summary(self, view: SessionReader, id_: str) -> dict[str, Any]:
        items = [one.item for one in item_cache_for(view).stored_items(view)]
        return {
            "branch_id": id_,
            "message_count": len(items),
            "user_turns": sum(map(is_user, items)),
            "is_current": id_ == self._branch,
            "created_at": datetime.fromtimestamp(view.row.created / 1e9, UTC).isoformat(),
            "session": view.name,
        }

    def _clear(self) -> None:
        """Clear the context and close all branches that were made here.

        The SDK's own sessions do the same.
        """
        for name, _ in self._forks():
            if self._read(lambda view: bool(view.notes().get(_NOTE)), name):
                self._close(name)
        self._branch, self._current_name = MAIN_BRANCH, self._name
        self._open_calls.clear()
        self._write(clear_context)


_NAME = POSITIVE_COUNT._replace(
    description="a name, as text",
    accepts=lambda value: isinstance(value, str) and bool(value.strip()),
)


# An OpenAI Agents session that compacts its context locally, without a service.


class OrtetCompactingSession(OrtetSession):
    """A session that compacts its context after a turn.

    If more than `above` messages are in context, all but the last `keep_last` are replaced by a
    summary. A tool call is never separated from its result. `s.dropped()` returns the dropped
    messages.

    To compact with OpenAI's service, wrap an OrtetSession in the SDK's
    OpenAIResponsesCompactionSession instead.

    Args:
        session_id: the id of the conversation.
        hub: the open store.
        above: number of messages above which the context is compacted.
        keep_last: number of messages that stay.
        summarise: returns the summary of messages; by default an extract is made.
        options: further options of OrtetSession.
    """

    def __init__(
        self,
        session_id: str,
        hub: Hub,
        *,
        above: int = 40,
        keep_last: int = 20,
        summarise: Summarise | None = None,
        **options: Any,
    ) -> None:
        require(POSITIVE_COUNT, above=above)
        require(COUNT, keep_last=keep_last)
        optional(CALLABLE, summarise=summarise)
        super().__init__(session_id, hub, **options)
        self._max_messages, self._keep_last, self._summarise = above, keep_last, summarise

    async def run_compaction(
        self,
        args: OpenAIResponsesCompactionArgs | None = None,
        *,
        wrapper: RunContextWrapper[Any] | None = None,
    ) -> None:
        """Compact the context; the Runner calls this after each turn.

        `{"force": True}` compacts regardless of the number of messages.
        """
        del wrapper
        force = bool(args and args.get("force"))
        await self._worker.do(lambda: self._compact(force))

    def _add(self, items: list[Any]) -> None:
        super()._add(items)
        if not self._open_calls:
            # The SDK calls run_compaction only for responses that have an id from a service.
            self._compact(force=False)

    def _compact(self, force: bool) -> None:
        with self._pool.writing(self._session_name(), create=False) as session:
            if force or len(session.messages(last=self._max_messages + 1)) > self._max_messages:
                session.compact(self._keep_last, self._summarise)
