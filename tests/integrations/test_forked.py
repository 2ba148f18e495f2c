"""A program that has used its adapters forks, as servers do that load everything first."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tests.fixtures import forked

import ortet

_PROGRAM = """
import asyncio, os, sys, warnings
import ortet
from ortet.integrations.openai_agents import OrtetSession

warnings.simplefilter("ignore", DeprecationWarning)  # there are threads when it forks
hub = ortet.open(sys.argv[1])
session = OrtetSession("x", hub)

def say(word):
    asyncio.run(session.add_items([{"role": "user", "content": word}]))

say("before")
child = os.fork()
if not child:
    say("child")
    session.close()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
say("after")
hub.close()
"""


@pytest.mark.slow
def test_a_conversation_goes_on_in_a_forked_child(tmp_path: Path) -> None:
    store = tmp_path / "store"
    forked.run([sys.executable, "-c", _PROGRAM, str(store)], check=True)
    with ortet.open(store) as hub:
        said = [message.content for message in hub.get("x").messages()]
        assert said == ["before", "child", "after"]
        assert hub.verify().problems == []


_GRAPH = """
import os, signal, sys, threading, warnings
import ortet
from langgraph.checkpoint.base import empty_checkpoint
from ortet.integrations.langgraph import OrtetSaver

warnings.simplefilter("ignore", DeprecationWarning)
hub = ortet.open(sys.argv[1])
saver = OrtetSaver(hub)
threads = saver._threads
first = saver.put({"configurable": {"thread_id": "t"}}, empty_checkpoint(), {}, {})

def in_child(act):
    held, over = threading.Event(), threading.Event()

    def hold():
        with threads._stored_changed:
            held.set()
            over.wait()

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait()
    child = os.fork()
    if not child:
        signal.alarm(60)
        act()
        os._exit(0)
    over.set()
    holder.join()
    assert os.waitpid(child, 0)[1] == 0

def is_not_stored():
    assert saver.get_tuple(first).pending_writes == []

def flush(*args):
    in_child(is_not_stored)
    really(*args)

really, threads.flush = threads.flush, flush
saver.put_writes(first, [("k", 1)], "parent")
threads.flush = really
in_child(lambda: saver.put_writes(first, [("k", 2)], "child"))
assert [one[0] for one in saver.get_tuple(first).pending_writes] == ["child", "parent"]
hub.close()
"""


def test_a_graph_goes_on_in_a_forked_child(tmp_path: Path) -> None:
    """Whose parent is in the middle of a write."""
    store = tmp_path / "store"
    forked.run([sys.executable, "-c", _GRAPH, str(store)], check=True)
    with ortet.open(store) as hub:
        assert len(hub.get("t").records("langgraph.writes")) == 2
        assert hub.verify().problems == []


_MEMORY = """
import os, signal, sys, threading, warnings
import ortet
from ortet.integrations.langgraph import OrtetStore

warnings.simplefilter("ignore", DeprecationWarning)
hub = ortet.open(sys.argv[1])
memory = OrtetStore(hub)
memory.put(("a",), "one", {"n": 1})
assert len(memory.search(("a",))) == 1
held, over = threading.Event(), threading.Event()

def hold():
    with memory._lock:  # as who is in the middle of a search, or of a write
        held.set()
        over.wait()

holder = threading.Thread(target=hold)
holder.start()
held.wait()
child = os.fork()
if not child:
    signal.alarm(60)
    memory.put(("a",), "two", {"n": 2})
    assert [one.key for one in memory.search(("a",))] == ["one", "two"]
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
over.set()
holder.join()
memory.put(("a",), "three", {"n": 3})
assert [one.key for one in memory.search(("a",))] == ["one", "two", "three"]
hub.close()
"""


def test_a_memory_goes_on_in_a_forked_child(tmp_path: Path) -> None:
    """Whose parent is in the middle of using it."""
    store = tmp_path / "store"
    forked.run([sys.executable, "-c", _MEMORY, str(store)], check=True)
    with ortet.open(store) as hub:
        assert hub.verify().problems == []
