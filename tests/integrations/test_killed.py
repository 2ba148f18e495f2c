"""A process that writes through several adapters at once is killed, again and again: all that they
were told is stored is there, once and in order."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from agent_framework import Message, WorkflowCheckpoint
from google.adk.events import Event as AdkEvent
from google.adk.events import EventActions
from pydantic_ai.messages import ModelRequest, UserPromptPart
from tests.fixtures import forked

import ortet
from ortet.hub.hub import Hub
from ortet.integrations.adk import OrtetSessionService
from ortet.integrations.agent_framework import OrtetCheckpointStorage, OrtetHistoryProvider
from ortet.integrations.langgraph import OrtetStore
from ortet.integrations.pydantic_ai import OrtetHistory

_OF: Any = {"app_name": "a", "user_id": "u", "session_id": "x"}


async def adk(hub: Hub, word: str) -> None:
    service = OrtetSessionService(hub)
    session = await service.get_session(**_OF) or await service.create_session(**_OF)
    delta = {"n": session.state.get("n", 0) + 1, "user:last": word}
    await service.append_event(
        session, AdkEvent(author="user", id=word, actions=EventActions(state_delta=delta))
    )


async def checkpoints(hub: Hub, word: str) -> None:
    made = WorkflowCheckpoint("w", "hash", checkpoint_id=word, state={"text": word * 20_000})
    await OrtetCheckpointStorage(hub).save(made)


async def history(hub: Hub, word: str) -> None:
    said = [Message("user", [word]), Message("assistant", [word])]
    await OrtetHistoryProvider(hub).save_messages("history", said)


async def pydantic(hub: Hub, word: str) -> None:
    chat = OrtetHistory("chat", hub)
    await asyncio.to_thread(chat.save, [ModelRequest([UserPromptPart(word)])])


_WAYS = {"adk": adk, "checkpoints": checkpoints, "history": history, "pydantic": pydantic}


async def write(store: str, who: str) -> None:
    """Tells each word once it is stored."""
    hub = ortet.open(store)
    memory = OrtetStore(hub)

    async def remember(_: Hub, word: str) -> None:
        await memory.aput(("m",), word, {"word": word})

    async def go(way: str, put: Any) -> None:
        for number in range(10**9):
            await put(hub, f"{who}-{number}")
            sys.stdout.write(f"{way} {who}-{number}\n")
            sys.stdout.flush()

    await asyncio.gather(*(go(*one) for one in {**_WAYS, "memory": remember}.items()))


async def told(hub: Hub) -> dict[str, list[str]]:
    session = await OrtetSessionService(hub).get_session(**_OF)
    assert session is not None
    assert session.state["n"] == len(session.events)
    assert session.state["user:last"] == session.events[-1].id
    stored = await OrtetCheckpointStorage(hub).list_checkpoints(workflow_name="w")
    assert all(one.state["text"] == one.checkpoint_id * 20_000 for one in stored)
    said = [one.text for one in await OrtetHistoryProvider(hub).get_messages("history")]
    assert said[::2] == said[1::2]
    return {
        "adk": [one.id for one in session.events],
        "checkpoints": [one.checkpoint_id for one in stored],
        "history": said[::2],
        "pydantic": [m.content for m in hub.get("chat").messages()],
        "memory": [one.value["word"] for one in OrtetStore(hub).search(("m",), limit=10**6)],
    }


@pytest.mark.slow
def test_acknowledged_writes_of_every_adapter_survive_sigkill(store: Path) -> None:
    ortet.open(store).close()
    acknowledged: dict[str, list[str]] = defaultdict(list)
    for lines in (7, 61):  # which differ in where the writers are then
        words = [sys.executable, str(Path(__file__)), str(store), f"r{lines}"]
        with forked.Popen(words, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            heard = list[str]()
            while len(heard) < lines or len({line.split()[0] for line in heard}) <= len(_WAYS):
                heard.append(process.stdout.readline())
                assert heard[-1], "the writer has ended"
            process.kill()
            heard += process.stdout.readlines()
        for line in heard:
            if line.endswith("\n"):
                way, word = line.split()
                acknowledged[way].append(word)
    with ortet.open(store) as hub:
        there = asyncio.run(told(hub))
        for way, words in acknowledged.items():
            assert [one for one in there[way] if one in set(words)] == words, way
            assert len(set(there[way])) == len(there[way])
        assert hub.verify().problems == []


if __name__ == "__main__":
    asyncio.run(write(*sys.argv[1:]))
