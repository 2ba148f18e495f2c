"""A process with a graph of its own, on a thread that others use, too."""

from __future__ import annotations

import os
import signal
import sys
import time
from itertools import count
from typing import Annotated, Any, TypedDict

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.graph import START, StateGraph
from langgraph.graph.message import add_messages

import ortet
from ortet.errors import Conflict, Refused
from ortet.integrations.langgraph import OrtetSaver

OF: Any = {"configurable": {"thread_id": "t"}}


class Chat(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]


def graph(saver: OrtetSaver, name: str) -> Any:
    def answer(state: Chat) -> Any:
        return {"messages": [AIMessage(f"re {state['messages'][-1].content}", name=name)]}

    builder = StateGraph(Chat)
    builder.add_node("bot", answer)
    builder.add_edge(START, "bot")
    return builder.compile(checkpointer=saver)


def tell(word: str) -> None:
    sys.stdout.write(word + "\n")
    sys.stdout.flush()


def race(saver: OrtetSaver, name: str, seconds: float) -> None:
    """Tells each turn that was taken, as the graph said."""
    mine, taken, end = graph(saver, name), 0, time.monotonic() + seconds
    for number in count():
        if taken and time.monotonic() > end:
            return
        said = f"{name}-{number}"
        try:
            mine.invoke({"messages": [HumanMessage(said)]}, OF)
        except Conflict as error:
            assert error.kind == "thread_moved", error
            continue
        except Refused as error:
            assert error.kind in ("lease_held", "lease_lost"), error
            continue
        tell(said)
        taken += 1


def end() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def die(saver: OrtetSaver, method: str, times: int) -> None:
    """Killed when `put` has returned so often, or `put_writes` is called so often."""
    real, left = getattr(saver, method), [times]

    def then(*args: Any, **kwargs: Any) -> Any:
        left[0] -= 1
        if not left[0] and method == "put_writes":
            end()
        found = real(*args, **kwargs)
        if not left[0]:
            end()
        return found

    setattr(saver, method, then)
    graph(saver, "one").invoke({"messages": [HumanMessage("hello")]}, OF, durability="sync")


def write(saver: OrtetSaver) -> None:
    """Killed as soon as a task's writes are said to be stored."""
    made: Any = empty_checkpoint()
    config = saver.put(
        {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}, made, {"step": 0}, {}
    )
    saver.put_writes(config, [("messages", [AIMessage("done", id="1")]), ("n", 7)], "task")
    end()


if __name__ == "__main__":
    with ortet.open(sys.argv[1]) as hub:
        saver = OrtetSaver(hub)
        tell("ready")
        sys.stdin.readline()
        if sys.argv[2] == "race":
            race(saver, sys.argv[3], float(sys.argv[4]))
        elif sys.argv[2] == "write":
            write(saver)
        else:
            die(saver, sys.argv[3], int(sys.argv[4]))
