"""A tool call that waits for a person is open in another process, however the session was opened.

Pydantic AI is tested in `pydantic_ai/test_history.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from agent_framework import Agent as FrameworkAgent
from agent_framework import AgentSession, Content, Message, tool
from agents import Agent, Runner, RunState, function_tool
from google.adk.agents import LlmAgent
from google.adk.models import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.runners import Runner as AdkRunner
from google.adk.tools.function_tool import FunctionTool
from google.genai import types
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolMessage
from langgraph.graph import START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import Command, interrupt
from tests.integrations.agent_framework.flow import Scripted as FrameworkModel
from tests.integrations.claude.lines import append, call, key, load, prompt, result
from tests.integrations.openai_agents.model import Scripted, text
from tests.integrations.openai_agents.model import call as openai_call

import ortet
from ortet.hub.hub import Hub
from ortet.integrations._shared.messages import UNANSWERED_TEXT
from ortet.integrations.adk import OrtetSessionService
from ortet.integrations.agent_framework import OrtetHistoryProvider
from ortet.integrations.claude import OrtetSessionStore
from ortet.integrations.claude.transcript import transcript_session_name
from ortet.integrations.langgraph import OrtetSaver
from ortet.integrations.openai_agents import OrtetSession
from ortet.integrations.openai_agents.items import OPEN_CALL_TEXT
from ortet.journal.conversation.tool_calls import LOST_RESULT_TEXT


@pytest.fixture
def paid() -> list[int]:
    """What the tool `pay` was called with."""
    return []


def open_session(hub: Hub, name: str) -> None:
    """Open a session as another program does, which writes substitutes for open calls."""
    with hub.session(name) as session:
        last = session.messages()[-1]
        assert LOST_RESULT_TEXT in str(last.content) and last.extra["synthetic"]


# OpenAI Agents


def openai_agent(paid: list[int]) -> tuple[Agent[Any], Scripted]:
    @function_tool(needs_approval=True)
    def pay(amount: int) -> str:
        """Pay."""
        paid.append(amount)
        return "paid"

    @function_tool
    def balance() -> str:
        """The balance."""
        return "90"

    def respond(items: list[Any]) -> list[Any]:
        if items[-1].get("role") != "user":
            return [text("that is all")]
        return [openai_call("c1", "balance"), openai_call("c2", "pay", '{"amount": 5}')]

    model = Scripted(respond)
    return Agent(name="payer", model=model, tools=[pay, balance]), model


@pytest.mark.parametrize("reopened", [False, True])
def test_openai_agents_run_an_approved_call_in_another_process(
    hub: Hub, store: Path, paid: list[int], reopened: bool
) -> None:
    async def ask() -> Any:
        with ortet.open(store) as other:
            result = await Runner.run(
                openai_agent(paid)[0], "pay 5", session=OrtetSession("chat", other)
            )
        return result.to_state().to_json()

    async def approve(stored: Any) -> list[Any]:
        (agent, model), session = openai_agent(paid), OrtetSession("chat", hub)
        items: list[Any] = list(await session.get_items())
        assert items[-1]["output"] == (LOST_RESULT_TEXT if reopened else OPEN_CALL_TEXT)
        state = await RunState.from_json(agent, stored)
        state.approve(state.get_interruptions()[0])
        result = await Runner.run(agent, state, session=session)
        assert result.final_output == "that is all"
        assert [item["output"] for item in model.asked[0] if "output" in item] == ["90", "paid"]
        return list(await session.get_items())

    state = asyncio.run(ask())
    if reopened:
        open_session(hub, "chat")
    items = asyncio.run(approve(state))
    assert paid == [5]
    assert [item["output"] for item in items if "output" in item] == ["90", "paid"]


# Agent Framework


def framework_agent(hub: Hub, paid: list[int]) -> tuple[FrameworkAgent[Any], FrameworkModel]:
    @tool(approval_mode="always_require")
    def pay(amount: int) -> str:
        """Pay."""
        paid.append(amount)
        return "paid"

    def respond(messages: Sequence[Message]) -> list[Any]:
        if not (messages[-1].role == "user" and messages[-1].text):
            return ["that is all"]
        return [Content.from_function_call(call_id="c2", name="pay", arguments='{"amount": 5}')]

    model, provider = FrameworkModel(respond), OrtetHistoryProvider(hub)
    return FrameworkAgent(client=model, tools=[pay], context_providers=[provider]), model


@pytest.mark.parametrize("reopened", [False, True])
@pytest.mark.parametrize("approved", [False, True])
def test_agent_framework_keeps_a_call_open_that_waits_for_an_approval(
    hub: Hub, store: Path, paid: list[int], reopened: bool, approved: bool
) -> None:
    async def ask() -> tuple[Any, Any]:
        with ortet.open(store) as other:
            agent, _ = framework_agent(other, paid)
            session = agent.create_session(session_id="chat")
            result = await agent.run("pay 5", session=session)
        return session.to_dict(), result.user_input_requests[0]

    async def go_on(state: Any, request: Any) -> list[Any]:
        agent, model = framework_agent(hub, paid)
        answer = request.to_function_approval_response(True)
        reply = Message("user", [answer if approved else "never mind"])
        await agent.run(reply, session=AgentSession.from_dict(state))
        messages = model.asked[0]
        return [one.result for m in messages for one in m.contents if one.type == "function_result"]

    state, request = asyncio.run(ask())
    if reopened:
        open_session(hub, "chat")
    results = asyncio.run(go_on(state, request))
    assert (paid, results) == (([5], ["paid"]) if approved else ([], []))
    texts = [one.content for one in hub.get("chat").messages() if one.role == "tool"]
    unanswered = LOST_RESULT_TEXT if reopened else UNANSWERED_TEXT
    assert texts == (["paid"] if approved else [unanswered])


# ADK


class Payer(BaseLlm):
    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        del stream
        last = (llm_request.contents[-1].parts or [])[-1]
        call = types.FunctionCall(name="pay", args={"amount": 5})
        part = types.Part(function_call=call) if last.text else types.Part(text="that is all")
        yield LlmResponse(content=types.Content(role="model", parts=[part]))


def test_adk_runs_a_confirmed_tool_in_another_process(
    hub: Hub, store: Path, paid: list[int]
) -> None:
    def pay(amount: int) -> dict[str, str]:
        """Pay."""
        paid.append(amount)
        return {"status": "paid"}

    async def run(service: OrtetSessionService, part: types.Part) -> list[Any]:
        agent = LlmAgent(
            name="payer",
            model=Payer(model="payer"),
            tools=[FunctionTool(pay, require_confirmation=True)],
        )
        runner = AdkRunner(app_name="app", agent=agent, session_service=service)
        message = types.Content(role="user", parts=[part])
        events = runner.run_async(user_id="u", session_id="s", new_message=message)
        return [event async for event in events]

    async def ask() -> Any:
        with ortet.open(store) as other:
            service = OrtetSessionService(other)
            await service.create_session(app_name="app", user_id="u", session_id="s")
            events = await run(service, types.Part(text="pay 5"))
        calls = [one for event in events for one in event.get_function_calls()]
        return next(one for one in calls if one.name == "adk_request_confirmation")

    async def confirm(call: Any) -> list[Any]:
        response = types.FunctionResponse(id=call.id, name=call.name, response={"confirmed": True})
        return await run(OrtetSessionService(hub), types.Part(function_response=response))

    call = asyncio.run(ask())
    open_session(hub, "app/u/s")
    events = asyncio.run(confirm(call))
    responses = [one.response for event in events for one in event.get_function_responses()]
    assert (paid, responses) == ([5], [{"status": "paid"}])


# LangGraph


class Talk(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]


def test_langgraph_resumes_an_interrupted_tool_in_another_process(
    hub: Hub, store: Path, paid: list[int]
) -> None:
    def model(state: Talk) -> Any:
        if isinstance(state["messages"][-1], ToolMessage):
            return {"messages": [AIMessage("that is all")]}
        call = {"name": "pay", "args": {"amount": 5}, "id": "c2"}
        return {"messages": [AIMessage("", tool_calls=[call])]}

    def pay(state: Talk) -> Any:
        if interrupt("may I pay?") == "yes":
            paid.append(5)
        return {"messages": [ToolMessage("paid", tool_call_id="c2")]}

    def graph(hub: Hub) -> Any:
        builder = StateGraph(Talk)
        builder.add_node("model", model)
        builder.add_node("pay", pay)
        builder.add_edge(START, "model")
        builder.add_conditional_edges(
            "model", lambda state: "pay" if state["messages"][-1].tool_calls else "__end__"
        )
        builder.add_edge("pay", "model")
        return builder.compile(checkpointer=OrtetSaver(hub))

    config = {"configurable": {"thread_id": "chat"}}
    with ortet.open(store) as other:
        assert graph(other).invoke({"messages": [HumanMessage("pay 5")]}, config)["__interrupt__"]
    open_session(hub, "chat")
    result = graph(hub).invoke(Command(resume="yes"), config)
    kinds = [message.type for message in result["messages"]]
    assert (paid, kinds) == ([5], ["human", "ai", "tool", "ai"])
    roles = [message.role for message in hub.get("chat").messages()]
    assert roles == ["user", "assistant", "tool", "assistant"]


# Claude


def test_claude_loads_an_open_call_as_it_was_written(hub: Hub, store: Path) -> None:
    lines = [prompt("pay 5"), call("pay", amount=5)]
    with ortet.open(store) as other:
        append(OrtetSessionStore(other), key(), *lines)
    open_session(hub, transcript_session_name(key()))
    sessions = OrtetSessionStore(hub)
    assert load(sessions, key()) == lines
    append(sessions, key(), result(lines[1], "paid"))
    assert [one.role for one in hub.get(transcript_session_name(key())).messages()] == [
        *("user", "assistant", "user")
    ]
