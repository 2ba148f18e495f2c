"""What an adapter uses is archived, or its store is taken away, while it does."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

import ortet
from ortet.errors import Conflict, Unavailable
from ortet.hub.hub import Hub
from ortet.integrations._shared.session_pool import AdapterSessionPool
from ortet.integrations.langgraph import OrtetStore


def said(hub: Hub, name: str) -> list[str]:
    return [message.content for message in hub.get(name).messages()]


def test_a_lent_session_can_be_archived_and_unarchived(hub: Hub) -> None:
    lent = AdapterSessionPool(hub, min_hold=0.0)
    with lent.writing("a") as session:
        session.say("user", "one")
        assert session.status == "active"
    hub.archive(hub.get("a").id)
    with pytest.raises(Conflict, match="unarchive") as refused, lent.writing("a"):
        pass
    assert refused.value.kind == "session_closed"
    hub.unarchive(hub.get("a").id)
    with lent.writing("a") as session:
        session.say("user", "two")
    assert said(hub, "a") == ["one", "two"]


def test_a_session_in_use_cannot_be_archived(hub: Hub) -> None:
    with hub.session("a") as mine:
        with pytest.raises(Conflict, match="active"):
            hub.archive(mine.id)
        mine.say("user", "on")


def test_writes_to_a_deleted_store_are_refused(store: Path) -> None:
    hub = ortet.open(store)
    lent, memory = AdapterSessionPool(hub), OrtetStore(hub)
    with lent.writing("a") as session:
        session.say("user", "one")
    shutil.rmtree(store)
    ortet.open(store).close()  # also where there is another in its place
    with pytest.raises(Unavailable) as refused, lent.writing("a") as session:
        session.say("user", "two")
    assert refused.value.kind == "store_gone"
    with pytest.raises(Unavailable):
        memory.put(("a",), "k", {"v": 1})
    lent.close()
    hub.close()
    with ortet.open(store) as other:
        with AdapterSessionPool(other).writing("a") as session:
            session.say("user", "three")
        assert said(other, "a") == ["three"]


def test_a_store_moved_away_and_back_is_usable_again(store: Path, hub: Hub) -> None:
    from agent_framework import WorkflowCheckpoint  # which takes a second to import

    from ortet.integrations.agent_framework import OrtetCheckpointStorage

    storage = OrtetCheckpointStorage(hub)

    def save(id_: str) -> str:
        text = id_ * 100_000  # large enough for an object of its own
        made = WorkflowCheckpoint("w", "hash", checkpoint_id=id_, state={"text": text})
        return asyncio.run(storage.save(made))

    save("1")
    store.rename(store.with_name("elsewhere"))
    with pytest.raises(Unavailable, match="see to the disk"):
        save("2")
    store.with_name("elsewhere").rename(store)
    save("3")
    assert asyncio.run(storage.list_checkpoint_ids(workflow_name="w")) == ["1", "3"]
    assert hub.verify().problems == []
