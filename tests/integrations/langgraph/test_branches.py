"""Going back in a thread: its session has the conversation of the branch that it is on."""

from __future__ import annotations

import itertools
import os
import random
import signal
import sys
from pathlib import Path
from threading import Event
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, RemoveMessage
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.base.id import uuid6
from langgraph.graph import START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import Command, interrupt
from tests.fixtures import forked
from tests.fixtures.waiting import WAIT

import ortet
from ortet.hub.hub import Hub
from ortet.integrations.langgraph import OrtetSaver

OF: Any = {"configurable": {"thread_id": "t"}}


class Chat(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]


def answer(state: Chat) -> Any:
    return {"messages": [AIMessage(f"re {state['messages'][-1].content}")]}


def graph(saver: OrtetSaver, *, node: Any = answer) -> Any:
    builder = StateGraph(Chat)
    builder.add_node("bot", node)
    builder.add_edge(START, "bot")
    return builder.compile(checkpointer=saver)


def nested() -> Any:
    builder = StateGraph(Chat)
    builder.add_node("inner", answer)
    builder.add_edge(START, "inner")
    return builder.compile()


def ask(mine: Any, text: str, on: Any = OF) -> Any:
    """Ask, and where the thread is then."""
    mine.invoke({"messages": [HumanMessage(text)]}, on)
    return mine.get_state(OF).config


def said(hub: Hub, thread: str = "t") -> list[Any]:
    return [message.content for message in hub.get(thread).messages()]


def held(mine: Any, on: Any = OF) -> list[Any]:
    return [message.content for message in mine.get_state(on).values["messages"]]


def kinds(hub: Hub, thread: str = "t") -> list[str]:
    return [event.kind for event in hub.get(thread).events()]


@pytest.mark.parametrize("node", [answer, nested()], ids=["plain", "subgraph"])
def test_a_thread_branches_from_an_earlier_checkpoint_and_returns(hub: Hub, node: Any) -> None:
    with OrtetSaver(hub) as saver:
        mine = graph(saver, node=node)
        one = ask(mine, "one")
        ask(mine, "two")
        old = ask(mine, "three")
        assert "aside" not in kinds(hub)
        new = ask(mine, "other", one)
        assert said(hub) == held(mine) == ["one", "re one", "other", "re other"]
        ask(mine, "more")
        assert said(hub) == held(mine)
        ask(mine, "four", old)
        assert said(hub) == held(mine)
        assert said(hub)[2:6] == ["two", "re two", "three", "re three"]
        ask(mine, "again", new)
        assert said(hub) == held(mine)
        assert said(hub)[2:] == ["other", "re other", "again", "re again"]
        assert kinds(hub).count("aside") == 3
        listed = [held(mine, state.config) for state in mine.get_state_history(OF) if state.values]
        assert any("re four" in texts for texts in listed)
        view = hub.get("t")
        assert "four" not in view.briefing().markdown
        assert not [hit for hit in view.recall("four", tiers="working") if "four" in hit.text]
        everything = [e.data["content"] for e in view.events() if e.kind == "message"]
        assert "re four" in everything
        assert hub.verify()


def test_an_update_and_a_replay_from_an_earlier_checkpoint_make_branches(hub: Hub) -> None:
    with OrtetSaver(hub) as saver:
        mine = graph(saver)
        ask(mine, "one")
        ask(mine, "two")
        states = list(mine.get_state_history(OF))
        asked = next(one for one in states if one.next == ("bot",))
        branch = mine.update_state(asked.config, {"messages": [HumanMessage("no, three")]})
        assert said(hub) == held(mine) == ["one", "re one", "two", "no, three"]
        mine.invoke(None, branch)
        assert said(hub) == held(mine)
        mine.invoke(None, asked.config)
        assert said(hub) == held(mine) == ["one", "re one", "two", "re two"]
        mine.update_state(states[-1].config, {"messages": [HumanMessage("from the start")]})
        assert said(hub) == held(mine)


def test_another_question_at_the_same_checkpoint_makes_a_branch(hub: Hub) -> None:
    with OrtetSaver(hub) as saver:
        mine = graph(saver)
        ask(mine, "one")
        old = ask(mine, "two")
        states = [one for one in mine.get_state_history(OF) if one.next == ("__start__",)]
        ask(mine, "other", states[0].config)
        assert said(hub) == held(mine) == ["one", "re one", "other", "re other"]
        ask(mine, "first", states[1].config)
        assert said(hub) == held(mine) == ["first", "re first"]
        mine.invoke(None, states[0].config)
        assert said(hub) == held(mine) == ["one", "re one", "two", "re two"]
        ask(mine, "three", old)
        assert said(hub) == held(mine)


@pytest.mark.parametrize("seed", range(3))
def test_random_branching_keeps_session_and_graph_state_equal(hub: Hub, seed: int) -> None:
    chance, saver = random.Random(seed), OrtetSaver(hub)
    mine = graph(saver, node=nested() if seed == 2 else answer)
    ask(mine, "begin")
    for number in range(25):
        place = chance.choice(list(mine.get_state_history(OF))).config
        text, way = f"say {number}", chance.randrange(6)
        if way < 2:
            ask(mine, text)
        elif way == 2:
            ask(mine, text, place)
        elif way == 3:
            mine.invoke(None, place)
        elif way == 4:
            mine.update_state(place, {"messages": [HumanMessage(text)]}, as_node="bot")
        else:
            saver.close()
            saver = OrtetSaver(hub)
            mine = graph(saver, node=nested() if seed == 2 else answer)
        assert said(hub) == held(mine), (number, way)
    saver.close()
    assert "aside" in kinds(hub)
    assert hub.verify()


def test_a_message_repeated_on_another_branch_is_in_that_branch(hub: Hub) -> None:
    def fixed(state: Chat) -> Any:
        return {"messages": [AIMessage("yes", id=f"yes-{len(state['messages'])}")]}

    with OrtetSaver(hub) as saver:
        mine = graph(saver, node=fixed)
        one = ask(mine, "one")
        two = HumanMessage("two", id="two")
        mine.invoke({"messages": [two]}, OF)
        for on in (one, one, OF):
            mine.invoke({"messages": [HumanMessage("so"), two]}, on)
            assert sorted(said(hub)) == sorted(held(mine))  # in the order of when it was said first
            mine.invoke({"messages": [HumanMessage("two", id="two")]}, one)
            assert said(hub) == held(mine) == ["one", "yes", "two", "yes"]


def test_pending_writes_of_an_interrupted_run_belong_to_its_branch(hub: Hub) -> None:
    def halting(state: Chat) -> Any:
        del state
        return {"messages": [AIMessage(str(interrupt("sure?")))]}

    def eager(state: Chat) -> Any:
        del state
        return {"messages": [AIMessage("meanwhile")]}

    with OrtetSaver(hub) as saver:
        builder = StateGraph(Chat)
        for name, node in (("halting", halting), ("eager", eager)):
            builder.add_node(name, node)
            builder.add_edge(START, name)
        mine = builder.compile(checkpointer=saver)
        mine.invoke({"messages": [HumanMessage("one")]}, OF)
        mine.invoke(Command(resume="yes"), OF)
        first = mine.get_state(OF).config
        mine.invoke({"messages": [HumanMessage("two")]}, OF)
        stopped = mine.get_state(OF).config
        assert said(hub)[-2:] == ["two", "meanwhile"]
        mine.update_state(first, {"messages": [HumanMessage("other")]}, as_node="eager")
        assert said(hub) == held(mine)
        mine.invoke(Command(resume="well"), stopped)
        assert sorted(said(hub)) == sorted(held(mine))
        assert "other" not in said(hub)


def test_removed_messages_stay_as_long_as_their_branch_does(hub: Hub) -> None:
    def shorter(state: Chat) -> Any:
        gone = [RemoveMessage(id=str(one.id)) for one in state["messages"][:-1]]
        return {"messages": [*gone, AIMessage(f"sum of {len(gone)}")]}

    with OrtetSaver(hub) as saver:
        mine = graph(saver, node=shorter)
        one = ask(mine, "one")
        ask(mine, "two")
        assert held(mine) == ["two", "sum of 2"]
        assert said(hub) == ["one", "sum of 0", "two", "sum of 2"]
        ask(mine, "other", one)
        assert said(hub) == ["one", "sum of 0", "other", "sum of 2"]


def test_a_copy_is_on_the_branch_of_its_thread(hub: Hub) -> None:
    with OrtetSaver(hub) as saver:
        mine = graph(saver)
        one = ask(mine, "one")
        old = ask(mine, "two")
        ask(mine, "other", one)
        hub.comment("t", "not of the thread")
        ask(mine, "more")
        saver.copy_thread("t", "copy")
        assert said(hub, "copy") == said(hub) == held(mine)
        there: Any = {"configurable": {"thread_id": "copy"}}
        back = {"configurable": {**old["configurable"], "thread_id": "copy"}}
        mine.invoke({"messages": [HumanMessage("three")]}, back)
        assert said(hub, "copy") == held(mine, there)
        assert said(hub, "copy")[2:] == ["two", "re two", "three", "re three"]


def test_pruned_threads_keep_their_branch_and_dropped_runs_go(hub: Hub) -> None:
    with OrtetSaver(hub) as saver:
        mine = graph(saver)
        one = ask(mine, "one")
        ask(mine, "two")
        ask(mine, "other", one)
        saver.prune(["t"])
        assert said(hub) == held(mine) == ["one", "re one", "other", "re other"]
        ask(mine, "more", {"configurable": {"thread_id": "t"}, "metadata": {"run_id": "r"}})
        assert said(hub)[-1] == "re more"
        saver.delete_for_runs(["r"])
        assert said(hub) == held(mine) == ["one", "re one", "other", "re other"]
    with OrtetSaver(hub) as saver:
        mine = graph(saver)
        ask(mine, "then")
        assert said(hub) == held(mine)


def test_a_new_saver_can_branch_from_an_earlier_checkpoint(hub: Hub) -> None:
    with OrtetSaver(hub) as saver:
        mine = graph(saver)
        one = ask(mine, "one")
        for number in range(12):
            old = ask(mine, f"turn {number}")
    with OrtetSaver(hub) as saver:
        mine = graph(saver)
        ask(mine, "other", one)
        assert said(hub) == held(mine) == ["one", "re one", "other", "re other"]
    with OrtetSaver(hub) as saver:
        mine = graph(saver)
        ask(mine, "more")
        assert said(hub) == held(mine)
        ask(mine, "last", old)
        assert said(hub) == held(mine)
    with OrtetSaver(hub) as saver, hub.session("t", agent="default") as session:
        del saver
        assert session.messages(last=2)[0].content == "last"
        session.commit("all")
    assert len(said(hub)) == 28


def test_branching_between_long_shared_message_lists_keeps_the_conversation(hub: Hub) -> None:
    with OrtetSaver(hub) as saver:
        mine = graph(saver)
        ends = [ask(mine, f"turn {number}") for number in range(36)]
        for number in (30, 31, 32, 33, 34, 0, 35, 2):
            mine.update_state(ends[number], {"messages": [HumanMessage(f"from {number}")]})
            assert said(hub) == held(mine)
            assert len(said(hub)) == 2 * number + 3


def test_threads_written_by_an_earlier_release_keep_their_conversation(
    hub: Hub, monkeypatch: Any
) -> None:
    with OrtetSaver(hub) as saver, monkeypatch.context() as past:
        past.setattr("ortet.integrations.langgraph.write.superseded_event_data", lambda *_: None)
        mine = graph(saver)
        one = ask(mine, "one")
        old = ask(mine, "two")
        ask(mine, "other", one)
    everything = ["one", "re one", "two", "re two", "other", "re other"]
    assert said(hub) == everything
    with OrtetSaver(hub) as saver:
        mine = graph(saver)
        ask(mine, "more")
        assert said(hub) == [*everything, "more", "re more"]
        ask(mine, "three", old)
        assert said(hub) == held(mine)


@pytest.mark.parametrize("first", ["input", "writes"])
def test_a_checkpoint_stored_after_its_subgraph_is_kept(hub: Hub, first: str) -> None:
    """Background threads may have it so."""
    inside, late = Event(), Event()

    class Late(OrtetSaver):
        def put(self, config: Any, *args: Any) -> Any:
            ns = config["configurable"].get("checkpoint_ns")
            if not ns and args[1]["step"] == 3:
                assert inside.wait(WAIT)
                late.set()
            done = super().put(config, *args)
            if ns and first == "input":
                inside.set()
            return done

        def put_writes(self, config: Any, *args: Any) -> None:
            super().put_writes(config, *args)
            if config["configurable"].get("checkpoint_ns") and first == "writes":
                inside.set()

    with Late(hub) as saver:
        mine = graph(saver, node=nested())
        ask(mine, "one")
        inside.clear()
        ask(mine, "two")
        assert late.is_set()
        place = next(one for one in mine.get_state_history(OF) if one.next == ("bot",))
        mine.update_state(place.config, {"messages": [HumanMessage("other")]}, as_node="bot")
        assert said(hub) == held(mine) == ["one", "re one", "two", "other"]


def put(saver: OrtetSaver, on: Any, step: int, values: Any, *, inside: str = "") -> Any:
    """A checkpoint; `inside`: of a graph inside of the checkpoint with this id."""
    made: Any = {**empty_checkpoint(), "id": str(uuid6()), "channel_values": values}
    versions: Any = dict.fromkeys(values, step)
    made["channel_versions"] = versions
    if inside:
        on = {"configurable": {**on["configurable"], "checkpoint_ns": "bot:1"}}
        on["configurable"].pop("checkpoint_id", None)
    parents = {"": inside} if inside else {}
    return saver.put(on, made, {"source": "loop", "step": step, "parents": parents}, versions)


def test_messages_first_stored_by_a_subgraph_stay_with_their_checkpoint(hub: Hub) -> None:
    one, two = HumanMessage("one", id="1"), AIMessage("two", id="2")
    with OrtetSaver(hub) as saver:
        root = put(saver, {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}, 1, {"a": 1})
        later = str(uuid6())
        put(saver, root, 1, {"messages": [one, two]}, inside=later)
        made: Any = {**empty_checkpoint(), "id": later, "channel_values": {"messages": [one, two]}}
        made["channel_versions"] = {"messages": 2}
        about: Any = {"source": "loop", "step": 2, "parents": {}}
        place = saver.put(root, made, about, {"messages": 2})
        put(saver, place, 3, {"messages": [one, two, HumanMessage("three", id="3")]})
        place = saver.get_tuple(place).config  # type: ignore[union-attr]
        made = {**made, "id": str(uuid6())}
        about |= {"source": "fork", "step": 3}
        saver.put(place, made, about, {})
        assert said(hub) == ["one", "two"]


def test_answering_an_interrupted_subgraph_again_repeats_no_message(hub: Hub) -> None:
    def asking(state: Chat) -> Any:
        return {"messages": [AIMessage(f"re {state['messages'][-1].content} {interrupt('?')}")]}

    builder = StateGraph(Chat)
    builder.add_node("inner", asking)
    builder.add_edge(START, "inner")
    with OrtetSaver(hub) as saver:
        mine = graph(saver, node=builder.compile())
        ask(mine, "one")
        stopped = mine.get_state(OF).config
        mine.invoke(Command(resume="yes"), OF)
        first = mine.get_state(OF).config
        other = ask(mine, "two")
        for words, how in (("no", "exit"), ("well", "sync"), ("so", "async")):
            mine.invoke(Command(resume=words), stopped, durability=how)
            assert said(hub) == held(mine)
            mine.invoke(Command(resume=words), other, durability=how)
            assert said(hub) == held(mine)
            mine.update_state(first, {"messages": [HumanMessage(words)]}, as_node="bot")
            assert said(hub) == held(mine) == ["one", "re one yes", words]


class Thinking(Chat):
    thoughts: Annotated[list[AnyMessage], add_messages]


def test_messages_of_a_subgraph_follow_their_branch(hub: Hub) -> None:
    numbers = itertools.count()

    def think(state: Thinking) -> Any:
        number, last = next(numbers), state["messages"][-1].content
        answers = [AIMessage(f"re {last} {number}")]
        return {"thoughts": [AIMessage(f"thought {number}")], "messages": answers}

    builder = StateGraph(Thinking)
    builder.add_node("inner", think)
    builder.add_edge(START, "inner")
    with OrtetSaver(hub) as saver:
        mine = graph(saver, node=builder.compile())
        one = ask(mine, "one")
        two = ask(mine, "two")
        ask(mine, "other", one)
        assert held(mine) == ["one", "re one 0", "other", "re other 2"]
        assert sorted(said(hub)) == sorted([*held(mine), "thought 0", "thought 2"])
        ask(mine, "three", two)
        assert sorted(said(hub)) == sorted([*held(mine), *(f"thought {n}" for n in (0, 1, 3))])


KILLED = """
import os, signal, sys
from tests.integrations.langgraph.test_branches import *
with ortet.open(sys.argv[1]) as hub:
    saver = OrtetSaver(hub)
    mine = graph(saver)
    one = ask(mine, "one")
    ask(mine, "two")
    real = saver.put
    def put(*args):
        real(*args)
        os.kill(os.getpid(), signal.SIGKILL)
    saver.put = put
    mine.update_state(one, {"messages": [HumanMessage("other")]})
"""


def test_a_kill_after_branching_leaves_the_new_branch(tmp_path: Path) -> None:
    ortet.open(tmp_path / "store").close()
    words = [sys.executable, "-c", KILLED, str(tmp_path / "store")]
    root = Path(__file__).parents[3]
    path = os.pathsep.join([str(root), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = forked.run(words, env={**os.environ, "PYTHONPATH": path}, check=False)
    assert done.returncode == -signal.SIGKILL
    with ortet.open(tmp_path / "store") as hub:
        mine = graph(OrtetSaver(hub))
        assert said(hub) == held(mine) == ["one", "re one", "other"]
