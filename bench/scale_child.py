"""One system of the scale part, ours or a peer's, alone in a process: for each line of JSON it
reads, one deed, and the answer with the milliseconds it took."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from importlib import import_module
from importlib.metadata import version
from typing import Annotated, Any, TypedDict

from session_peer import THREAD, Request, Wire

Answer = dict[str, Any]


def milliseconds(deed: Callable[[], object]) -> float:
    begin = time.perf_counter()
    deed()
    return (time.perf_counter() - begin) * 1000


class Graph:
    """A graph of one node that answers, with a saver."""

    def __init__(self, kind: str, stack: ExitStack) -> None:
        self.kind, self.stack = kind, stack
        self.reply = ""
        self.config: Any = THREAD

    def begin(self, url: str) -> Answer:
        graph, message = import_module("langgraph.graph"), import_module("langgraph.graph.message")
        typed: Any = TypedDict
        builder = graph.StateGraph(
            typed("State", {"messages": Annotated[list, message.add_messages]})
        )
        builder.add_node("reply", self._answer)
        builder.add_edge(graph.START, "reply")
        builder.add_edge("reply", graph.END)
        if self.kind.startswith("ortet"):
            hub = self.stack.enter_context(import_module("ortet").open(url))
            self.saver = import_module("ortet.integrations.langgraph").OrtetSaver(hub)
            self.stack.callback(self.saver.close)
        else:
            saver_of = import_module("langgraph.checkpoint.postgres").PostgresSaver
            self.saver = self.stack.enter_context(saver_of.from_conn_string(url))
            self.saver.setup()
        self.app = builder.compile(checkpointer=self.saver)
        return {}

    def _answer(self, _: Any) -> Any:
        return {"messages": [{"role": "assistant", "content": self.reply}]}

    def turn(self, user: str, assistant: str) -> Answer:
        self.reply = assistant
        said = {"messages": [{"role": "user", "content": user}]}
        spent = milliseconds(lambda: self.app.invoke(said, self.config))
        self.config = THREAD
        return {"ms": spent}

    def mark(self) -> Answer:
        """Remember this checkpoint to fork from."""
        self.marked = self.saver.get_tuple(THREAD).config
        return {}

    def get(self, count: int) -> Answer:
        spent = [milliseconds(lambda: self.saver.get_tuple(THREAD)) for _ in range(count)]
        found = self.saver.get_tuple(THREAD).checkpoint["channel_values"]["messages"]
        return {"ms": spent, "messages": len(found)}

    def fork(self, count: int, text: str) -> Answer:
        values = {"messages": [{"role": "user", "content": text}]}
        return {
            "ms": [
                milliseconds(lambda: self.app.update_state(self.marked, values))
                for _ in range(count)
            ]
        }


class Talk:
    """A session of Ortet, by its own verbs."""

    def __init__(self, stack: ExitStack) -> None:
        self.stack = stack

    def begin(self, url: str) -> Answer:
        self.hub = self.stack.enter_context(import_module("ortet").open(url))
        self.session = self.hub.session("bench")
        return {}

    def step(self, number: int, text: str) -> Answer:
        return {"ms": milliseconds(lambda: self.session.say("user", text, number=number))}

    def commit(self, text: str, durable: str) -> Answer:
        self.session.say("user", text)
        return {"ms": milliseconds(lambda: self.session.commit(text[:40], durable=durable))}

    def fork(self) -> Answer:
        made: list[Any] = []
        spent = milliseconds(lambda: made.extend(self.session.fork(1, machine=False)))
        for one in made:
            one.pause()
        return {"ms": spent}

    def recall(self, text: str) -> Answer:
        found: list[Any] = []
        spent = milliseconds(lambda: found.extend(self.session.recall(text, k=5)))
        assert found, text
        return {"ms": spent}


class Bare:
    """What one row costs without us: a table of two columns, one insert, one commit."""

    def __init__(self, stack: ExitStack) -> None:
        self.stack = stack

    def begin(self, url: str) -> Answer:
        connect = import_module("psycopg").connect
        self.connection = self.stack.enter_context(connect(url, autocommit=True))
        self.connection.execute(
            "CREATE TABLE IF NOT EXISTS bare (id bigserial PRIMARY KEY, body bytea NOT NULL)"
        )
        return {}

    def step(self, number: int, text: str) -> Answer:
        del number
        insert, values = "INSERT INTO bare (body) VALUES (%s)", (text.encode(),)
        return {"ms": milliseconds(lambda: self.connection.execute(insert, values, prepare=True))}


def dbos(wire: Wire) -> None:
    """One workflow; each request is one of its steps, until it is forked behind the last of them.
    What is forked ends at once."""
    requests = wire.requests()
    runtime: Any = import_module("dbos").DBOS
    url = next(requests)["url"]
    runtime(config={"name": "bench", "system_database_url": url, "log_level": "WARNING"})
    steps = 0

    def step(number: int, text: str) -> dict[str, object]:
        return {"number": number, "text": text}

    recorded = runtime.step()(step)

    def work() -> str:
        nonlocal steps
        if not steps:
            wire.answer()
            for request in requests:
                if request["do"] == "fork":
                    break
                given = request["number"], request["text"]
                wire.answer(ms=milliseconds(lambda: recorded(*given)))  # noqa: B023
                steps += 1
        return str(runtime.workflow_id)

    flow = runtime.workflow()(work)
    runtime.launch()
    name = flow()
    while True:
        made: list[Any] = []
        spent = milliseconds(lambda: made.append(runtime.fork_workflow(name, steps + 1)))  # noqa: B023
        made[0].get_result()
        assert len(runtime.list_workflow_steps(made[0].workflow_id)) == steps
        wire.answer(ms=spent)
        if next(requests, None) is None:
            break
    runtime.destroy()


def main() -> None:
    kind, wire = sys.argv[1], Wire()
    if kind == "versions":
        wire.answer(**{package: version(package) for package in sys.argv[3:]})
        return
    if kind == "dbos":
        dbos(wire)
        return
    with ExitStack() as stack:
        system: Any
        if kind.endswith("saver"):
            system = Graph(kind, stack)
        else:
            system = Talk(stack) if kind == "ortet" else Bare(stack)
        for request in wire.requests():
            wire.answer(**_done(system, request))


def _done(system: Any, request: Request) -> Answer:
    found: Answer = getattr(system, request.pop("do"))(**request)
    return found


if __name__ == "__main__":
    main()
