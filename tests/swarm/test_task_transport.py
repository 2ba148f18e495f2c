"""How a task is sent to another process."""

from __future__ import annotations

import functools
import subprocess
import sys
import threading
import types
from pathlib import Path
from typing import Any

import pytest
from tests.fixtures import forked
from tests.swarm import tasks

from ortet.errors import Invalid
from ortet.hub.hub import hub_of
from ortet.sessions.session import Session
from ortet.swarm.task_transport import pack_task, unpack_task


def test_importable_functions_are_sent_by_name() -> None:
    for task in (tasks.number, tasks.Adder(5), functools.partial(tasks.number)):
        assert callable(unpack_task(pack_task(task, "task")))
    assert pack_task(tasks.number, "task").label == "tests.swarm.tasks:number"
    assert unpack_task(pack_task("make test", "task")) == "make test"
    assert unpack_task(pack_task(("make", "test"), "task")) == ["make", "test"]


def test_callable_object_keeps_its_arguments_in_the_worker(mind: Session) -> None:
    assert mind.swarm(tasks.Adder(10), n=2).winners[0].score == 11


def test_a_closure_is_sent_by_value(mind: Session) -> None:
    more = 20
    assert mind.swarm(lambda s, i: i + more, n=2).winners[0].score == 21


def test_without_cloudpickle_a_closure_is_refused(
    mind: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    with pytest.raises(
        Invalid, match=r"define it with def .* or `pip install ortet\[swarm\]`"
    ) as e:
        mind.swarm(lambda s, i: i, n=2)
    assert e.value.kind == "bad_task"


def test_a_closure_over_a_lock_is_refused(mind: Session) -> None:
    lock = threading.Lock()
    with pytest.raises(Invalid, match="open there what it needs"):
        mind.swarm(lambda s, i: lock.locked(), n=2)


SCRIPT = """
import sys, ortet

def task(session, i):
    return i * 2

MAIN:
    with ortet.open(sys.argv[1]) as hub, hub.session("script") as s:
        print(s.swarm(task, n=2).winners[0].score)
"""


def run_script(place: Path, body: str) -> subprocess.CompletedProcess[str]:
    file = place / "script.py"
    file.write_text(body)
    words: list[Any] = [sys.executable, file, place / "store"]
    return forked.run(words, capture_output=True, text=True, check=False)


def test_function_defined_in_a_script_can_be_a_task(tmp_path: Path) -> None:
    done = run_script(tmp_path, SCRIPT.replace("MAIN", "if __name__ == '__main__'"))
    assert (done.stdout, done.stderr) == ("2.0\n", "")


def test_script_without_a_main_guard_is_refused(tmp_path: Path) -> None:
    done = run_script(tmp_path, SCRIPT.replace("MAIN", "if True"))
    assert done.returncode != 0
    assert "`if __name__ == '__main__':`" in done.stderr


def test_task_of_a_module_that_cannot_be_imported_is_refused(
    mind: Session, monkeypatch: Any
) -> None:
    module = types.ModuleType("only_here")
    exec("def task(session, i): return i", module.__dict__)
    monkeypatch.setitem(sys.modules, "only_here", module)
    with pytest.raises(Invalid, match="No module named 'only_here'"):
        mind.swarm(module.task, n=2)
    assert hub_of(mind).swarms.all(mind) == []
