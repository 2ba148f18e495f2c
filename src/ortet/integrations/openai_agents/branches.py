"""Branches of a conversation: forks of its session, with the methods of AdvancedSQLiteSession."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from ortet._util.validation import POSITIVE_COUNT, optional, require
from ortet.errors import Conflict, Invalid, NotFound
from ortet.hub.hub import hub_of
from ortet.integrations._shared.session_pool import session_name
from ortet.integrations.openai_agents.conversation import (
    BRANCH_NOTE,
    MAIN_BRANCH,
    OpenAIConversation,
)
from ortet.integrations.openai_agents.item_cache import item_cache_for
from ortet.integrations.openai_agents.items import is_user
from ortet.integrations.openai_agents.turns import ConversationTurns
from ortet.sessions.history.event_commit import commit_at
from ortet.sessions.history.fork_session import fork_named
from ortet.sessions.history.forking import NamedForks
from ortet.sessions.reader import SessionReader
from ortet.sessions.session import Session
from ortet.store.sweep_retry import run_with_sweep_retry

_MAX_NAME_ATTEMPTS = 1000
"""Number of suffixes that are tried for a branch name that is taken."""

_NAME = POSITIVE_COUNT._replace(
    description="a name, as text",
    accepts=lambda value: isinstance(value, str) and bool(value.strip()),
)


class ConversationBranches:
    """Creates, switches, lists and closes the branches of a conversation.

    The asynchronous methods are those of OrtetSession, which documents them.
    """

    def __init__(self, conversation: OpenAIConversation, turns: ConversationTurns) -> None:
        self._conversation = conversation
        self._turns = turns

    async def create_from_turn(self, turn_number: int, branch_name: str | None) -> str:
        require(POSITIVE_COUNT, turn_number=turn_number)
        optional(_NAME, branch_name=branch_name)
        return await self._conversation.do(lambda: self._create(turn_number, branch_name))

    async def create_from_content(self, search_term: str, branch_name: str | None) -> str:
        turns = await self._turns.find_turns_by_content(search_term)
        if not turns:
            raise NotFound("no_turn", f"no user said {search_term!r}: get_conversation_turns()")
        return await self.create_from_turn(turns[0]["turn"], branch_name)

    async def switch(self, branch: str) -> None:
        conversation = self._conversation
        await conversation.do(
            lambda: conversation.switch(branch, conversation.session_name(branch))
        )

    async def delete(self, branch: str, force: bool) -> None:
        await self._conversation.do(lambda: self._delete(branch, force))

    async def list_branches(self) -> list[dict[str, Any]]:
        return await self._conversation.do(self._list_branches)

    async def clear_session(self) -> None:
        await self._conversation.do(self._clear_session)

    # Synchronous bodies, run in the worker thread.

    def _create(self, turn_number: int, branch_name: str | None) -> str:
        conversation = self._conversation
        base = branch_name or f"branch_from_turn_{turn_number}"
        with conversation.pool.writing(conversation.session_name(), create=False) as session:
            turn = self._turns.turn(session, turn_number)
            id_, fork = self._fork_before(
                session, turn.seq, base, exact_name=branch_name is not None
            )
            fork.note(BRANCH_NOTE, {"id": id_, "session": fork.id})
            name = fork.name
        conversation.switch(id_, name)
        return id_

    def _fork_before(
        self, session: Session, seq: int, base: str, *, exact_name: bool
    ) -> tuple[str, Session]:
        def make() -> tuple[str, Session]:
            with session.internals.store.writing():
                session.commit("before a branch")
                point = commit_at(
                    session.internals.manager.services,
                    session.internals.row,
                    session.internals.event_log,
                    seq - 1,
                )
                return self._fork(session, point, base, exact_name=exact_name)

        return run_with_sweep_retry(hub_of(session).store, make)

    def _fork(
        self, session: Session, point: Any, base: str, *, exact_name: bool
    ) -> tuple[str, Session]:
        conversation = self._conversation
        names = conversation.pool.names(f"{conversation.name}/")
        used = {name.rpartition("/")[2] for name in names}
        for number in range(1, _MAX_NAME_ATTEMPTS):
            id_ = base if number == 1 else f"{base}_{number}"
            tail = session_name(id_)
            if tail not in used and id_ != MAIN_BRANCH:
                named = NamedForks((tail,), lambda _: ())
                (fork,) = fork_named(session.internals.manager, session, point, named)
                return id_, fork
            if exact_name:
                break
        raise Conflict(
            "name_taken", f"there is or was a branch {base!r} already: give another name"
        )

    def _delete(self, branch: str, force: bool) -> None:
        if branch == MAIN_BRANCH:
            raise Invalid("bad_branch", "main cannot be deleted: clear_session() removes its items")
        conversation = self._conversation
        name = conversation.session_name(branch)
        if branch == conversation.branch:
            if not force:
                raise Conflict(
                    "current_branch",
                    f"{branch!r} is the current branch: switch to another, or give force=True",
                )
            conversation.switch(MAIN_BRANCH, conversation.name)
        conversation.close_branch(name)

    def _list_branches(self) -> list[dict[str, Any]]:
        conversation = self._conversation
        summaries = []
        for name, id_ in [(conversation.name, MAIN_BRANCH), *conversation.forks()]:
            summary = conversation.read(lambda view, id_=id_: self._summary(view, id_), name)  # type: ignore[misc]
            if summary is not None:
                summaries.append(summary)
        return sorted(summaries, key=lambda summary: str(summary["created_at"]))

    def _summary(self, view: SessionReader, id_: str) -> dict[str, Any]:
        items = [stored.item for stored in item_cache_for(view).stored_items(view)]
        return {
            "branch_id": id_,
            "message_count": len(items),
            "user_turns": sum(map(is_user, items)),
            "is_current": id_ == self._conversation.branch,
            "created_at": datetime.fromtimestamp(view.internals.row.created / 1e9, UTC).isoformat(),
            "session": view.name,
        }

    def _clear_session(self) -> None:
        """Clear the context of main and close all branches made by `create_from_turn`.

        The SDK's own sessions do the same.
        """
        conversation = self._conversation
        for name, _ in conversation.forks():
            if conversation.read(
                lambda view: bool(view.conversation.notes().get(BRANCH_NOTE)), name
            ):
                conversation.close_branch(name, cleared=True)
        conversation.switch(MAIN_BRANCH, conversation.name)
        conversation.clear()
