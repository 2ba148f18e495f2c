"""OrtetSaver: what is stored, how often, what is refused, and what older releases left."""

from __future__ import annotations

import threading
from datetime import UTC, datetime
from itertools import chain
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langchain_core.runnables import RunnableConfig
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.base.id import uuid6
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import Command, Send, interrupt

from ortet.errors import Conflict, Invalid, Refused
from ortet.hub.hub import Hub
from ortet.integrations.langgraph import OrtetSaver


def of(thread: Any, **more: Any) -> RunnableConfig:
    return {"configurable": {"thread_id": thread, "checkpoint_ns": "", **more}}


def checkpoint(values: dict[str, Any], version: int = 1, **more: Any) -> Any:
    made: Any = {**empty_checkpoint(), "id": str(uuid6()), "channel_values": values, **more}
    made["channel_versions"] = dict.fromkeys(values, version)
    return made


def put(saver: Any, config: RunnableConfig, values: dict[str, Any], version: int = 1) -> Any:
    made = checkpoint(values, version)
    meta: Any = {"source": "loop", "step": version, "parents": {}}
    return saver.put(config, made, meta, made["channel_versions"])


def values(saver: OrtetSaver, config: RunnableConfig) -> Any:
    found = saver.get_tuple(config)
    assert found is not None
    return found.checkpoint["channel_values"]


def bodies(hub: Hub, name: str) -> int:
    """Bytes of all events."""
    return sum(len(row.body) for row in hub.get(name).internals.event_log.rows())


ODD: dict[str, Any] = {
    "none": None,
    "numbers": [1, True, 1.0, float("inf"), 2**40, -1],
    "text": "Grüße 你好 \x00",
    "dict": {"b": 1, "a": {"$m": 3, "": None}, "list": [[], {}, ""]},
    "marked": {"$l": [[0, 5]]},
    "keys": {1: "a", (2, 3): "b"},
    "set": {1, 2},
    "time": datetime(2026, 1, 1, tzinfo=UTC),
    "bytes": b"\x00\xff",
    "long": "x" * 200_000,
    "blob": b"y" * 2_000_000,
    "send": [Send("node", {"a": 1})],
    "mixed": [HumanMessage("hi", id="1"), "text", {"role": "user"}, 5, HumanMessage("hi", id="1")],
    "nested": {"deep": [{"message": AIMessage("yes", id="2")}]},
    "deep": [[[[[[[[[["end"]]]]]]]]]],
}


def test_any_value_is_returned_like_the_in_memory_saver_returns_it(
    hub: Hub, saver: OrtetSaver
) -> None:
    other = InMemorySaver()
    config = put(saver, of("t"), ODD)
    put(other, of("t"), ODD)
    wanted = other.get_tuple(of("t"))
    assert wanted is not None
    for reader in (saver, OrtetSaver(hub)):
        found = values(reader, config)
        assert found == wanted.checkpoint["channel_values"]
        assert list(found["dict"]) == ["b", "a", "list"]
        assert type(found["numbers"][1]) is bool and type(found["numbers"][2]) is float
    put(saver, config, {**ODD, "none": 1}, 2)
    assert {**values(OrtetSaver(hub), of("t")), "none": None} == found


def test_unchanged_values_are_not_stored_again(hub: Hub, saver: OrtetSaver) -> None:
    state: dict[str, Any] = {
        "messages": [HumanMessage("m" * 400, id=str(number)) for number in range(100)],
        "rows": [{"role": "user", "content": "r" * 400, "n": number} for number in range(100)],
        "files": {f"f{number}.py": "c" * 400 for number in range(100)},
        "small": list(range(1000)),
    }
    config = put(saver, of("t"), state)
    first = bodies(hub, "t")
    for number in range(1, 21):
        state = {
            "messages": [*state["messages"], HumanMessage("n" * 400, id=f"n{number}")],
            "rows": [*state["rows"], {"role": "user", "content": "s" * 400, "n": -number}],
            "files": {**state["files"], "f7.py": f"{number}" * 400},
            "small": [*state["small"], number],
        }
        config = put(saver, config, state, number + 1)
    # messages, rows and files that are new, and a list of files
    assert bodies(hub, "t") - first < 20 * (3 * 900 + 4000)
    assert values(OrtetSaver(hub), of("t")) == state
    trimmed = {**state, "messages": state["messages"][50:], "rows": state["rows"][:3]}
    before = bodies(hub, "t")
    put(saver, config, trimmed, 99)
    assert bodies(hub, "t") - before < 3000
    assert values(OrtetSaver(hub), of("t")) == trimmed


class Chat(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]


def test_a_turn_costs_the_same_however_long_the_thread_is(hub: Hub, saver: OrtetSaver) -> None:
    """Also where parts lie between the messages, as those of input that is given as dicts."""
    builder = StateGraph(Chat)
    answer = {"role": "assistant", "content": "a" * 100}
    builder.add_node("bot", lambda state: {"messages": [answer, answer]})
    builder.add_edge(START, "bot")
    graph: Any = builder.compile(checkpointer=saver)
    sizes = {}
    for number in range(90):
        graph.invoke({"messages": [{"role": "user", "content": f"{number} " * 30}]}, of("t"))
        if number % 20 == 9:
            sizes[number] = bodies(hub, "t")
    assert sizes[89] - sizes[69] < 1.2 * (sizes[29] - sizes[9])
    found = values(OrtetSaver(hub), of("t"))["messages"]
    assert [message.content[:2].strip() for message in found[::3]] == [str(n) for n in range(90)]
    config = of("u")
    odd: list[Any] = []
    for number in range(70):  # every second element is another list's, too
        odd = [*odd, HumanMessage(str(number), id=str(number))]
        config = put(saver, config, {"odd": odd[::2], "all": odd}, number + 1)
    assert values(OrtetSaver(hub), of("u")) == {"odd": odd[::2], "all": odd}


def test_a_message_that_was_changed_in_place_is_stored_as_it_is(saver: OrtetSaver) -> None:
    message = AIMessage("one", id="1")
    config = put(saver, of("t"), {"messages": [message]})
    message.additional_kwargs["seen"] = True
    config = put(saver, config, {"messages": [message]}, 2)
    assert values(saver, config)["messages"][0].additional_kwargs == {"seen": True}
    message.content = "two"
    put(saver, config, {"messages": [message]}, 3)
    found = values(saver, of("t"))["messages"][0]
    assert found.content == "two"
    found.content = "spoilt by its reader"
    assert values(saver, of("t"))["messages"][0].content == "two"


def test_a_message_that_was_changed_deep_inside_is_stored_as_it_is(hub: Hub) -> None:
    message = AIMessage([{"type": "text", "text": "one"}], id="1", additional_kwargs={"seen": [1]})
    saver = OrtetSaver(hub)
    first = put(saver, of("t"), {"messages": [message]})
    before = message.model_copy(deep=True)
    message.additional_kwargs["seen"].append(2)
    message.content[0]["text"] = "two"  # type: ignore[index]
    put(saver, first, {"messages": [message]}, 2)
    for one in (saver, OrtetSaver(hub)):
        assert values(one, of("t"))["messages"] == [message]
        assert values(one, first)["messages"] == [before]


def test_a_list_of_ten_thousand_and_a_huge_message(hub: Hub, saver: OrtetSaver) -> None:
    big: dict[str, Any] = {
        "rows": [{"n": number, "text": "t" * 100} for number in range(10_000)],
        "messages": [HumanMessage("h" * 3_000_000, id="1"), AIMessage("a" * 300_000, id="2")],
    }
    put(saver, of("t"), big)
    assert values(OrtetSaver(hub), of("t")) == big
    saver.close()
    assert hub.verify()


def test_a_value_that_cannot_be_stored_is_refused_with_its_channel(saver: OrtetSaver) -> None:
    with pytest.raises(Invalid, match="channel 'lock'") as refused:
        put(saver, of("t"), {"fine": 1, "lock": {"a": [threading.Lock()]}})
    assert refused.value.kind == "not_serialisable"
    assert saver.get_tuple(of("t")) is None
    config = put(saver, of("t"), {"fine": 1})
    with pytest.raises(Invalid, match="channel 'lock'"):
        saver.put_writes(config, [("lock", threading.Lock())], "task")
    assert values(saver, of("t")) == {"fine": 1}


class Odd:
    """Only pickle knows how to keep one."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Odd)

    __hash__ = None  # type: ignore[assignment]


def test_pickles_are_refused_unless_asked_for(hub: Hub, saver: OrtetSaver) -> None:
    with pytest.raises(Invalid, match="channel 'odd'"):
        put(saver, of("t"), {"odd": Odd()})
    trusting = OrtetSaver(hub, serde=JsonPlusSerializer(pickle_fallback=True))
    put(trusting, of("p"), {"odd": Odd()})
    assert values(trusting, of("p")) == {"odd": Odd()}
    with pytest.raises(Refused, match="pickle"):
        saver.get_tuple(of("p"))


class _Cipher:
    def encrypt(self, plaintext: bytes) -> tuple[str, bytes]:
        return "flip", bytes(255 - byte for byte in plaintext)

    def decrypt(self, ciphername: str, ciphertext: bytes) -> bytes:
        assert ciphername == "flip"
        return bytes(255 - byte for byte in ciphertext)


def test_a_serializer_that_encrypts_is_asked_for_everything(hub: Hub) -> None:
    serde = EncryptedSerializer(_Cipher())
    saver = OrtetSaver(hub, serde=serde)
    state = {"messages": [HumanMessage("secret word", id="1")], "dict": {"secret word": 1}}
    config = put(saver, of("t"), state)
    saver.put_writes(config, [("messages", [AIMessage("secret word", id="2")])], "task")
    assert values(OrtetSaver(hub, serde=serde), of("t")) == state
    assert not any(b"secret word" in row.body for row in hub.get("t").internals.event_log.rows())


def test_an_older_release_left_sends_with_the_checkpoint_before(saver: OrtetSaver) -> None:
    first = put(saver, of("t"), {"a": 1})
    saver.put_writes(first, [("__pregel_tasks", Send("b", 2)), ("other", 1)], "t2", "~b")
    saver.put_writes(first, [("__pregel_tasks", Send("a", 1))], "t1", "~a")
    made: Any = {**checkpoint({"a": 1}, 2), "v": 3}
    second = saver.put(first, made, {"source": "loop", "step": 1}, {})
    found = values(saver, second)
    assert found["__pregel_tasks"] == [Send("a", 1), Send("b", 2)]
    oldest: Any = {**checkpoint({"a": 1}, 3), "v": 1, "pending_sends": [Send("c", 3)]}
    third = saver.put(second, oldest, {"source": "loop", "step": 2}, {})
    tuple_ = saver.get_tuple(third)
    assert tuple_ is not None
    assert tuple_.checkpoint["pending_sends"] == [Send("c", 3)]  # type: ignore[typeddict-item]


def test_versions_of_another_saver_go_on(saver: OrtetSaver) -> None:
    assert saver.get_next_version(None, None) == 1
    assert saver.get_next_version(7, None) == 8
    theirs = InMemorySaver().get_next_version(None, None)
    assert (
        theirs
        < saver.get_next_version(theirs, None)
        < InMemorySaver().get_next_version(
            saver.get_next_version(saver.get_next_version(theirs, None), None), None
        )
    )


def test_changing_a_value_after_put_does_not_change_the_stored_one(saver: OrtetSaver) -> None:
    made: Any = checkpoint({"list": [[1]], "dict": {"a": [1]}})
    meta: Any = {"source": "loop", "step": 1, "more": {"a": [1]}}
    saver.put(of("t"), made, meta, made["channel_versions"])
    made["channel_values"]["list"][0].append(2)
    made["channel_values"]["dict"]["a"].append(2)
    made["channel_versions"]["list"] = 9
    meta["more"]["a"].append(2)
    for _ in range(2):
        found = saver.get_tuple(of("t"))
        assert found is not None
        assert found.checkpoint["channel_values"] == {"list": [[1]], "dict": {"a": [1]}}
        assert found.checkpoint["channel_versions"] == {"list": 1, "dict": 1}
        assert found.metadata["more"] == {"a": [1]}  # type: ignore[typeddict-item]
        found.checkpoint["channel_values"]["list"].append(3)
        found.checkpoint["channel_versions"]["list"] = 9


def test_thread_ids_of_any_kind(saver: OrtetSaver) -> None:
    ids = ["a/b", "", "Grüße", 7, "x" * 1000, "a-b"]
    for number, id_ in enumerate(ids):
        put(saver, of(id_), {"n": number})
    assert [values(saver, of(id_))["n"] for id_ in ids] == list(range(6))
    listed = {one.config["configurable"]["thread_id"] for one in saver.list(None)}
    assert listed == set(ids)
    with pytest.raises(Invalid, match="thread_id"):
        saver.get_tuple({"configurable": {}})


# two writers


def test_put_on_a_checkpoint_that_is_no_longer_the_latest_is_refused(
    hub: Hub, saver: OrtetSaver
) -> None:
    other = OrtetSaver(hub)
    put(saver, of("t"), {"n": 0})
    mine, theirs = saver.get_tuple(of("t")), other.get_tuple(of("t"))
    assert mine is not None and theirs is not None
    put(other, theirs.config, {"n": 1}, 2)
    late: Any = checkpoint({"n": 2}, 2)
    with pytest.raises(Conflict) as refused:
        saver.put(mine.config, late, {"source": "loop", "step": 2}, {"n": 2})
    assert refused.value.kind == "thread_moved"
    # nor does anything of it that follows come in
    after = of("t", checkpoint_id=late["id"])
    with pytest.raises(Conflict):
        saver.put_writes(after, [("n", 3)], "task")
    with pytest.raises(Conflict):
        put(saver, after, {"n": 3}, 3)
    assert values(saver, of("t")) == {"n": 1}
    # by its id it is a branch, which its user wants
    asked = saver.get_tuple(of("t", checkpoint_id=mine.config["configurable"]["checkpoint_id"]))
    assert asked is not None
    put(saver, asked.config, {"n": 3}, 2)
    assert values(other, of("t")) == {"n": 3}


@pytest.mark.parametrize("same", [True, False])
def test_a_second_first_checkpoint_of_a_thread_is_refused(
    hub: Hub, saver: OrtetSaver, same: bool
) -> None:
    other = saver if same else OrtetSaver(hub)
    assert saver.get_tuple(of("t")) is None and other.get_tuple(of("t")) is None
    put(saver, of("t"), {"n": 1})
    with pytest.raises(Conflict):
        put(other, of("t"), {"n": 2})
    assert len(list(saver.list(of("t")))) == 1


def pending_writes(saver: Any, config: RunnableConfig) -> Any:
    checkpoint = saver.get_tuple(config)
    assert checkpoint is not None
    return sorted(checkpoint.pending_writes)


def test_the_first_writes_of_a_task_count_as_in_the_savers_of_langgraph(
    hub: Hub, saver: OrtetSaver
) -> None:
    def write(first: Any, second: Any) -> Any:
        config = put(first, of("t"), {"n": 0})
        first.put_writes(config, [("a", 1)], "task")
        second.put_writes(config, [("a", 2)], "task")
        put(first, config, {"n": 1}, 2)
        first.put_writes(config, [("a", 3), ("b", 4)], "task")
        second.put_writes(config, [("a", 5)], "another")
        return pending_writes(first, config)

    with SqliteSaver.from_conn_string(":memory:") as stock:
        expected = write(stock, stock)
    assert write(saver, OrtetSaver(hub)) == expected
    assert expected == [("another", "a", 5), ("task", "a", 1), ("task", "b", 4)]


def test_late_writes_of_a_run_that_was_overtaken_are_ignored(hub: Hub, saver: OrtetSaver) -> None:
    other = OrtetSaver(hub)
    put(saver, of("t"), {"n": 0})
    mine, theirs = saver.get_tuple(of("t")), other.get_tuple(of("t"))
    assert mine is not None and theirs is not None
    saver.put_writes(mine.config, [("a", 1)], "task")
    put(saver, mine.config, {"n": 1}, 2)
    by_checkpoint_id = of("t", checkpoint_id=theirs.checkpoint["id"])
    for config in (theirs.config, by_checkpoint_id):
        other.put_writes(config, [("a", 2), ("b", 2)], "task")
    assert pending_writes(saver, mine.config) == [("task", "a", 1)]
    saver.put_writes(mine.config, [("a", 1), ("b", 3)], "task")  # the run that was first
    assert pending_writes(other, mine.config) == [("task", "a", 1), ("task", "b", 3)]
    # by its id the checkpoint is run again, by whomever
    again = other.get_tuple(of("t", checkpoint_id=str(theirs.checkpoint["id"])))
    assert again is not None
    other.put_writes(again.config, [("a", 4), ("b", 4), ("c", 4)], "task")
    assert ("task", "c", 4) in pending_writes(saver, mine.config)


# channels that store what was written


def added(messages: Any, several: Any) -> Any:
    for more in several:
        messages = add_messages(messages, more)
    return messages


class Deltas(TypedDict):
    messages: Annotated[list[AnyMessage], DeltaChannel(added, snapshot_frequency=5)]


def delta(saver: Any) -> Any:
    builder = StateGraph(Deltas)
    builder.add_node("bot", lambda state: {"messages": [AIMessage(f"{len(state['messages'])}")]})
    builder.add_edge(START, "bot")
    return builder.compile(checkpointer=saver)


def test_delta_channels_and_pruning(hub: Hub, saver: OrtetSaver) -> None:
    graph = delta(saver)
    for number in range(7):
        graph.invoke({"messages": [HumanMessage(f"h{number}")]}, of("t"))
    wanted = [message.content for message in graph.get_state(of("t")).values["messages"]]
    assert wanted[:4] == ["h0", "1", "h1", "3"] and len(wanted) == 14
    saver.prune(["t"])
    other = OrtetSaver(hub)
    assert len(list(other.list(of("t")))) == 1
    again = delta(other)
    state = again.get_state(of("t"))
    assert [message.content for message in state.values["messages"]] == wanted
    history = other.get_delta_channel_history(config=state.config, channels=["messages"])
    assert "seed" in history["messages"]
    again.invoke({"messages": [HumanMessage("on")]}, of("t"))
    assert len(again.get_state(of("t")).values["messages"]) == 16


def joined(log: list[str], several: list[list[str]]) -> list[str]:
    return [*log, *chain.from_iterable(several)]


class Log(TypedDict, total=False):
    log: Annotated[list[str], DeltaChannel(joined)]
    extra: Annotated[list[str], DeltaChannel(joined)]
    flag: bool


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
@pytest.mark.parametrize("elsewhere", [False, True])
def test_an_addressed_resume_keeps_what_a_task_writes_to_a_further_channel(
    hub: Hub, saver: OrtetSaver, durability: Any, elsewhere: bool
) -> None:
    def work(state: Log) -> Any:
        return {"log": ["work"], **({"extra": ["new"]} if state.get("flag") else {})}

    def ask(state: Log) -> Any:
        return {"log": [interrupt("go on?")]}

    def graph(saver: OrtetSaver) -> Any:
        builder = StateGraph(Log)
        for node in (work, ask):
            builder.add_node(node.__name__, node)
            builder.add_edge(START, node.__name__)
        return builder.compile(checkpointer=saver)

    first = graph(saver)
    first.invoke({"log": ["in"]}, of("t"), durability=durability)
    paused = first.get_state(of("t")).config
    first.update_state(of("t"), None)  # so that the checkpoint was continued from
    second = graph(OrtetSaver(hub)) if elsewhere else first
    resume: Any = Command(resume="yes", update={"flag": True})
    result = second.invoke(resume, paused, durability=durability)
    values = second.get_state(of("t")).values
    assert result["extra"] == values["extra"] == ["new"]
    assert sorted(result["log"]) == sorted(values["log"]) == ["in", "work", "yes"]


def test_leaving_a_replay_of_delta_channels_drops_its_messages(hub: Hub, saver: OrtetSaver) -> None:
    graph = delta(saver)
    for text in ("one", "two"):
        graph.invoke({"messages": [HumanMessage(text)]}, of("t"))
    states = list(graph.get_state_history(of("t")))
    asked = next(one for one in states if one.next == ("__start__",))
    graph.invoke(None, asked.config)
    assert [message.content for message in hub.get("t").messages()] == ["one", "1", "two", "3"]
    change = {"messages": [HumanMessage("other")]}
    graph.update_state(states[-2].config, change, as_node="bot")
    assert [message.content for message in hub.get("t").messages()] == ["one", "other"]


def test_a_copy_is_a_thread_of_its_own(hub: Hub, saver: OrtetSaver) -> None:
    config = put(saver, of("a"), {"messages": [HumanMessage("hi", id="1")], "blob": b"b" * 50_000})
    saver.copy_thread("a", "b")
    put(saver, config, {"messages": []}, 2)
    saver.delete_thread("a")
    assert values(OrtetSaver(hub), of("b"))["messages"] == [HumanMessage("hi", id="1")]
    assert saver.get_tuple(of("a")) is None
    with pytest.raises(Conflict, match="already"):
        put(saver, of("c"), {"n": 1})
        saver.copy_thread("c", "b")
    saver.close()
    assert hub.verify()
