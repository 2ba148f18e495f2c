"""What an adapter writes while another host sweeps the store is refused as a whole, and then
written: who asked for it sees nothing of that."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from functools import partial
from typing import Any

import anyio
import pytest
from agent_framework import WorkflowCheckpoint
from langgraph.checkpoint.base import empty_checkpoint
from tests.fixtures.stores import OpenAs
from tests.integrations.claude.lines import SESSION, answer, append, key, load, prompt

from ortet.hub.hub import Hub
from ortet.integrations._shared import messages
from ortet.integrations._shared.session_pool import AdapterSessionPool
from ortet.integrations.agent_framework import OrtetCheckpointStorage
from ortet.integrations.claude import OrtetSessionStore
from ortet.integrations.langgraph import OrtetSaver
from ortet.integrations.openai_agents import OrtetSession
from ortet.integrations.transcripts.batch import ImportBatch
from ortet.objects.base import Kind
from ortet.objects.gc import sweep_remote
from ortet.objects.store import PackedObjectStore

LONG = "said " * 200_000

Meet = Callable[[], None]
"""The next write of an adapter meets a sweep; called again: it has."""


@pytest.fixture
def hosts(host: OpenAs, monkeypatch: pytest.MonkeyPatch) -> tuple[Hub, Hub]:
    monkeypatch.setattr(sweep_remote, "GRACE", -60.0)  # packs may go at once
    return host("one"), host("two")


@pytest.fixture
def hub(hosts: tuple[Hub, Hub]) -> Hub:
    """The hub of the second host, on the shared store."""
    return hosts[1]


@pytest.fixture
def meet(hosts: tuple[Hub, Hub], monkeypatch: pytest.MonkeyPatch) -> Meet:
    one, waits, removed = hosts[0], list[bool](), list[int]()
    flush = PackedObjectStore.flush

    def sweeping(objects: PackedObjectStore, *, sync: bool = True) -> None:
        flush(objects, sync=sync)
        if waits and objects is not one.objects and objects.sweep_lock.is_writing():
            waits.clear()
            removed.append(one.sweep(min_garbage=0.0).packs_removed)

    def meet() -> None:
        if removed:
            assert removed.pop() > 0
            return
        assert not waits
        with one.store.writing():
            one.objects.put(Kind.BLOB, os.urandom(50_000))
            one.objects.flush()
        waits.append(True)

    monkeypatch.setattr(PackedObjectStore, "flush", sweeping)
    return meet


def test_large_messages_are_stored_during_a_sweep(hub: Hub, meet: Meet) -> None:
    lent = AdapterSessionPool(hub)
    try:
        with lent.writing("s") as session:
            meet()
            messages.append_messages(session, [{"role": "user", "content": LONG}])
            meet()
            assert [len(m.content) < len(LONG) for m in session.messages()] == [True]
            meet()
            messages.clear_context(session, [{"role": "user", "content": LONG + "again"}])
            meet()
            (message,) = session.messages()
            assert messages.load_full_message(session, message).content == LONG + "again"
    finally:
        lent.close()


def test_a_langgraph_checkpoint_is_stored_during_a_sweep(hub: Hub, meet: Meet) -> None:
    saver, of = OrtetSaver(hub), {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}
    config: Any = of
    for number, text in enumerate((LONG, LONG + "again")):
        checkpoint = empty_checkpoint()
        checkpoint["channel_values"] = {"c": text}
        checkpoint["channel_versions"] = {"c": number + 1}
        meet()
        config = saver.put(config, checkpoint, {"step": number}, {"c": number + 1})
        meet()
        found = saver.get_tuple(config)
        assert found is not None
        assert found.checkpoint["channel_values"] == {"c": text}
    fresh: Any = of
    assert len(list(OrtetSaver(hub).list(fresh))) == 2


def test_an_agent_framework_checkpoint_is_stored_during_a_sweep(hub: Hub, meet: Meet) -> None:
    kept = OrtetCheckpointStorage(hub, "flow")
    made = WorkflowCheckpoint("w", "hash", checkpoint_id="id", state={"text": LONG})
    meet()
    assert asyncio.run(kept.save(made)) == "id"
    meet()
    assert asyncio.run(kept.load("id")).state == {"text": LONG}
    assert asyncio.run(kept.list_checkpoint_ids(workflow_name="w")) == ["id"]


def test_an_openai_agents_branch_is_created_during_a_sweep(hub: Hub, meet: Meet) -> None:
    session = OrtetSession("chat", hub)
    for number in range(2):
        items: list[Any] = [{"role": "user", "content": f"question {number}"}]
        asyncio.run(session.add_items(items))
    meet()
    assert asyncio.run(session.create_branch_from_turn(2, "again")) == "again"
    meet()
    found: list[Any] = asyncio.run(session.get_items())
    assert [item["content"] for item in found] == ["question 0"]


def test_a_claude_session_is_forked_during_a_sweep(hub: Hub, meet: Meet) -> None:
    store = OrtetSessionStore(hub)
    lines = [prompt("one"), answer("two"), prompt("three")]
    append(store, key(), *lines)
    for upto, count in ((None, 3), (lines[1]["uuid"], 2)):
        meet()
        new = anyio.run(partial(store.fork, SESSION, up_to_message_id=upto))
        meet()
        assert len(load(store, key(session=new)) or []) == count


def test_a_transcript_batch_is_stored_once_during_a_sweep(hub: Hub, meet: Meet) -> None:
    raw = LONG.encode()
    with hub.session("s") as session:
        batch = ImportBatch(session, "codex")
        batch.add("1", None, lambda: raw, size=10, model_usage=None)
        meet()
        batch.flush()
        meet()
        assert batch.event_counts["codex.line"] == 1
        assert len([one for one in session.events() if one.kind == "codex.line"]) == 1
