"""The latest checkpoint by a note: the same as the whole journal says, whatever was done to it."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langgraph.checkpoint.base.id import uuid6
from tests.fixtures import forked
from tests.fixtures.checkpoints import OF, put, whole

import ortet
from ortet.config.environment import open_hub
from ortet.errors import Invalid
from ortet.hub.hub import Hub
from ortet.integrations.langgraph import OrtetSaver, head_index
from ortet.sessions.environment.removal_rows import DERIVED
from ortet.testing.clock import ManualClock


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(head_index, "_MIN_INTERVAL_EVENTS", 5)


def talk(saver: OrtetSaver, turns: int, said: list[AnyMessage] | None = None) -> Any:
    """A thread of so many checkpoints that each say one more."""
    found = saver.get_tuple(OF)
    on, messages = found.config if found else OF, said or []
    for turn in range(len(messages), len(messages) + turns):
        messages = [*messages, HumanMessage(f"what is {turn}?", id=f"id-{uuid6()}")]
        on = put(saver, on, {"messages": messages, "note": {"turn": turn}}, version=turn + 1)
        saver.put_writes(on, [("note", f"a long way to say {turn} " * 5)], f"task {turn}")
    return on


def cold(hub: Hub) -> tuple[Any, bool]:
    """By who has not seen the thread; and whether that read no more than what is needed."""
    with OrtetSaver(hub) as saver:
        found = saver.get_tuple(OF)
        return found, "t" not in saver._threads._threads and found is not None


def noted(hub: Hub) -> bytes:
    row = hub.catalog.row(DERIVED, hub.get("t").id)
    assert row is not None
    return row.value


@pytest.mark.usefixtures("often")
def test_the_latest_checkpoint_is_found_without_reading_the_whole_journal(hub: Hub) -> None:
    with OrtetSaver(hub) as saver:
        talk(saver, 12)
    found, is_short = cold(hub)
    assert is_short
    assert found == whole(hub)
    assert len(found.checkpoint["channel_values"]["messages"]) == 12
    assert found.pending_writes == [("task 11", "note", "a long way to say 11 " * 5)]
    assert b"what is" not in noted(hub)
    assert b"long way" not in noted(hub)


@pytest.mark.usefixtures("often")
def test_the_latest_checkpoint_is_right_while_another_saver_writes(hub: Hub) -> None:
    with OrtetSaver(hub) as writer, OrtetSaver(hub) as reader:
        talk(writer, 12)
        for _ in range(8):
            found = reader.get_tuple(OF)
            assert "t" not in reader._threads._threads
            assert found == writer.get_tuple(OF)
            assert found is not None
            talk(writer, 1, found.checkpoint["channel_values"]["messages"])


@pytest.mark.usefixtures("often")
def test_continuing_from_the_note_stores_no_message_twice(hub: Hub) -> None:
    with OrtetSaver(hub) as saver:
        talk(saver, 12)
    with OrtetSaver(hub) as saver:
        found = saver.get_tuple(OF)
        assert found is not None
        messages = found.checkpoint["channel_values"]["messages"]
        put(saver, found.config, {"messages": [*messages, AIMessage("new")]}, version=99)
        again = saver.get_tuple(OF)
        assert again is not None
        assert again.checkpoint["channel_values"]["messages"] == [*messages, AIMessage("new")]
    assert len(hub.get("t").messages()) == 13


@pytest.mark.usefixtures("often")
@pytest.mark.parametrize("damage", ["cut", "bit", "empty", "nothing", "older", "other timeline"])
def test_a_note_that_is_damaged_is_not_used(hub: Hub, damage: str) -> None:
    with OrtetSaver(hub) as saver:
        talk(saver, 6)
        first = noted(hub)
        talk(saver, 6)
    good, id_ = noted(hub), hub.get("t").id
    bad = {
        "cut": good[:-3],
        "bit": good[:30] + bytes([good[30] ^ 1]) + good[31:],
        "empty": b"",
        "older": first,
        "other timeline": good,
    }
    if damage == "nothing":
        hub.catalog.drop_row(DERIVED, id_)
    else:
        hub.catalog.put_row(DERIVED, id_, bad[damage])
    if damage == "other timeline":
        with hub.session("t") as session:
            here = session.commit("here")
            session.say("user", "taken back")
            session.restore(here.oid)
    found, is_short = cold(hub)
    assert is_short is (damage == "older")
    assert found == whole(hub)
    assert len(found.checkpoint["channel_values"]["messages"]) == 6


@pytest.mark.usefixtures("often")
def test_an_erased_message_is_not_in_the_latest_checkpoint(hub: Hub) -> None:
    with OrtetSaver(hub) as saver:
        talk(saver, 12)
    said = [event for event in hub.get("t").events() if event.kind == "message"]
    with hub.session("t") as session:
        session.finish()
    hub.erase("t", seqs=[said[3].seq])
    found, is_short = cold(hub)
    assert not is_short
    assert found == whole(hub)
    texts = [one.content for one in found.checkpoint["channel_values"]["messages"]]
    assert len(texts) == 11
    assert "what is 3?" not in texts


@pytest.mark.usefixtures("often")
@pytest.mark.parametrize("turns", [4, 12])
def test_a_reader_forgets_a_message_erased_by_another_hub(
    hub: Hub, tmp_path: Path, turns: int
) -> None:
    with OrtetSaver(hub) as saver:
        talk(saver, turns)
    with ortet.open(tmp_path / "store") as other, OrtetSaver(other) as reader:
        before = reader.get_tuple(OF)
        assert before is not None
        assert len(before.checkpoint["channel_values"]["messages"]) == turns
        said = [event for event in hub.get("t").events() if event.kind == "message"]
        with hub.session("t") as session:
            session.finish()
        hub.erase("t", seqs=[said[1].seq])
        assert reader.get_tuple(OF) == whole(hub)
        listed = next(iter(reader.list(OF)))
        assert len(listed.checkpoint["channel_values"]["messages"]) == turns - 1


@pytest.mark.parametrize("write", [False, True])
def test_a_writer_forgets_a_message_erased_since(hub: Hub, write: bool) -> None:
    with OrtetSaver(hub) as saver:
        on = talk(saver, 20)
        said = [event for event in hub.get("t").events() if event.kind == "message"]
        hub.erase("t", seqs=[said[1].seq])  # by who is lent the session for it
        if write:
            put(saver, on, {"note": "which opens it again"}, version=21)
            on = {"configurable": {**OF["configurable"], **on["configurable"]}}
        found = saver.get_tuple(on)
        assert found is not None
        texts = [one.content for one in found.checkpoint["channel_values"]["messages"]]
        assert texts == [f"what is {n}?" for n in range(20) if n != 1]


@pytest.mark.usefixtures("often")
def test_an_erasure_by_a_host_with_a_late_clock_is_noticed(hub: Hub, tmp_path: Path) -> None:
    with OrtetSaver(hub) as saver:
        talk(saver, 12)
    with hub.session("t") as session:
        session.finish()
    said = [event for event in hub.get("t").events() if event.kind == "message"]
    with ortet.open(tmp_path / "store") as other, OrtetSaver(other) as reader:
        for turn, late in enumerate((0, 600)):
            assert reader.get_tuple(OF) == whole(hub)
            clock = ManualClock(time.time_ns() - late * 10**9)
            with open_hub(tmp_path / "store", clock=clock) as eraser:
                eraser.erase("t", seqs=[said[turn].seq])
        found = reader.get_tuple(OF)
        assert found is not None
        assert len(found.checkpoint["channel_values"]["messages"]) == 10


def test_writes_beside_a_refused_checkpoint_are_in_the_next(hub: Hub) -> None:
    with OrtetSaver(hub) as saver:
        on = talk(saver, 2)
        one, other = {"a dict": "that waits " * 9}, {"another": "of another task " * 9}
        tid, offer = saver._make_pending_write(on, [("a", one)], "task 9", "")
        saver._threads.pending_writes._add(tid, offer)
        with pytest.raises(Invalid):
            put(saver, on, {"note": object()}, version=9)
        saver.put_writes(on, [("b", other)], "task 8")
        offer.ensure_stored()
        found = saver.get_tuple(OF)
        assert found is not None
        assert found == whole(hub)
        writes = {channel: value for _, channel, value in found.pending_writes or ()}
        assert (writes["a"], writes["b"]) == (one, other)


_FOR_EVER = """
import sys
sys.path.insert(0, sys.argv[2])
import ortet
from ortet.integrations.langgraph import OrtetSaver, head_index
from test_head_index import OF, talk
head_index._MIN_INTERVAL_EVENTS = 5
with ortet.open(sys.argv[1]) as hub, OrtetSaver(hub) as saver:
    said = []
    while True:
        talk(saver, 1, said)
        said = saver.get_tuple(OF).checkpoint["channel_values"]["messages"]
        print(len(said), flush=True)
"""


def test_a_killed_writer_leaves_a_note_that_matches_the_journal(hub: Hub, tmp_path: Path) -> None:
    place, tests = str(tmp_path / "store"), str(Path(__file__).parent)
    command = [sys.executable, "-c", _FOR_EVER, place, tests]
    with forked.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        stored = [int(next(writer.stdout)) for _ in range(25)]
        writer.kill()
        stored += [int(line) for line in writer.stdout if line.endswith("\n")]
    found, is_short = cold(hub)
    assert is_short
    assert found == whole(hub)
    assert len(found.checkpoint["channel_values"]["messages"]) >= stored[-1]


@pytest.mark.usefixtures("often")
def test_a_note_goes_with_its_thread(hub: Hub) -> None:
    with OrtetSaver(hub) as saver:
        talk(saver, 12)
        assert hub.catalog.rows(DERIVED)
        saver.delete_thread("t")
        assert not hub.catalog.rows(DERIVED)
        assert saver.get_tuple(OF) is None


@pytest.mark.usefixtures("often")
@pytest.mark.parametrize("seed", range(4))
def test_the_note_agrees_with_the_journal_after_random_operations(hub: Hub, seed: int) -> None:
    chance, short = random.Random(seed), 0
    with OrtetSaver(hub) as saver:
        known = [put(saver, OF, {"messages": [], "n": 0})]
        for step in range(120):
            _deed(saver, chance, known, step)
            if step % 4 == 3:
                found, is_short = cold(hub)
                assert found == saver.get_tuple(OF)
                short += is_short
    assert short > 5
    assert cold(hub)[0] == whole(hub)


def _deed(saver: OrtetSaver, chance: random.Random, known: list[Any], step: int) -> None:
    head = saver.get_tuple(OF)
    assert head is not None
    values: Any = dict(head.checkpoint["channel_values"])
    deed = chance.choices(range(8), [12, 6, 2, 1, 1, 1, 1, 2])[0]
    run = f"run {chance.randrange(6)}"
    if deed == 0:
        said: list[Any] = [*values["messages"], HumanMessage(f"{step} " * 30)]
        if chance.random() < 0.2:
            del said[chance.randrange(len(said))]
        data = {"messages": said, "n": step, "big": "x" * chance.choice([10, 200, 40_000])}
        known.append(put(saver, head.config, data, version=step, run=run))
    elif deed == 1:
        saver.put_writes(head.config, [("n", {"step": step, "why": "w" * 99})], f"task {step}")
    elif deed in (2, 3):
        old = saver.get_tuple(chance.choice(known))
        if old is not None and deed == 2:  # branch off
            known.append(put(saver, old.config, {**values, "n": -step}, version=step, run=run))
        elif old is not None and old.parent_config:  # put it again
            same = old.checkpoint["id"]
            put(saver, old.parent_config, {**values, "n": step}, version=step, id=same, run=run)
    elif deed == 4:
        saver.prune(["t"])
    elif deed == 5:
        kept = run if head.metadata.get("run_id") != run else "none"
        saver.delete_for_runs([kept])
    elif deed == 6:
        saver.prune([])
        session = {"configurable": {"thread_id": "t", "checkpoint_ns": "inner"}}
        put(saver, session, {"n": step}, version=step)
    else:
        with saver._threads.pool.writing("t") as talking:
            talking.say("user", f"beside {step}")
