"""A Runner of ADK with the three services: tools, several turns, rewind, two processes, kill -9."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
from google.adk.agents import LlmAgent, ParallelAgent
from google.adk.events import Event, EventActions
from google.adk.models import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.runners import Runner
from google.adk.tools.tool_context import ToolContext
from google.genai import types
from tests.fixtures import forked

import ortet
from ortet.hub.hub import Hub
from ortet.integrations.adk import OrtetArtifactService, OrtetMemoryService, OrtetSessionService
from ortet.integrations.adk.sessions import adk_session_name

ME: dict[str, Any] = {"user_id": "ann", "session_id": "s"}
OURS: dict[str, Any] = {"app_name": "app", **ME}


class Fake(BaseLlm):
    """Calls the tool for "keep WORD", and says how much it was told."""

    model: str = "fake"

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        last = (llm_request.contents[-1].parts or [types.Part()])[-1]
        verb, _, word = (last.text or "").partition("keep ")
        if not verb and word:
            part = types.Part(function_call=types.FunctionCall(name="keep", args={"word": word}))
        else:
            part = types.Part(text=f"{len(llm_request.contents)} contents")
        if stream:
            yield LlmResponse(content=types.Content(role="model", parts=[part]), partial=True)
        yield LlmResponse(content=types.Content(role="model", parts=[part]))


async def keep(word: str, tool_context: ToolContext) -> dict[str, str]:
    """Keep a word."""
    tool_context.state["last"] = word
    tool_context.state["user:all"] = [*tool_context.state.get("user:all", []), word]
    tool_context.state["temp:now"] = word
    await tool_context.save_artifact("word.txt", types.Part(text=word))
    return {"kept": word}


def runner_of(hub: Hub) -> Runner:
    return Runner(
        app_name="app",
        agent=LlmAgent(name="keeper", model=Fake(), tools=[keep]),
        session_service=OrtetSessionService(hub),
        artifact_service=OrtetArtifactService(hub),
        memory_service=OrtetMemoryService(hub),
    )


async def ask(runner: Runner, text: str) -> list[Event]:
    said = types.Content(role="user", parts=[types.Part(text=text)])
    return [event async for event in runner.run_async(**ME, new_message=said)]


def text_of(event: Event) -> str:
    parts = event.content.parts if event.content else None
    return (parts[0].text or "") if parts else ""


def test_turns_with_tools_and_rewind(hub: Hub) -> None:
    async def through() -> None:
        runner = runner_of(hub)
        sessions, artifacts = runner.session_service, runner.artifact_service
        assert artifacts is not None
        await sessions.create_session(**OURS)
        first = await ask(runner, "keep one")
        assert first[-1].content is not None
        second = await ask(runner, "keep two")
        found = await sessions.get_session(**OURS)
        assert found is not None
        assert found.state == {"last": "two", "user:all": ["one", "two"]}
        assert len(found.events) == 8
        loaded = await artifacts.load_artifact(**OURS, filename="word.txt")
        assert loaded == types.Part(text="two")
        await runner.rewind_async(**ME, rewind_before_invocation_id=second[0].invocation_id)
        found = await sessions.get_session(**OURS)
        assert found is not None
        assert found.state == {"last": "one", "user:all": ["one", "two"]}
        loaded = await artifacts.load_artifact(**OURS, filename="word.txt")
        assert loaded == types.Part(text="one")
        third = await ask(runner, "how many?")
        assert third[-1].content is not None
        assert third[-1].content.parts == [types.Part(text="5 contents")]
        await runner.rewind_async(**ME, rewind_before_invocation_id=first[0].invocation_id)
        assert await artifacts.load_artifact(**OURS, filename="word.txt") is None
        await runner.close()

    asyncio.run(through())
    view = hub.get(adk_session_name("app", "ann", "s"))
    assert next(m.content for m in view.messages() if m.role == "user") == "keep one"
    assert len(view.artifacts()) == 4
    hub.verify()


def test_a_session_continues_in_another_process(hub: Hub, tmp_path: Path) -> None:
    async def one(store: Hub, text: str) -> str:
        runner = runner_of(store)
        events = await ask(runner, text)
        return text_of(events[-1])

    asyncio.run(runner_of(hub).session_service.create_session(**OURS))
    assert asyncio.run(one(hub, "hello")) == "1 contents"
    with ortet.open(hub.root) as other:  # each hub asks the other for the session
        assert asyncio.run(one(other, "again")) == "3 contents"
        assert asyncio.run(one(hub, "and here")) == "5 contents"
        assert asyncio.run(one(other, "keep it")) == "9 contents"


def test_appended_at_once_to_one_session_all_are_there_in_one_order(hub: Hub) -> None:
    async def through() -> None:
        service = OrtetSessionService(hub)
        session = await service.create_session(**OURS)
        events = [
            Event(author="user", actions=EventActions(state_delta={"n": n, f"k{n}": n}))
            for n in range(20)
        ]
        await asyncio.gather(*(service.append_event(session, event) for event in events))
        found = await service.get_session(**OURS)
        assert found is not None
        assert len(found.events) == 20
        assert [event.id for event in session.events] == [event.id for event in found.events]
        assert session.state == found.state

    asyncio.run(through())


@pytest.mark.filterwarnings("ignore:ParallelAgent is deprecated")
def test_agents_at_once_share_a_session(hub: Hub) -> None:
    async def through() -> None:
        several = [LlmAgent(name=f"a{n}", model=Fake(), output_key=f"of_{n}") for n in range(4)]
        runner = Runner(
            app_name="app",
            agent=ParallelAgent(name="all", sub_agents=[*several]),
            session_service=OrtetSessionService(hub),
        )
        await runner.session_service.create_session(**OURS)
        events = await ask(runner, "hello")
        found = await runner.session_service.get_session(**OURS)
        assert found is not None
        assert {event.id for event in events} <= {event.id for event in found.events}
        assert set(found.state) >= {"of_0", "of_1", "of_2", "of_3"}

    asyncio.run(through())


_WRITER = """
import asyncio, sys, ortet
from google.adk.errors import StaleSessionError
from google.adk.events import Event, EventActions
from google.genai import types
from ortet.errors import Refused
from ortet.integrations.adk import OrtetSessionService
hub = ortet.open(sys.argv[1])
service = OrtetSessionService(hub)
me, count = sys.argv[2], int(sys.argv[3])
ours = {"app_name": "app", "user_id": "ann", "session_id": "s"}
async def main():
    session = await service.get_session(**ours)
    for n in range(count):
        content = types.Content(role="user", parts=[types.Part(text=f"{me}-{n}")])
        while True:
            delta = {f"app:{me}": n, "user:last": f"{me}-{n}", "seen": len(session.events)}
            event = Event(author="user", content=content, actions=EventActions(state_delta=delta))
            try:
                await service.append_event(session, event)
                break
            except (StaleSessionError, Refused):
                session = await service.get_session(**ours)
        print(f"{me}-{n}", flush=True)
asyncio.run(main())
"""


def _writer(root: Path, me: str, count: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", _WRITER, str(root), me, str(count)]
    return forked.Popen(command, stdout=subprocess.PIPE, text=True)


def _found(hub: Hub) -> tuple[list[str], dict[str, Any], list[int]]:
    found = asyncio.run(OrtetSessionService(hub).get_session(**OURS))
    assert found is not None
    said = [text_of(event) for event in found.events]
    seen = [event.actions.state_delta["seen"] for event in found.events]
    return said, found.state, seen


def test_two_processes_lose_no_event_and_never_append_to_a_stale_session(hub: Hub) -> None:
    asyncio.run(OrtetSessionService(hub).create_session(**OURS))
    writers = [_writer(hub.root, me, 10) for me in ("a", "b")]
    for writer in writers:
        writer.communicate()
        assert writer.returncode == 0
    said, state, seen = _found(hub)
    for me in ("a", "b"):
        assert [one for one in said if one.startswith(me)] == [f"{me}-{n}" for n in range(10)]
    assert (state["app:a"], state["app:b"]) == (9, 9)
    assert state["user:last"] == said[-1]
    assert seen == list(range(20)), "each knew all that was said before"


def test_acknowledged_adk_events_and_their_state_survive_sigkill(hub: Hub) -> None:
    asyncio.run(OrtetSessionService(hub).create_session(**OURS))
    writer = _writer(hub.root, "k", 100_000)
    assert writer.stdout is not None
    told = [writer.stdout.readline().strip() for _ in range(15)]
    writer.kill()
    told += writer.communicate()[0].split()
    said, state, _ = _found(hub)
    assert said[: len(told)] == told
    assert state["app:k"] == len(said) - 1, "an event and the state it sets are one write"
    assert state["user:last"] == said[-1]
    after = _writer(hub.root, "after", 2)
    after.communicate()
    assert _found(hub)[0] == [*said, "after-0", "after-1"]
    hub.verify()
