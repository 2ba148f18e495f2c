"""Several processes on one thread, and one that is killed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage
from tests.fixtures import forked
from tests.integrations.langgraph.racer import OF, graph

import ortet
from ortet.integrations.langgraph import OrtetSaver

SOAK = int(os.environ.get("ORTET_SOAK", "1"))
RACER = Path(__file__).parent / "racer.py"


def started(store: Path, *words: str) -> subprocess.Popen[str]:
    process = forked.Popen(
        [sys.executable, str(RACER), str(store), *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def raced(store: Path, seconds: float, several: int) -> None:
    ortet.open(store).close()
    racers = [started(store, "race", f"p{number}", str(seconds)) for number in range(several)]
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.write("go\n")
        racer.stdin.flush()
    taken = []
    for racer in racers:
        out, _ = racer.communicate(timeout=seconds + 240)
        assert racer.returncode == 0
        taken += out.split()
    assert {word.partition("-")[0] for word in taken} == {f"p{n}" for n in range(several)}
    with ortet.open(store) as hub:
        saver = OrtetSaver(hub)
        mine = graph(saver, "after")
        said = [message.content for message in mine.get_state(OF).values["messages"]]
        history = list(saver.list(OF))
        parents: Counter[Any] = Counter(
            one.parent_config["configurable"]["checkpoint_id"] if one.parent_config else None
            for one in history
        )
        saver.close()
        assert hub.verify()
    # no turn that a process was told is taken is lost, or was taken twice
    assert not [word for word in taken if said.count(word) != 1 or f"re {word}" not in said]
    # and no checkpoint has two that follow it
    assert max(parents.values()) == 1


@pytest.mark.slow
@pytest.mark.soak
def test_processes_racing_on_one_thread_keep_its_history_consistent(tmp_path: Path) -> None:
    """Two for a moment, or three for half a minute."""
    raced(tmp_path / "store", min(30, 3 * SOAK), 2 if SOAK == 1 else 3)


@pytest.mark.parametrize(
    ("method", "times", "wanted"),
    [
        ("put", 1, []),
        ("put", 2, ["hello"]),
        ("put_writes", 2, ["hello"]),  # which is between the two
        ("put", 3, ["hello", "re hello"]),
    ],
)
def test_a_killed_graph_continues_from_its_last_stored_step(
    tmp_path: Path, method: str, times: int, wanted: list[str]
) -> None:
    killed(tmp_path / "store", "die", method, str(times))
    with ortet.open(tmp_path / "store") as hub:
        mine = graph(OrtetSaver(hub), "two")
        state = mine.get_state(OF)
        assert [message.content for message in state.values.get("messages", [])] == wanted
        done = mine.invoke(None, OF)
        assert [message.content for message in done["messages"]] == ["hello", "re hello"]
        by = [message.name for message in done["messages"] if message.type == "ai"]
        assert by == ["one" if times == 3 else "two"]


def test_writes_stored_before_a_kill_are_there_afterwards(tmp_path: Path) -> None:
    killed(tmp_path / "store", "write")
    with ortet.open(tmp_path / "store") as hub:
        found = OrtetSaver(hub).get_tuple(OF)
        assert found is not None
        message = AIMessage("done", id="1")
        assert found.pending_writes == [("task", "messages", [message]), ("task", "n", 7)]


def killed(store: Path, *words: str) -> None:
    ortet.open(store).close()
    process = started(store, *words)
    process.communicate("go\n")
    assert process.returncode == -9
