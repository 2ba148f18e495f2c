"""Tests wait for conditions and events, never for a fixed time; and what they wait with works."""

from __future__ import annotations

import ast
import asyncio
import fcntl
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.fixtures import waiting
from tests.fixtures.waiting import aeventually, eventually, is_waited_for, loop_turns

TESTS = Path(__file__).parent
MODULES = ("time", "asyncio", "anyio", "trio")

ALLOWED = {
    "fixtures/waiting.py": "the one place that sleeps between two looks at a condition",
    "live/odds.py": "a program that runs in a machine, where it cannot import the tests",
    "e2e/test_cli_agent.py": "the moment of a kill is random: every moment has to be safe",
    "server/test_servers_on_postgres.py": "the moment of a takeover is random, near a lease's end",
}
"""File -> why it sleeps."""


def sleeps(source: str) -> list[int]:
    """Return the lines that call or import a function that sleeps, under any name."""
    tree = ast.parse(source)
    modules = set(MODULES)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules |= {one.asname for one in node.names if one.asname and one.name in MODULES}
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module in MODULES:
            if any(one.name.startswith("sleep") for one in node.names):
                found.add(node.lineno)
        elif (
            isinstance(node, ast.Attribute)
            and node.attr.startswith("sleep")
            and isinstance(node.value, ast.Name)
            and node.value.id in modules
        ):
            found.add(node.lineno)
    return sorted(found)


def files() -> Iterator[tuple[str, str]]:
    for path in sorted(TESTS.rglob("*.py")):
        yield path.relative_to(TESTS).as_posix(), path.read_text()


def test_no_test_sleeps() -> None:
    found = {name: lines for name, text in files() if (lines := sleeps(text))}
    assert {name: lines for name, lines in found.items() if name not in ALLOWED} == {}
    assert {*ALLOWED} <= {*found}, "a file that no longer sleeps leaves the list"


def test_only_one_module_defines_the_limit_of_a_wait() -> None:
    names = {"WAIT", "_WAIT"}
    found = [
        name
        for name, text in files()
        for node in ast.parse(text).body
        if isinstance(node, ast.Assign)
        and any(isinstance(to, ast.Name) and to.id in names for to in node.targets)
    ]
    assert found == ["fixtures/waiting.py"]


@pytest.mark.parametrize(
    "source",
    [
        "import time\ntime.sleep(1)",
        "import time as t\n\nt.sleep(0)",
        "from time import sleep\n",
        "from time import monotonic, sleep as pause\n",
        "import asyncio\nasync def f():\n    await asyncio.sleep(0)",
        "import anyio\nasync def f():\n    await anyio.sleep_forever()",
        "import threading, time\nthreading.Thread(target=time.sleep, args=(9,))",
    ],
)
def test_every_way_to_sleep_is_found(source: str) -> None:
    assert len(sleeps(source)) == 1


@pytest.mark.parametrize(
    "source",
    [
        "import time\ntime.monotonic()",
        "CODE = 'import time; time.sleep(1000)'",
        "class A:\n    def sleep(self): ...\nA().sleep()",
        "from os import sleep_well",
    ],
)
def test_nothing_else_is_taken_for_a_sleep(source: str) -> None:
    assert sleeps(source) == []


def test_eventually_returns_the_first_true_value() -> None:
    values = iter([None, "", "found", "later"])
    assert eventually(lambda: next(values)) == "found"
    assert next(values) == "later"


def test_eventually_raises_what_its_condition_raises() -> None:
    def died() -> bool:
        raise LookupError("the process has ended")

    with pytest.raises(LookupError, match="has ended"):
        eventually(died)


@pytest.mark.parametrize("say", ["nobody came", lambda: "nobody came"])
def test_eventually_fails_with_its_limit_and_a_message(say: str) -> None:
    with pytest.raises(AssertionError, match=r"not within 0(\.\d+)? s: nobody came"):
        eventually(lambda: False, 0.0, say=say)


def test_eventually_looks_once_more_after_a_pause_of_the_host(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock()
    monkeypatch.setattr(waiting, "time", clock)
    looks: list[float] = []

    def look() -> bool:
        looks.append(clock.now)
        clock.now += 1000  # the host stands still
        return len(looks) == 2

    assert eventually(look, 60)
    assert looks[0] < 60 < looks[1]


def test_eventually_multiplies_its_limit_by_the_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(waiting, "time", clock)
    monkeypatch.setattr(waiting, "PATIENCE", 3.0)
    with pytest.raises(AssertionError, match="not within 30 s"):
        eventually(lambda: False, 10)
    assert 30 < clock.now < 30.2
    assert clock.pauses[:3] == [0.001, 0.002, 0.004]
    assert max(clock.pauses) == 0.05


class Clock:
    """Stands in for the module `time`: only sleeping makes time pass."""

    def __init__(self) -> None:
        self.now = 0.0
        self.pauses: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.pauses.append(seconds)


def test_aeventually_takes_plain_and_async_conditions() -> None:
    values = iter([0, 1, 0, 2])

    async def answer() -> int:
        await loop_turns()
        return next(values)

    async def main() -> None:
        assert await aeventually(lambda: next(values)) == 1
        assert await aeventually(answer) == 2
        with pytest.raises(AssertionError, match="not within 0 s: never"):
            await aeventually(lambda: False, 0.0, say="never")

    asyncio.run(main())


def test_aeventually_lets_other_tasks_run() -> None:
    async def main() -> None:
        done = asyncio.Event()
        asyncio.get_running_loop().call_soon(done.set)
        assert await aeventually(done.is_set)

    asyncio.run(main())


def test_a_waiter_for_a_lock_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "lock"

    def lock() -> None:
        with path.open() as file:
            fcntl.flock(file, fcntl.LOCK_EX)

    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert not is_waited_for(path)
        waiter = threading.Thread(target=lock)
        waiter.start()
        eventually(lambda: is_waited_for(path))
    waiter.join()
    assert not is_waited_for(path)
