"""A program that has used its adapters forks, as servers do that load everything first."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import ortet

_PROGRAM = """
import asyncio, os, sys, warnings
import ortet
from ortet.surface.openai_agents import OrtetSession

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


def test_a_conversation_goes_on_in_a_forked_child(tmp_path: Path) -> None:
    store = tmp_path / "store"
    subprocess.run([sys.executable, "-c", _PROGRAM, str(store)], check=True, timeout=120)
    with ortet.open(store) as hub:
        said = [message.content for message in hub.get("x").messages()]
        assert said == ["before", "child", "after"]
        assert hub.verify().problems == []
