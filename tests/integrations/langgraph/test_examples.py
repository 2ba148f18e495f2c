"""LangGraph's documented ways of using a checkpointer, with `InMemorySaver()` replaced by ours."""

from __future__ import annotations

import asyncio
import operator
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, RemoveMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langgraph.func import entrypoint, task
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import Command, Send, interrupt
from tests.fixtures.waiting import loop_turns

from ortet.hub.hub import Hub
from ortet.integrations.langgraph import OrtetSaver


class Chat(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]


def of(thread: str) -> RunnableConfig:
    return {"configurable": {"thread_id": thread}}


def said(state: Any) -> list[str]:
    return [message.content for message in state["messages"]]


def chat(saver: OrtetSaver, *answers: str) -> Any:
    model = GenericFakeChatModel(messages=iter(answers))
    builder = StateGraph(Chat)
    builder.add_node("model", lambda state: {"messages": [model.invoke(state["messages"])]})
    builder.add_edge(START, "model")
    return builder.compile(checkpointer=saver)


def test_a_thread_continues_with_a_new_saver(hub: Hub, saver: OrtetSaver) -> None:
    graph = chat(saver, "Hello Bob", "You are Bob")
    graph.invoke({"messages": [HumanMessage("hi! I'm bob")]}, of("1"))
    again = chat(OrtetSaver(hub), "You are Bob")
    found = again.invoke({"messages": [{"role": "user", "content": "what's my name?"}]}, of("1"))
    assert said(found) == ["hi! I'm bob", "Hello Bob", "what's my name?", "You are Bob"]
    assert said(graph.get_state(of("1")).values) == said(found)
    assert not graph.get_state(of("2")).values


def test_the_messages_of_a_thread_are_an_ortet_session(hub: Hub, saver: OrtetSaver) -> None:
    graph = chat(saver, "The lexer drops the last token")
    graph.invoke({"messages": [HumanMessage("why does the parser fail?")]}, of("bug-7"))
    saver.close()
    view = hub.get("bug-7")
    assert [(m.role, m.content) for m in view.messages()] == [
        ("user", "why does the parser fail?"),
        ("assistant", "The lexer drops the last token"),
    ]
    assert view.recall("lexer token", k=1)[0].text == "The lexer drops the last token"
    assert hub.verify()


def test_async_calls_store_and_list_the_same_states(saver: OrtetSaver) -> None:
    graph = chat(saver, "one", "two")

    async def talk() -> Any:
        await graph.ainvoke({"messages": [HumanMessage("1")]}, of("a"))
        found = await graph.ainvoke({"messages": [HumanMessage("2")]}, of("a"))
        history = [state async for state in graph.aget_state_history(of("a"))]
        return found, history

    found, history = asyncio.run(talk())
    assert said(found) == ["1", "one", "2", "two"]
    assert [len(state.values.get("messages", [])) for state in history] == [4, 3, 2, 2, 1, 0]


class Draft(TypedDict):
    text: str
    log: Annotated[list[str], operator.add]


def test_an_interrupted_graph_resumes_with_a_new_saver(hub: Hub, saver: OrtetSaver) -> None:
    def human(state: Draft) -> dict[str, Any]:
        answer = interrupt({"text": state["text"]})
        return {"text": answer, "log": ["asked"]}

    builder = StateGraph(Draft)
    builder.add_node("human", human)
    builder.add_edge(START, "human")
    graph = builder.compile(checkpointer=saver)
    stopped = graph.invoke({"text": "draft", "log": []}, of("i"))
    assert stopped["__interrupt__"][0].value == {"text": "draft"}
    saver.close()
    graph = builder.compile(checkpointer=OrtetSaver(hub))
    assert graph.get_state(of("i")).next == ("human",)
    done = graph.invoke(Command(resume="final"), of("i"))
    assert done == {"text": "final", "log": ["asked"]}


def test_a_graph_replays_and_branches_from_an_earlier_state(hub: Hub, saver: OrtetSaver) -> None:
    builder = StateGraph(Draft)
    builder.add_node("topic", lambda state: {"text": "cats", "log": ["topic"]})
    builder.add_node("joke", lambda state: {"log": [f"joke about {state['text']}"]})
    builder.add_edge(START, "topic")
    builder.add_edge("topic", "joke")
    graph = builder.compile(checkpointer=saver)
    graph.invoke({"text": "", "log": []}, of("t"))
    states = list(graph.get_state_history(of("t")))
    (before,) = [state for state in states if state.next == ("joke",)]
    # replay
    assert graph.invoke(None, before.config)["log"] == ["topic", "joke about cats"]
    # branch off
    changed = graph.update_state(before.config, values={"text": "dogs"})
    assert graph.invoke(None, changed)["log"] == ["topic", "joke about dogs"]
    assert graph.get_state(of("t")).values["log"] == ["topic", "joke about dogs"]
    # what was is there still, also for who comes later
    later = builder.compile(checkpointer=OrtetSaver(hub))
    assert later.get_state(states[0].config).values["log"] == ["topic", "joke about cats"]
    assert later.get_state(of("t")).values["log"] == ["topic", "joke about dogs"]
    assert graph.invoke({"text": "new", "log": []}, of("t"))["log"][-1] == "joke about cats"


def test_a_copied_checkpoint_becomes_the_current_state(saver: OrtetSaver) -> None:
    graph = chat(saver, "one", "two")
    graph.invoke({"messages": [HumanMessage("1")]}, of("c"))
    states = list(graph.get_state_history(of("c")))
    graph.update_state(states[1].config, None, as_node="__copy__")
    assert said(graph.get_state(of("c")).values) == ["1"]
    graph.update_state(states[-1].config, None, as_node="__copy__")
    assert graph.get_state(of("c")).next == ("__start__",)


class Inner(TypedDict):
    word: str


class Outer(TypedDict):
    word: str
    seen: Annotated[list[str], operator.add]


@pytest.mark.parametrize("own", [None, True])
def test_an_interrupted_subgraph_resumes_with_its_own_state(
    saver: OrtetSaver, own: bool | None
) -> None:
    def ask(state: Inner) -> dict[str, Any]:
        return {"word": state["word"] + interrupt("more?")}

    inner = StateGraph(Inner)
    inner.add_node("ask", ask)
    inner.add_edge(START, "ask")
    outer = StateGraph(Outer)
    outer.add_node("inner", inner.compile(checkpointer=own))
    outer.add_node("note", lambda state: {"seen": [state["word"]]})
    outer.add_edge(START, "inner")
    outer.add_edge("inner", "note")
    graph = outer.compile(checkpointer=saver)
    graph.invoke({"word": "a", "seen": []}, of("s"))
    state = graph.get_state(of("s"), subgraphs=True)
    assert state.tasks[0].state.values == {"word": "a"}  # type: ignore[union-attr]
    assert graph.invoke(Command(resume="b"), of("s")) == {"word": "ab", "seen": ["ab"]}
    graph.invoke({"word": "c", "seen": []}, of("s"))
    assert graph.invoke(Command(resume="d"), of("s"))["seen"] == ["ab", "cd"]
    first = list(graph.get_state_history(of("s")))[-2]
    graph.invoke(None, first.config)
    assert graph.invoke(Command(resume="z"), of("s"))["seen"][-1] == "az"


def test_the_functional_api_resumes_without_repeating_tasks(hub: Hub, saver: OrtetSaver) -> None:
    calls = []

    @task
    def write(topic: str) -> str:
        calls.append(topic)
        return f"An essay about {topic}"

    def flow(checkpointer: OrtetSaver) -> Any:
        @entrypoint(checkpointer=checkpointer)
        def workflow(topic: str, *, previous: Any = None) -> Any:
            essay = write(topic).result()
            ok = interrupt({"essay": essay})
            return entrypoint.final(
                value={"essay": essay, "ok": ok, "before": previous}, save=essay
            )

        return workflow

    assert "__interrupt__" in flow(saver).invoke("cats", of("f"))
    saver.close()
    workflow = flow(OrtetSaver(hub))
    done = workflow.invoke(Command(resume=True), of("f"))
    assert done == {"essay": "An essay about cats", "ok": True, "before": None}
    assert calls == ["cats"]  # what was done before the interrupt is not done again
    workflow.invoke("dogs", of("f"))
    done = workflow.invoke(Command(resume=False), of("f"))
    assert done["before"] == "An essay about cats"


class Jokes(TypedDict):
    subjects: list[str]
    jokes: Annotated[list[str], operator.add]


def test_results_of_twenty_sends_are_stored_in_order(saver: OrtetSaver) -> None:
    def spread(state: Jokes) -> list[Send]:
        return [Send("joke", {"subject": subject}) for subject in state["subjects"]]

    builder = StateGraph(Jokes)
    builder.add_node("joke", lambda state: {"jokes": [f"about {state['subject']}"]})
    builder.add_conditional_edges(START, spread, ["joke"])
    builder.add_edge("joke", END)
    graph = builder.compile(checkpointer=saver)
    subjects = [f"s{number}" for number in range(20)]
    found = graph.invoke({"subjects": subjects, "jokes": []}, of("m"))
    assert found["jokes"] == [f"about {subject}" for subject in subjects]
    assert graph.get_state(of("m")).values["jokes"] == found["jokes"]


def test_results_of_many_async_sends_are_stored(hub: Hub, saver: OrtetSaver) -> None:
    async def joke(state: Any) -> dict[str, Any]:
        await loop_turns()
        return {"jokes": [f"about {state['subject']}"]}

    builder = StateGraph(Jokes)
    builder.add_node("joke", joke)
    subjects = [f"s{number}" for number in range(40)]
    sends = [Send("joke", {"subject": subject}) for subject in subjects]
    builder.add_conditional_edges(START, lambda state: sends, ["joke"])
    graph = builder.compile(checkpointer=saver)

    async def several() -> Any:
        given: Jokes = {"subjects": subjects, "jokes": []}
        return await asyncio.gather(*(graph.ainvoke(given, of(f"m{n}")) for n in range(3)))

    wanted = [f"about {subject}" for subject in subjects]
    assert [found["jokes"] for found in asyncio.run(several())] == [wanted] * 3
    other = builder.compile(checkpointer=OrtetSaver(hub))
    assert [other.get_state(of(f"m{n}")).values["jokes"] for n in range(3)] == [wanted] * 3


def test_only_the_failed_task_is_retried(hub: Hub, saver: OrtetSaver) -> None:
    done: list[str] = []
    broken = [True]

    def work(name: str) -> Any:
        def node(state: Jokes) -> dict[str, Any]:
            if name == "b" and broken[0]:
                raise OSError("no network")
            done.append(name)
            return {"jokes": [name]}

        return node

    builder = StateGraph(Jokes)
    for name in ("a", "b", "c"):
        builder.add_node(name, work(name))
        builder.add_edge(START, name)
    with pytest.raises(OSError, match="no network"):
        builder.compile(checkpointer=saver).invoke({"subjects": [], "jokes": []}, of("w"))
    saver.close()
    broken[0] = False
    graph = builder.compile(checkpointer=OrtetSaver(hub))
    assert graph.invoke(None, of("w"))["jokes"] == ["a", "b", "c"]
    assert sorted(done) == ["a", "b", "c"]


def test_changed_and_removed_messages_are_stored(hub: Hub, saver: OrtetSaver) -> None:
    graph = chat(saver, *"abcdef")
    for number in range(4):
        graph.invoke({"messages": [HumanMessage(str(number))]}, of("r"))
    messages = graph.get_state(of("r")).values["messages"]
    gone = [RemoveMessage(id=messages[1].id), RemoveMessage(id=messages[2].id)]
    graph.update_state(of("r"), {"messages": [*gone, HumanMessage("new", id=messages[4].id)]})
    wanted = ["0", "b", "new", "c", "3", "d"]
    assert said(graph.get_state(of("r")).values) == wanted
    assert said(chat(OrtetSaver(hub)).get_state(of("r")).values) == wanted


def test_tool_calls_and_results_are_stored_unchanged(hub: Hub, saver: OrtetSaver) -> None:
    call = {"name": "look", "args": {"where": "x", "again": {"z": 1, "a": [2]}}, "id": "c1"}
    asking = AIMessage("", tool_calls=[{**call, "type": "tool_call"}], name="agent")
    builder = StateGraph(Chat)
    builder.add_node("model", lambda state: {"messages": [asking]})
    answer = ToolMessage("found", tool_call_id="c1", artifact={"raw": [1, 2.5, None]})
    builder.add_node("tools", lambda state: {"messages": [answer]})
    builder.add_edge(START, "model")
    builder.add_edge("model", "tools")
    graph = builder.compile(checkpointer=saver)
    found = graph.invoke({"messages": [HumanMessage("look")]}, of("tool"))["messages"]
    other = builder.compile(checkpointer=OrtetSaver(hub))
    kept = other.get_state(of("tool")).values["messages"]
    assert kept == found
    assert list(kept[1].tool_calls[0]["args"]) == ["where", "again"]  # in the order they came
    saver.close()
    assert [m.role for m in hub.get("tool").messages()] == ["user", "assistant", "tool"]


@pytest.mark.parametrize("cold", [False, True])
def test_repeated_identical_messages_are_stored_each_time(hub: Hub, *, cold: bool) -> None:
    builder = StateGraph(Chat)
    builder.add_node("answer", lambda _: {"messages": [AIMessage("ok")]})
    builder.add_edge(START, "answer")
    saver = OrtetSaver(hub)
    for _ in range(4):
        saver = OrtetSaver(hub) if cold else saver
        graph = builder.compile(checkpointer=saver)
        graph.invoke({"messages": [HumanMessage("yes")]}, of("again"))
        found = said(graph.get_state(of("again")).values)
        assert [message.content for message in hub.get("again").messages()] == found
        if cold:
            saver.close()
    assert found == ["yes", "ok"] * 4
