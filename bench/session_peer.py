"""One peer of the session rows, run by the Python of its own environment: for each line of JSON it
reads, one turn or step, and the answer with the milliseconds it took. No package of ours is here.
"""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import sys
import time
from collections.abc import Iterator
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, TextIO, TypedDict

Request = dict[str, Any]
SYNCHRONOUS = ("OFF", "NORMAL", "FULL", "EXTRA")
THREAD = {"configurable": {"thread_id": "bench"}}


class Wire:
    """Requests come in, answers go out; what libraries print goes to standard error."""

    def __init__(self) -> None:
        self._out: TextIO = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)

    def requests(self) -> Iterator[Request]:
        for line in sys.stdin:
            yield json.loads(line)

    def answer(self, **values: object) -> None:
        print(json.dumps(values), file=self._out, flush=True)


def pragmas(connection: Any) -> str:
    """How durable it really is: as its own connection says."""
    (mode,) = connection.execute("PRAGMA journal_mode").fetchone()
    (level,) = connection.execute("PRAGMA synchronous").fetchone()
    return f"{str(mode).upper()}, synchronous={SYNCHRONOUS[level]}"


def checkpoint(file: Path) -> None:
    """Move the log into the database, so that sizes are those of what is kept."""
    connection = sqlite3.connect(file)
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    connection.close()


def langgraph(wire: Wire, place: Path, *, delta: bool, durability: str | None) -> None:
    """A graph of one node that answers; what is timed is `invoke`, from message to answer saved."""
    graph, message = import_module("langgraph.graph"), import_module("langgraph.graph.message")
    saver_of = import_module("langgraph.checkpoint.sqlite").SqliteSaver
    channel: Any = message.add_messages
    if delta:
        channel_of = import_module("langgraph.channels.delta").DeltaChannel
        channel = channel_of(message._messages_delta_reducer)
    typed: Any = TypedDict
    state = typed("State", {"messages": Annotated[list, channel]})
    reply = {"content": ""}
    builder = graph.StateGraph(state)
    builder.add_node("reply", lambda _: {"messages": [{"role": "assistant", **reply}]})
    builder.add_edge(graph.START, "reply")
    builder.add_edge("reply", graph.END)
    options: dict[str, Any] = {"durability": durability} if durability else {}
    file = place / "peer.db"
    with saver_of.from_conn_string(str(file)) as saver:
        app = builder.compile(checkpointer=saver)
        for request in wire.requests():
            if request["do"] == "turn":
                said = {"messages": [{"role": "user", "content": request["user"]}]}
                reply["content"] = request["assistant"]
                begin = time.perf_counter()
                found = app.invoke(said, THREAD, **options)
                spent = (time.perf_counter() - begin) * 1000
                wire.answer(ms=spent, messages=len(found["messages"]))
            elif request["do"] == "rest":
                checkpoint(file)
                wire.answer(pragmas=pragmas(saver.conn))


def openai_agents(wire: Wire, place: Path) -> None:
    """Both messages of a turn in one `add_items`, as its runner does."""
    session = import_module("agents").SQLiteSession("bench", place / "peer.db")
    loop = asyncio.new_event_loop()
    for request in wire.requests():
        if request["do"] == "turn":
            items = [{"role": role, "content": request[role]} for role in ("user", "assistant")]
            begin = time.perf_counter()
            loop.run_until_complete(session.add_items(items))
            wire.answer(ms=(time.perf_counter() - begin) * 1000)
        elif request["do"] == "rest":
            with session._locked_connection() as connection:
                said = pragmas(connection)
            checkpoint(place / "peer.db")
            kept = len(loop.run_until_complete(session.get_items()))
            wire.answer(pragmas=said, messages=kept)
    session.close()
    loop.close()


def dbos(wire: Wire, place: Path) -> None:
    """One workflow; each request is one of its steps."""
    runtime: Any = import_module("dbos").DBOS
    address = f"sqlite:///{place / 'peer.db'}"
    runtime(config={"name": "bench", "system_database_url": address, "log_level": "WARNING"})

    def step(number: int, text: str) -> dict[str, object]:
        return {"number": number, "text": text}

    recorded = runtime.step()(step)

    def work() -> None:
        for request in wire.requests():
            if request["do"] == "step":
                begin = time.perf_counter()
                recorded(request["number"], request["text"])
                wire.answer(ms=(time.perf_counter() - begin) * 1000)
            elif request["do"] == "rest":
                engine = import_module("dbos._dbos")._get_dbos_instance()._sys_db.engine
                with engine.connect() as connection:
                    said = pragmas(connection.connection.dbapi_connection)
                checkpoint(place / "peer.db")
                wire.answer(pragmas=said)

    flow = runtime.workflow()(work)
    runtime.launch()
    flow()
    runtime.destroy()


def main() -> None:
    name, place = sys.argv[1], Path(sys.argv[2])
    wire = Wire()
    if name == "versions":
        wire.answer(**{package: version(package) for package in sys.argv[3:]}, sqlite=_sqlite())
    elif name == "openai-agents":
        openai_agents(wire, place)
    elif name == "dbos":
        dbos(wire, place)
    else:
        durability = "exit" if name.endswith("exit") else None
        langgraph(wire, place, delta="delta" in name, durability=durability)


def _sqlite() -> str:
    return sqlite3.sqlite_version


if __name__ == "__main__":
    main()
