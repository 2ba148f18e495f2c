from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel
from pydantic_ai import Agent, DeferredToolResults, ToolDenied
from pydantic_ai.exceptions import UserError
from pydantic_ai.messages import (
    BinaryContent,
    ImageUrl,
    ModelMessage,
    ModelRequest,
    ModelResponse,
    SystemPromptPart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.models.test import TestModel
from tests.fixtures import forked
from tests.integrations.pydantic_ai.worker import payer

import ortet
from ortet.errors import Invalid, Refused
from ortet.hub.hub import Hub
from ortet.integrations._shared.messages import UNANSWERED_TEXT
from ortet.integrations.pydantic_ai import OrtetHistory
from ortet.integrations.pydantic_ai.messages import (
    dump_messages,
    message_of,
    models_of,
    to_dump,
)
from ortet.journal.conversation.tool_calls import LOST_RESULT_TEXT
from ortet.journal.state.records import Message

ROOT = Path(__file__).resolve().parents[3]
WORKER = Path(__file__).with_name("worker.py")

MESSAGES: list[ModelMessage] = [
    ModelRequest(parts=[UserPromptPart("hi")], instructions="be short"),
    ModelRequest(parts=[SystemPromptPart("rules")]),
    ModelRequest(parts=[SystemPromptPart("rules"), SystemPromptPart("more")]),
    ModelRequest(parts=[SystemPromptPart("rules"), UserPromptPart("hi")]),
    ModelRequest(parts=[UserPromptPart("a"), UserPromptPart("b")]),
    ModelRequest(parts=[UserPromptPart(["see", ImageUrl("https://x/y.png")])]),
    ModelRequest(parts=[UserPromptPart([BinaryContent(b"\0\xff", media_type="image/png")])]),
    ModelRequest(parts=[]),
    ModelResponse(parts=[TextPart("hello")], model_name="m"),
    ModelResponse(parts=[]),
    ModelResponse(parts=[TextPart("a"), ThinkingPart("hm"), TextPart("b")]),
    ModelResponse(
        parts=[
            ThinkingPart("hm", signature="s"),
            TextPart("let me see"),
            ToolCallPart("f", {"x": 1}, tool_call_id="1"),
            ToolCallPart("g", '{"x": 1}', tool_call_id="2"),
            ToolCallPart("h", None, tool_call_id="3"),
        ]
    ),
    ModelRequest(parts=[ToolReturnPart("f", "one", tool_call_id="1")]),
    ModelRequest(parts=[ToolReturnPart("f", {"a": [1]}, tool_call_id="1")]),
    ModelRequest(
        parts=[
            ToolReturnPart("g", "two", tool_call_id="2"),
            ToolReturnPart("h", "again", tool_call_id="3", outcome="retried"),
            UserPromptPart("and this"),
        ]
    ),
]


def said(data: dict[str, Any]) -> Message:
    extra = {key: value for key, value in data.items() if key not in ("role", "content")}
    return Message(1, data["role"], data["content"], extra=extra)


@pytest.mark.parametrize("message", MESSAGES)
def test_messages_come_back_as_they_were(message: ModelMessage) -> None:
    (plain,) = dump_messages([message])
    data = message_of(plain)
    assert to_dump(said(data)) == plain
    assert models_of([to_dump(said(data))]) == models_of([plain])


def weather() -> Agent[None, str]:
    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        last = messages[-1].parts[-1]
        if isinstance(last, UserPromptPart):
            number = len(messages)
            calls = [ToolCallPart("look", {"city": c}, f"{c}{number}") for c in "AB"]
            return ModelResponse(parts=[TextPart("let me see"), *calls])
        return ModelResponse(parts=[TextPart(f"answer {len(messages)}")])

    agent = Agent(FunctionModel(answer))

    @agent.tool_plain
    def look(city: str) -> str:
        return f"sun in {city}"

    return agent


def test_an_agent_continues_its_conversation_in_another_hub(hub: Hub, store: Path) -> None:
    chat, agent = OrtetHistory("chat", hub, budget={"requests": 5}), weather()
    first = chat.run_sync(agent, "question 0")
    assert first.output == "answer 3"
    second = chat.run_sync(agent, "question 1")
    assert second.output == "answer 7"
    assert chat.load() == second.all_messages()
    view = hub.get("chat")
    roles = [message.role for message in view.messages()]
    assert roles == ["user", "assistant", "tool", "assistant"] * 2
    assert [m.content for m in view.messages() if m.role == "user"] == ["question 0", "question 1"]
    assert view.accounting.spent()["requests"] == 4
    assert view.accounting.spent()["tokens"] == second.usage.total_tokens + first.usage.total_tokens
    with ortet.open(store) as other:
        again = OrtetHistory("chat", other)
        assert again.load() == second.all_messages()
        with pytest.raises(Refused, match="budget"):
            again.run_sync(agent, "question 2")
        assert other.verify().problems == []


def test_a_result_is_saved_once(hub: Hub) -> None:
    chat, agent = OrtetHistory("a b", hub), weather()
    result = asyncio.run(agent.run("question 0", message_history=chat.load()))
    assert (chat.save(result), chat.save(result)) == (4, 0)
    result = asyncio.run(agent.run("question 1", message_history=chat.load()))
    assert chat.save(result.all_messages()) == 4  # only what is new
    assert chat.load() == result.all_messages()
    assert hub.get(chat.name).accounting.spent()["requests"] == 4
    (told,) = hub.get(chat.name).records("pydantic-ai.session")
    assert told.data == {"session_id": "a b"}
    assert chat.save([]) == 0
    with pytest.raises(Invalid, match="message 0 is str"):
        chat.save(["text"])  # type: ignore[list-item]


def test_forked_histories_diverge(hub: Hub) -> None:
    chat, agent = OrtetHistory("chat", hub), weather()
    chat.run_sync(agent, "question 0")
    other = chat.fork()
    other.run_sync(agent, "there")
    chat.run_sync(agent, "here")
    assert [len(one.load()) for one in (chat, other)] == [8, 8]
    assert hub.get(other.name).internals.row.parent == hub.get("chat").id


def test_unknown_parts_of_a_later_release_are_kept(hub: Hub) -> None:
    chat = OrtetHistory("chat", hub)
    (plain,) = dump_messages([ModelResponse(parts=[TextPart("hello")])])
    plain["parts"].append({"part_kind": "hologram", "data": [1, 2]})
    plain["a new field"] = {"deep": 1}
    chat._store([plain])
    (found,) = chat.load()
    assert [part.part_kind for part in found.parts] == ["text"]
    chat.run_sync(weather(), "go on")
    view = hub.get("chat")
    assert to_dump(view.messages()[0]) == plain


def test_messages_of_other_programs_and_summaries_are_loaded(hub: Hub) -> None:
    chat = OrtetHistory("chat", hub)
    chat.save([ModelRequest(parts=[UserPromptPart(str(n))]) for n in range(5)])
    with hub.session("chat") as s:
        s.say("user", "from outside")
        s.say("assistant", "", tool_calls=[{"id": "1", "name": "f"}])
        s.say("tool", "done", tool_call_id="1")
        s.compact(keep_last=3, summarise=lambda messages: "five numbers")
    summary, user, call, result = chat.load()
    assert str(summary.parts[0].content).endswith("five numbers")  # type: ignore[union-attr]
    assert user.parts[0].content == "from outside"  # type: ignore[union-attr]
    assert call.parts[0].tool_name == "f"  # type: ignore[union-attr]
    assert result.parts[0].content == "done"  # type: ignore[union-attr]


def test_a_part_that_cannot_be_stored_is_named_and_nothing_is_stored(hub: Hub) -> None:
    chat = OrtetHistory("chat", hub)
    odd = ToolReturnPart("f", {"lock": object()}, tool_call_id="1")
    with pytest.raises(Invalid, match=r"message 1, at parts\[0\] \(tool f\)"):
        chat.save([MESSAGES[0], ModelRequest(parts=[odd])])
    assert chat.load() == []
    large = ModelRequest(
        parts=[UserPromptPart([BinaryContent(b"\0" * 2_000_000, media_type="image/png")])]
    )
    chat.save([large])
    assert chat.load() == models_of(dump_messages([large]))


class Reply(BaseModel):
    text: str


def test_structured_output_and_a_run_that_fails(hub: Hub) -> None:
    chat = OrtetHistory("chat", hub)
    result = chat.run_sync(Agent(TestModel(), output_type=Reply), "go")
    assert isinstance(result.output, Reply)
    assert chat.load() == result.all_messages()
    chat, agent = OrtetHistory("other", hub), Agent(TestModel())

    @agent.tool_plain
    def fail() -> str:
        raise RuntimeError("no luck")

    with pytest.raises(RuntimeError, match="no luck"):
        chat.run_sync(agent, "again")
    found = [part for message in chat.load() for part in message.parts]
    assert isinstance(found[-1], ToolReturnPart)
    assert found[-1].content == LOST_RESULT_TEXT
    assert chat.run_sync(Agent(TestModel()), "and now?").output
    assert not hub.get("other").internals.state.core.calling


def kill_in_tool(store: Path, verb: str, line: str) -> None:
    """Kill a worker when it has told this line."""
    worker = forked.Popen(
        [sys.executable, str(WORKER), str(store), verb],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])},
    )
    try:
        assert worker.stdout is not None
        assert worker.stdout.readline() == line
    finally:
        worker.kill()
        worker.communicate()


def test_a_tool_call_cut_off_by_a_crash_is_answered_as_lost(hub: Hub, store: Path) -> None:
    kill_in_tool(store, "look", "looking at a\n")
    chat = OrtetHistory("chat", hub)
    prompt, call, result = chat.load()
    assert prompt.parts[0].content == "what is it?"  # type: ignore[union-attr]
    assert [part.part_kind for part in call.parts] == ["tool-call"]
    assert result.parts[0].content == LOST_RESULT_TEXT  # type: ignore[union-attr]
    chat.run_sync(Agent(TestModel()), "and now?")
    roles = [message.role for message in hub.get("chat").messages()]
    assert roles == ["user", "assistant", "tool", "user", "assistant"]


# Calls that wait for an approval or an outside result.

APPROVED = DeferredToolResults(approvals={"c2": True})


def outputs(chat: OrtetHistory) -> list[Any]:
    """Return the call ids and contents of all results."""
    parts = [part for message in chat.load() for part in message.parts]
    return [(p.tool_call_id, p.content) for p in parts if isinstance(p, ToolReturnPart)]


@pytest.mark.parametrize("saved", [False, True])
@pytest.mark.parametrize("reopened", [False, True])
def test_an_approval_in_another_process_runs_the_call_once(
    hub: Hub, store: Path, saved: bool, reopened: bool
) -> None:
    paid: list[int] = []
    with ortet.open(store) as other:
        first = OrtetHistory("chat", other)
        if saved:
            result = asyncio.run(payer(paid).run("pay 5"))
            first.save(result.new_messages())
        else:
            result = first.run_sync(payer(paid), "pay 5")
        assert [call.tool_call_id for call in result.output.approvals] == ["c2"]
    if reopened:
        with hub.session("chat") as s:  # which writes a substitute for model APIs
            assert [one.content for one in s.messages()][-1] == LOST_RESULT_TEXT
    chat = OrtetHistory("chat", hub)
    assert outputs(chat) == [("c1", "90")]
    assert chat.load() == result.all_messages()
    assert chat.run_sync(payer(paid), deferred_tool_results=APPROVED).output == "that is all"
    assert (paid, outputs(chat)) == ([5], [("c1", "90"), ("c2", "paid")])
    assert not hub.get("chat").internals.state.core.calling
    with pytest.raises(UserError, match="unprocessed tool calls"):
        chat.run_sync(payer(paid), deferred_tool_results=APPROVED)
    assert paid == [5]


def test_an_approved_call_cut_off_by_a_crash_is_not_approved_again(hub: Hub, store: Path) -> None:
    OrtetHistory("chat", hub).run_sync(payer([]), "pay 5")
    hub.close()
    kill_in_tool(store, "pay", "looking at 5\n")
    paid: list[int] = []
    with ortet.open(store) as again:
        chat = OrtetHistory("chat", again)
        assert outputs(chat) == [("c1", "90"), ("c2", LOST_RESULT_TEXT)]
        with pytest.raises(UserError, match="already executed"):
            chat.run_sync(payer(paid), deferred_tool_results=APPROVED)
        assert chat.run_sync(Agent(TestModel()), "was it paid?").output
    assert paid == []


def test_refused_arguments_leave_the_call_open(hub: Hub) -> None:
    chat, paid = OrtetHistory("chat", hub), list[int]()
    chat.run_sync(payer(paid), "pay 5")
    with pytest.raises(UserError, match="c9"):
        more = DeferredToolResults(approvals={"c2": True, "c9": True})
        chat.run_sync(payer(paid), deferred_tool_results=more)
    denied = DeferredToolResults(approvals={"c2": ToolDenied("too much")})
    assert chat.run_sync(payer(paid), deferred_tool_results=denied).output == "that is all"
    assert (paid, outputs(chat)) == ([], [("c1", "90"), ("c2", "too much")])


def test_a_new_prompt_closes_a_call_that_was_not_answered(hub: Hub) -> None:
    chat, paid = OrtetHistory("chat", hub), list[int]()
    chat.run_sync(payer(paid), "pay 5")
    chat.run_sync(Agent(TestModel()), "never mind")
    assert outputs(chat) == [("c1", "90"), ("c2", UNANSWERED_TEXT)]
    with pytest.raises(UserError, match="not contain any unprocessed"):
        chat.run_sync(payer(paid), deferred_tool_results=APPROVED)
    assert paid == []


def test_a_call_is_no_longer_open_when_another_program_goes_on(hub: Hub) -> None:
    chat, paid = OrtetHistory("chat", hub), list[int]()
    chat.run_sync(payer(paid), "pay 5")
    with hub.session("chat") as s:
        s.say("user", "never mind")
    assert outputs(chat) == [("c1", "90"), ("c2", LOST_RESULT_TEXT)]
    assert chat.run_sync(Agent(TestModel()), "and now?").output


def test_a_fork_of_a_conversation_with_an_open_call_has_it_open(hub: Hub) -> None:
    chat, paid = OrtetHistory("chat", hub), list[int]()
    chat.run_sync(payer(paid), "pay 5")
    other = chat.fork()
    for one in (chat, other):
        assert one.run_sync(payer(paid), deferred_tool_results=APPROVED).output == "that is all"
        assert outputs(one) == [("c1", "90"), ("c2", "paid")]


def test_runs_of_a_thread_share_one_loop(hub: Hub) -> None:
    """Else a client of a model, which is kept, would use connections of a loop that is closed."""
    loops: list[asyncio.AbstractEventLoop] = []

    async def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        loops.append(asyncio.get_running_loop())
        return ModelResponse(parts=[TextPart("yes")])

    agent, chat = Agent(FunctionModel(answer)), OrtetHistory("chat", hub)
    chat.run_sync(agent, "one")
    chat.run_sync(agent, "two")
    agent.run_sync("three")
    assert loops[0] is loops[1] is loops[2] and not loops[0].is_closed()


def test_run_sync_inside_an_event_loop_is_refused_with_advice(hub: Hub) -> None:
    async def notebook() -> None:
        OrtetHistory("chat", hub).run_sync(Agent(TestModel()), "hi")

    with pytest.raises(Invalid, match="await run"):
        asyncio.run(notebook())
