"""`OrtetHistory`: a conversation with Pydantic AI agents, stored as messages of a session."""

from __future__ import annotations

import asyncio
import atexit
import threading
import warnings
import weakref
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from pydantic_ai import (
    Agent,
    AgentRunResult,
    DeferredToolRequests,
    DeferredToolResults,
    ToolApproved,
)
from pydantic_ai.messages import ModelMessage

from ortet._util.validation import check_text
from ortet.errors import Invalid, NotFound
from ortet.hub.hub import Hub
from ortet.integrations._shared.messages import (
    UNANSWERED_TEXT,
    append_messages,
    close_open_calls,
    get_session_pool,
    is_substitute_for,
    load_full_message,
    report_invalid_value,
)
from ortet.integrations._shared.session_pool import session_name
from ortet.integrations.aio import to_thread_shielded
from ortet.integrations.pydantic_ai.messages import (
    MessageDump,
    dump_messages,
    message_of,
    models_of,
    result_of,
    to_dump,
)
from ortet.journal.conversation.compaction import summary_message
from ortet.journal.conversation.tool_calls import calls_of
from ortet.journal.state.records import Message, ToolCall
from ortet.sessions.conversation_state import last_compaction, system_messages
from ortet.sessions.reader import SessionReader
from ortet.sessions.session import Session

# The event loop that synchronous runs of a thread share.

T = TypeVar("T")


class _ThreadLoop:
    """An event loop that is closed with its thread or process."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        weakref.finalize(self, loop.close)


_THREAD_LOCAL = threading.local()
_FOREIGN_LOOPS: weakref.WeakSet[asyncio.AbstractEventLoop] = weakref.WeakSet()


def run_in_thread_loop(make: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run the coroutine on the event loop of this thread, which `agent.run_sync` uses too.

    The client of a model is kept, and its connections belong to the loop they were made on. So all
    runs must use the same loop.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return _run(_loop(), make())
    raise Invalid(
        "loop_running", "an event loop runs here, as in a notebook: await run() instead of run_sync"
    )


def _run(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T]) -> T:
    task = loop.create_task(work)
    try:
        return loop.run_until_complete(task)
    except BaseException:
        if not task.done():  # Interrupted by Ctrl-C: let the task store the messages so far.
            task.cancel()
            with suppress(asyncio.CancelledError):
                loop.run_until_complete(task)
        raise


def _loop() -> asyncio.AbstractEventLoop:
    held: _ThreadLoop | None = getattr(_THREAD_LOCAL, "held", None)
    loop = _current()
    if loop is not None and not loop.is_closed():
        if loop not in _FOREIGN_LOOPS and (held is None or held.loop is not loop):
            _FOREIGN_LOOPS.add(loop)
            # get_event_loop() may have created it; then nobody else closes it.
            atexit.register(loop.close)
        return loop
    if held is None or held.loop.is_closed():
        held = _THREAD_LOCAL.held = _ThreadLoop(asyncio.new_event_loop())
    asyncio.set_event_loop(held.loop)
    return held.loop


def _current() -> asyncio.AbstractEventLoop | None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        try:
            return asyncio.get_event_loop()
        except RuntimeError:
            return None


_COUNTS = ("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens")

_FIRST_PAGE = 8

DEFERRED = "pydantic-ai.deferred"
"""Event kind with the ids of the tool calls that wait for an approval or an outside result."""


class OrtetHistory:
    """A message history: `await chat.run(agent, "…")` instead of `await agent.run("…")`.

    The agent gets the earlier messages. Each new message is stored as soon as it exists.

    Example:
        chat = OrtetHistory("chat-1", ortet.open("chats"))
        result = await chat.run(agent, "How is Rome?")
    """

    def __init__(
        self, session_id: str, hub: Hub, *, agent: str = "default", **options: Any
    ) -> None:
        """Use an open store. The Ortet session is created with the first message.

        Args:
            session_id: Id of the conversation; the Ortet session has the same name.
            hub: The open store.
            agent: Agent that owns the session.
            options: Options of `hub.session` for a new session, such as goal, budget and profile.
        """
        check_text(session_id=session_id)
        self.session_id = session_id
        self._options = options
        self._pool = get_session_pool(hub, agent)
        self._name = session_name(session_id)

    @property
    def name(self) -> str:
        """The name of the Ortet session, for `ortet journal NAME` and `hub.get(NAME)`."""
        return self._name

    async def run(self, agent: Agent[Any, Any], prompt: Any = None, **run_options: Any) -> Any:
        """Call `agent.run` with this history and store each new message.

        After a crash the messages up to then are stored, and interrupted tool calls get a result
        that says so. Calls that the run deferred stay open, for `deferred_tool_results` of a later
        run, also in another process. An approved call is a running call from then on.

        Args:
            agent: The agent of Pydantic AI.
            prompt: The prompt of the user.
            run_options: Further arguments of `agent.run`.

        Returns:
            The result of the run.

        Raises:
            Invalid: If a message cannot be stored. The error names the place.
            Refused: kind "budget_spent", if a limit is exceeded.
        """
        before = await asyncio.to_thread(self.load)
        stored = 0

        def keep(messages: Sequence[ModelMessage]) -> None:
            nonlocal stored
            self._store(dump_messages(messages[stored:]))
            stored = len(messages)

        results = run_options.get("deferred_tool_results")
        async with agent.iter(prompt, message_history=before, **run_options) as run:
            try:
                async for node in run:
                    if len(new := run.new_messages()) > stored:
                        await to_thread_shielded(keep, new)
                    if results is not None and Agent.is_call_tools_node(node):
                        await to_thread_shielded(self._record_started, results)
                        results = None
            finally:
                new = run.new_messages()
                # A run that failed ends with a request without parts, which says nothing.
                if any(message.parts for message in new[stored:]):
                    await to_thread_shielded(keep, new)
        assert run.result is not None  # Otherwise the loop has raised.
        if deferred := _deferred_in(run.result):
            await to_thread_shielded(self._record_deferred, deferred)
        return run.result

    def run_sync(self, agent: Agent[Any, Any], prompt: Any = None, **run_options: Any) -> Any:
        """Call `agent.run_sync` with this history; see `run`."""
        return run_in_thread_loop(lambda: self.run(agent, prompt, **run_options))

    def load(self) -> list[ModelMessage]:
        """Return the messages in context, for `message_history=`.

        If the context was compacted, the summary comes first.
        """
        try:
            with self._pool.reading(self._name) as view:
                first = _summary(view)
                waiting = _waiting_calls(view)
                messages = [one for one in view.messages() if not is_substitute_for(one, waiting)]
                dumps = _dumps_of(view, messages)
                open_calls = view.internals.state.core.calling
                calling = [call for call in open_calls if call.id not in waiting]
        except NotFound as error:
            if error.kind != "no_session":
                raise
            return []
        models = models_of([*first, *dumps])
        return [*models, result_of(calling)] if calling else models

    def save(self, result: AgentRunResult[Any] | Sequence[ModelMessage]) -> int:
        """Store the new messages of a run or list, all or none.

        The messages are on disk when this returns. Their usage is charged to the budget. Tool calls
        without a result stay open, because the run has ended: they wait for one.

        Args:
            result: The result of a run, or messages as `result.new_messages()` returns them.

        Returns:
            The number of stored messages.

        Raises:
            Invalid: If an item is no message, or JSON cannot represent it.
        """
        messages = result if isinstance(result, Sequence) else result.new_messages()
        for number, message in enumerate(messages):
            if getattr(message, "kind", None) not in ("request", "response"):
                raise Invalid(
                    "bad_message",
                    f"message {number} is {type(message).__name__}: give a run's result, or "
                    "messages as result.new_messages() has them",
                )
        return self._store(dump_messages(messages), skip_stored=True, leave_open=True)

    def fork(self) -> OrtetHistory:
        """Return another conversation that continues from here."""
        with self._pool.writing(self._name, **self._options) as session:
            (fork,) = session.fork(1, machine=False)
            name = fork.name
        other = OrtetHistory.__new__(OrtetHistory)
        other.session_id, other._options, other._pool = name, self._options, self._pool
        other._name = name
        return other

    def _store(
        self, dumps: list[MessageDump], *, skip_stored: bool = False, leave_open: bool = False
    ) -> int:
        with self._pool.writing(self._name, **self._options) as session:
            new = dumps[_count_stored(session, dumps) if skip_stored else 0 :]
            if not new:
                return 0
            plain_messages = [message_of(plain) for plain in new]
            _close_abandoned_calls(session, new)
            self._record_session_id(session)
            with report_invalid_value("message", plain_messages):
                append_messages(session, plain_messages)
            _record_usage(session, new)
            if leave_open and (calling := session.internals.state.core.calling):
                session.record(DEFERRED, {"calls": sorted(call.id for call in calling)})
        return len(new)

    def _record_started(self, results: DeferredToolResults) -> None:
        """Record that the approved calls run now and no longer wait.

        If the process is killed in one of them, nobody knows whether it was done, so it must not be
        approved again. Results from outside can be given again.
        """
        approved = {id_ for id_, answer in results.approvals.items() if _is_approved(answer)}
        waiting = set[str]()
        with suppress(NotFound), self._pool.reading(self._name) as view:
            waiting = _waiting_calls(view)
        # Pydantic AI refuses results that are not exactly those of the calls, and runs nothing.
        if approved and {*results.approvals, *results.calls} == waiting:
            self._record_deferred(waiting - approved)

    def _record_deferred(self, calls: Collection[str]) -> None:
        """Record which calls wait for an approval or an outside result."""
        with self._pool.writing(self._name, **self._options) as session:
            session.record(DEFERRED, {"calls": sorted(calls)})

    def _record_session_id(self, session: Session) -> None:
        """Record the program's session id, if the session name does not equal it."""
        if self._name != self.session_id and session.internals.state.core.events <= 1:
            session.record("pydantic-ai.session", {"session_id": self.session_id})


def _dumps_of(view: SessionReader, messages: Sequence[Message]) -> list[MessageDump]:
    return [to_dump(load_full_message(view, message)) for message in messages]


def _deferred_in(result: AgentRunResult[Any]) -> list[str]:
    """Return the ids of the calls that a run leaves to the caller."""
    output = result.output
    if not isinstance(output, DeferredToolRequests):
        return []
    return [call.tool_call_id for call in (*output.approvals, *output.calls)]


def _is_approved(answer: Any) -> bool:
    return answer is True or isinstance(answer, ToolApproved)


def _waiting_calls(view: SessionReader) -> set[str]:
    """Return the ids of the calls that wait for an approval or an outside result.

    They wait until a message follows that is not a substitute for a lost result.
    """
    latest = _latest_answer(view)
    waiting = set[str]()
    if latest is None or not calls_of(latest):
        return waiting
    for event in view.events(latest.seq):
        if event.erased:
            continue
        if event.kind == DEFERRED:
            waiting = set(event.data["calls"])
        elif event.kind == "message" and not event.data.get("extra", {}).get("synthetic"):
            waiting = set()
    return waiting


def _latest_answer(view: SessionReader) -> Message | None:
    """Return the last message of the model. Older messages are read on demand."""
    count = _FIRST_PAGE
    while True:
        messages = view.messages(last=count)
        answers = (message for message in reversed(messages) if message.role == "assistant")
        if (latest := next(answers, None)) is not None or len(messages) < count:
            return latest
        count *= 4


def _summary(view: SessionReader) -> list[MessageDump]:
    past = last_compaction(view.internals.context)
    if past is None:
        return []
    first = system_messages(view.internals.context)
    return [to_dump(one) for one in ([*first, summary_message(past)] if past.summary else first)]


def _count_stored(view: SessionReader, dumps: Sequence[MessageDump]) -> int:
    """Return how many of the first dumps are already stored as the last messages."""
    stored = _dumps_of(view, view.messages(last=len(dumps))) if dumps else []
    for count in range(len(stored), 0, -1):
        if stored[-count:] == list(dumps[:count]):
            return count
    return 0


def _close_abandoned_calls(session: Session, new: Sequence[MessageDump]) -> None:
    """Close the open calls, unless their results come now.

    They waited for an answer that did not come, or belong to a process that ended.
    """
    calling: list[ToolCall] = list(session.internals.state.core.calling)
    answered = {part.get("tool_call_id") for part in new[0].get("parts", ())}
    if not calling or answered.intersection(call.id for call in calling):
        return
    close_open_calls(session, dict.fromkeys(_waiting_calls(session), UNANSWERED_TEXT))


def _record_usage(session: Session, new: Sequence[MessageDump]) -> None:
    used: Counter[str] = Counter()
    model = ""
    for plain in new:
        if plain["kind"] == "response":
            used["requests"] += 1
            model = plain.get("model_name") or model
            for key in _COUNTS:
                used[key] += int((plain.get("usage") or {}).get(key) or 0)
    if used:
        usage = {key: count for key, count in used.items() if count}
        session.accounting.model_call("pydantic-ai", model or "default", {}, usage)
