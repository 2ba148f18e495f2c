from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from agents import RunConfig, Runner, SessionSettings
from agents.memory import OpenAIResponsesCompactionSession
from tests.integrations.openai_agents.model import agent, text

from ortet.hub.hub import Hub
from ortet.integrations.openai_agents import OrtetSession

COMPACTED: Any = {"type": "compaction", "id": "cmp", "encrypted_content": "..."}


def run(call: Any) -> Any:
    return asyncio.run(call)


class Service:
    """Stands for OpenAI's service: one item for all it is given."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.responses = self

    async def compact(self, **given: Any) -> Any:
        self.asked.append(given)
        return SimpleNamespace(output=[COMPACTED], usage=None)


def around(session: OrtetSession, service: Service, above: int) -> OpenAIResponsesCompactionSession:
    return OpenAIResponsesCompactionSession(
        session.session_id,
        session,
        client=service,  # type: ignore[arg-type]
        compaction_mode="input",
        should_trigger_compaction=lambda known: len(known["session_items"]) > above,
    )


def test_items_compacted_by_the_service_are_replaced_and_recoverable(hub: Hub) -> None:
    session, service = OrtetSession("chat", hub), Service()
    compacting = around(session, service, 10)
    for number in range(3):
        run(Runner.run(agent()[0], f"question {number}", session=compacting))
    assert len(service.asked) == 1
    assert len(service.asked[0]["input"]) == 12
    items = run(session.get_items())
    assert items[0] == COMPACTED
    assert len(items) == 1 + 6
    view = hub.get("chat")
    assert len(view.conversation.compactions()) == 1
    said = [message.content for message in view.conversation.dropped() if message.role == "user"]
    assert said == ["question 0", "question 1"]
    run(compacting.run_compaction({"force": True}))  # of all, by the caller's wish
    assert run(session.get_items()) == [COMPACTED]
    assert hub.verify().problems == []


def test_compaction_replaces_only_the_items_the_model_saw(hub: Hub) -> None:
    session, service = OrtetSession("chat", hub), Service()
    for number in range(2):
        run(Runner.run(agent()[0], f"question {number}", session=session))
    before = run(session.get_items())
    compacting = around(session, service, 2)
    config = RunConfig(session_settings=SessionSettings(limit=6))
    plain, _ = agent(lambda said: [text("fine", 9)])
    run(Runner.run(plain, "question 2", session=compacting, run_config=config))
    assert len(service.asked) == 1
    assert run(session.get_items()) == [*before[:6], COMPACTED]
    assert hub.get("chat").conversation.compactions() == []  # the way back is the commit before


def test_compaction_fails_when_items_were_added_during_it(hub: Hub) -> None:
    session = OrtetSession("chat", hub)
    run(session.add_items([{"role": "user", "content": str(n)} for n in range(4)]))

    async def go(limit: int, start: int) -> bool:
        snapshot = await session._get_compaction_snapshot(limit)
        assert snapshot is not None
        await session.add_items([{"role": "user", "content": "meanwhile"}])
        return await snapshot.replace_suffix(start, [COMPACTED])

    assert run(go(10, 0)) is False
    assert run(go(2, 1)) is False
    assert len(run(session.get_items())) == 6
