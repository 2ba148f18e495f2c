"""Sessions of the OpenAI Agents SDK in an Ortet store.

`OrtetSession` and `OrtetCompactingSession` have only public methods. Their work is done by the
conversation, its turns, its branches and the compactor.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from agents.memory.session_settings import (
    SessionSettings,
    coerce_session_settings,
    resolve_session_limit,
)

from ortet._util.validation import CALLABLE, COUNT, POSITIVE_COUNT, optional, require
from ortet.hub.hub import Hub
from ortet.integrations.openai_agents.branches import ConversationBranches
from ortet.integrations.openai_agents.compaction import LocalCompactor, compaction_snapshot
from ortet.integrations.openai_agents.conversation import MAIN_BRANCH, OpenAIConversation
from ortet.integrations.openai_agents.turns import ConversationTurns
from ortet.journal.conversation.compaction import Summarise

if TYPE_CHECKING:
    from agents import RunContextWrapper
    from agents.items import TResponseInputItem
    from agents.memory.session import OpenAIResponsesCompactionArgs, _CompactionSnapshot
    from agents.result import RunResultBase


class OrtetSession:
    """A session for `Runner.run(…, session=…)`.

    The Ortet session has the same name. If the id is not a valid name, the name ends in a hash of
    it.

    Branches work as in AdvancedSQLiteSession, but nothing is copied. A branch is a fork whose
    timeline starts before the turn that it branches from.

    Calls of one object run in the order in which they are made. Each call is done completely or not
    at all, also if the caller is cancelled. Other processes may use the same session between two
    calls.

    Example:
        hub = ortet.open("chats")
        session = OrtetSession("chat-1", hub, budget={"tokens": 10_000})
        result = await Runner.run(agent, "Hello", session=session)
    """

    session_settings: SessionSettings | None = None

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
        """Prepare a session. The Ortet session is created with the first item.

        Args:
            session_id: Id of the conversation.
            hub: The open store.
            agent: Agent that owns the session.
            branch: Branch to start on.
            session_settings: Settings of the SDK.
            options: Options of `hub.session` for a new session, such as goal, budget and profile.

        Raises:
            Invalid: If the id is empty, or an option is not one of `hub.session`.
            NotFound: "no_branch", if there is no such branch.
        """
        conversation = OpenAIConversation(session_id, hub, agent, options)
        self._conversation = conversation
        self._turns = ConversationTurns(conversation)
        self._branches = ConversationBranches(conversation, self._turns)
        self.session_id = session_id
        self.session_settings = (
            SessionSettings()
            if session_settings is None
            else coerce_session_settings(session_settings)
        )
        if branch != MAIN_BRANCH:
            conversation.switch(branch, conversation.session_name(branch))

    @property
    def name(self) -> str:
        """The name of the Ortet session, for `ortet journal NAME` and `hub.get(NAME)`."""
        return self._conversation.name

    @property
    def branch(self) -> str:
        """The id of the current branch."""
        return self._conversation.branch

    # The four methods that the SDK calls.

    async def get_items(
        self, limit: int | None = None, branch_id: str | None = None
    ) -> list[TResponseInputItem]:
        """Return the items of a branch in order; with a limit, only the latest ones.

        The Runner counts the items and drops results without their calls itself. If the context was
        compacted, the summary comes first.

        Args:
            limit: Number of items. The default comes from the session settings.
            branch_id: Branch to read; by default the current one.

        Raises:
            NotFound: "no_branch", if there is no such branch.
        """
        conversation = self._conversation
        resolved_limit = resolve_session_limit(limit, self.session_settings)
        items = await conversation.do(lambda: conversation.items(resolved_limit, branch_id))
        return cast("list[TResponseInputItem]", items)

    async def add_items(self, items: list[TResponseInputItem]) -> None:
        """Append all items in one transaction. They are on disk when the call returns.

        Args:
            items: Items of the Responses API.

        Raises:
            Invalid: "not_json", if JSON cannot represent an item. The message names the place.
        """
        if items:
            copied_items = list(items)
            await self._conversation.do(lambda: self._conversation.add(copied_items))

    async def pop_item(self) -> TResponseInputItem | None:
        """Remove and return the latest item. It stays in the history; `ortet reflog` shows it.

        Returns:
            The item, or None if there is no item.
        """
        item = await self._conversation.do(self._conversation.pop)
        return cast("TResponseInputItem | None", item)

    async def clear_session(self) -> None:
        """Clear the context and switch to main. Facts, decisions and spending stay.

        All branches that `create_branch_from_turn` made are closed; other objects that are on one
        go on with main. The messages stay in the journal; `s.conversation.dropped()` returns them.
        """
        await self._branches.clear_session()

    def close(self) -> None:
        """Release the session, so that another process can open it.

        The object can be used again.
        """
        self._conversation.close()

    # Branches.

    async def create_branch_from_turn(
        self, turn_number: int, branch_name: str | None = None
    ) -> str:
        """Create a branch that starts before a turn, and switch to it.

        Args:
            turn_number: Number of the turn; the first is 1.
            branch_name: Id of the branch. The default is made from the number of the turn.

        Returns:
            The id of the branch.

        Raises:
            NotFound: "no_turn", if there is no such turn.
            Conflict: "name_taken", if a branch of that name exists or existed.
        """
        return await self._branches.create_from_turn(turn_number, branch_name)

    async def create_branch_from_content(
        self, search_term: str, branch_name: str | None = None
    ) -> str:
        """Create a branch before the first turn whose user message contains `search_term`.

        Args:
            search_term: Text to find, in any case of letters.
            branch_name: Id of the branch.

        Returns:
            The id of the branch.

        Raises:
            NotFound: "no_turn", if no user message contains the text.
            Conflict: "name_taken", if a branch of that name exists or existed.
        """
        return await self._branches.create_from_content(search_term, branch_name)

    async def switch_to_branch(self, branch_id: str) -> None:
        """Switch to a branch.

        Raises:
            NotFound: "no_branch", if there is no such branch.
        """
        await self._branches.switch(branch_id)

    async def delete_branch(self, branch_id: str, force: bool = False) -> None:
        """Close a branch. Its name stays taken, and `hub.get` still reads it.

        Calls of other objects that are on the branch then raise NotFound, until they switch.

        Args:
            branch_id: The branch; main cannot be deleted.
            force: Also close the current branch, and switch to main.

        Raises:
            NotFound: "no_branch", if there is no such branch.
            Conflict: "current_branch", if it is the current branch and `force` is False.
            Invalid: "bad_branch", if it is main.
        """
        await self._branches.delete(branch_id, force)

    async def list_branches(self) -> list[dict[str, Any]]:
        """Return all branches with their message counts, also forks that other programs made."""
        return await self._branches.list_branches()

    # Turns and usage.

    async def store_run_usage(self, result: RunResultBase) -> None:
        """Record what a run used and charge it to the session's budget, for the current turn.

        If a run is reported again, also after it was resumed, only the difference is charged.

        Args:
            result: What `Runner.run` returned.

        Raises:
            Refused: "budget_spent", if a limit is exceeded. The usage is recorded and the session
                is paused.
        """
        await self._turns.store_run_usage(result)

    async def get_turn_usage(
        self, user_turn_number: int | None = None, branch_id: str | None = None
    ) -> list[dict[str, Any]] | dict[str, Any]:
        """Return the usage of one turn ({} if unknown), or of all turns."""
        return await self._turns.get_turn_usage(user_turn_number, branch_id)

    async def get_session_usage(self, branch_id: str | None = None) -> dict[str, int] | None:
        """Return the usage of a branch, or of all branches; None if nothing is known."""
        return await self._turns.get_session_usage(branch_id)

    async def get_conversation_turns(self, branch_id: str | None = None) -> list[dict[str, Any]]:
        """Return the user messages by turn."""
        return await self._turns.get_conversation_turns(branch_id)

    async def find_turns_by_content(
        self, search_term: str, branch_id: str | None = None
    ) -> list[dict[str, Any]]:
        """Return the turns whose user message contains the text, ignoring case."""
        return await self._turns.find_turns_by_content(search_term, branch_id)

    async def get_conversation_by_turns(
        self, branch_id: str | None = None
    ) -> dict[int, list[dict[str, str | None]]]:
        """Return the item types of each turn."""
        return await self._turns.get_conversation_by_turns(branch_id)

    async def get_tool_usage(self, branch_id: str | None = None) -> list[tuple[str, int, int]]:
        """Return tuples of tool name, number of calls and turn."""
        return await self._turns.get_tool_usage(branch_id)

    # OpenAIResponsesCompactionSession calls this method if a session has it.

    async def _get_compaction_snapshot(self, limit: int, **_: Any) -> _CompactionSnapshot | None:
        return await compaction_snapshot(self._conversation, limit)


class OrtetCompactingSession:
    """An OrtetSession that compacts its context after a turn, without a service.

    If more than `above` messages are in context, all but the last `keep_last` are replaced by a
    summary. A tool call is never separated from its result. `s.conversation.dropped()` returns
    the dropped messages.

    To compact with OpenAI's service, wrap an OrtetSession in the SDK's
    OpenAIResponsesCompactionSession instead.

    Example:
        session = OrtetCompactingSession("chat-1", hub, above=40, keep_last=20)
        result = await Runner.run(agent, "Hello", session=session)
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
        """Prepare a session. The Ortet session is created with the first item.

        Args:
            session_id: Id of the conversation.
            hub: The open store.
            above: Number of messages above which the context is compacted.
            keep_last: Number of messages that stay.
            summarise: Returns the summary of messages; by default an extract is made.
            options: Further arguments of OrtetSession.

        Raises:
            Invalid: If an argument is not valid.
            NotFound: "no_branch", if there is no such branch.
        """
        require(POSITIVE_COUNT, above=above)
        require(COUNT, keep_last=keep_last)
        optional(CALLABLE, summarise=summarise)
        # The SDK compacts every session that has `run_compaction`, so OrtetSession has none.
        self._session = OrtetSession(session_id, hub, **options)
        self._conversation = self._session._conversation
        self._compactor = LocalCompactor(
            self._conversation, above=above, keep_last=keep_last, summarise=summarise
        )
        self.session_id = session_id

    @property
    def session_settings(self) -> SessionSettings | None:
        """The settings of the SDK."""
        return self._session.session_settings

    @session_settings.setter
    def session_settings(self, settings: SessionSettings | None) -> None:
        self._session.session_settings = settings

    @property
    def name(self) -> str:
        """The name of the Ortet session, for `ortet journal NAME` and `hub.get(NAME)`."""
        return self._session.name

    @property
    def branch(self) -> str:
        """The id of the current branch."""
        return self._session.branch

    async def run_compaction(
        self,
        args: OpenAIResponsesCompactionArgs | None = None,
        *,
        wrapper: RunContextWrapper[Any] | None = None,
    ) -> None:
        """Compact the context; the Runner calls this after each turn.

        Args:
            args: `{"force": True}` compacts regardless of the number of messages.
            wrapper: The context of the run, which is not used.
        """
        del wrapper
        force = bool(args and args.get("force"))
        await self._conversation.do(lambda: self._compactor.compact(force=force))

    async def get_items(
        self, limit: int | None = None, branch_id: str | None = None
    ) -> list[TResponseInputItem]:
        """Return the items in order: see `OrtetSession.get_items`."""
        return await self._session.get_items(limit, branch_id)

    async def add_items(self, items: list[TResponseInputItem]) -> None:
        """Append all items or none, and compact the context if it is too long.

        Args:
            items: Items of the Responses API.

        Raises:
            Invalid: "not_json", if JSON cannot represent an item. The message names the place.
        """
        if items:
            copied_items = list(items)
            await self._conversation.do(lambda: self._compactor.add(copied_items))

    async def pop_item(self) -> TResponseInputItem | None:
        """Remove and return the latest item: see `OrtetSession.pop_item`."""
        return await self._session.pop_item()

    async def clear_session(self) -> None:
        """Clear the context and switch to main: see `OrtetSession.clear_session`."""
        await self._session.clear_session()

    def close(self) -> None:
        """Release the session, so that another process can open it."""
        self._session.close()

    async def create_branch_from_turn(
        self, turn_number: int, branch_name: str | None = None
    ) -> str:
        """Create a branch before a turn: see `OrtetSession.create_branch_from_turn`."""
        return await self._session.create_branch_from_turn(turn_number, branch_name)

    async def create_branch_from_content(
        self, search_term: str, branch_name: str | None = None
    ) -> str:
        """Create a branch before a found turn: see `OrtetSession.create_branch_from_content`."""
        return await self._session.create_branch_from_content(search_term, branch_name)

    async def switch_to_branch(self, branch_id: str) -> None:
        """Switch to a branch: see `OrtetSession.switch_to_branch`."""
        await self._session.switch_to_branch(branch_id)

    async def delete_branch(self, branch_id: str, force: bool = False) -> None:
        """Close a branch: see `OrtetSession.delete_branch`."""
        await self._session.delete_branch(branch_id, force)

    async def list_branches(self) -> list[dict[str, Any]]:
        """Return all branches with their message counts, also forks that other programs made."""
        return await self._session.list_branches()

    async def store_run_usage(self, result: RunResultBase) -> None:
        """Record what a run used: see `OrtetSession.store_run_usage`."""
        await self._session.store_run_usage(result)

    async def get_turn_usage(
        self, user_turn_number: int | None = None, branch_id: str | None = None
    ) -> list[dict[str, Any]] | dict[str, Any]:
        """Return the usage of one turn ({} if unknown), or of all turns."""
        return await self._session.get_turn_usage(user_turn_number, branch_id)

    async def get_session_usage(self, branch_id: str | None = None) -> dict[str, int] | None:
        """Return the usage of a branch, or of all branches; None if nothing is known."""
        return await self._session.get_session_usage(branch_id)

    async def get_conversation_turns(self, branch_id: str | None = None) -> list[dict[str, Any]]:
        """Return the user messages by turn."""
        return await self._session.get_conversation_turns(branch_id)

    async def find_turns_by_content(
        self, search_term: str, branch_id: str | None = None
    ) -> list[dict[str, Any]]:
        """Return the turns whose user message contains the text, ignoring case."""
        return await self._session.find_turns_by_content(search_term, branch_id)

    async def get_conversation_by_turns(
        self, branch_id: str | None = None
    ) -> dict[int, list[dict[str, str | None]]]:
        """Return the item types of each turn."""
        return await self._session.get_conversation_by_turns(branch_id)

    async def get_tool_usage(self, branch_id: str | None = None) -> list[tuple[str, int, int]]:
        """Return tuples of tool name, number of calls and turn."""
        return await self._session.get_tool_usage(branch_id)
