"""What crashes leave is found and removed; what is in use is not."""

from __future__ import annotations

import fcntl
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from tests.fixtures.waiting import WAIT

from ortet.machines.cleanup import Leftover, find_leftovers, remove_leftovers


@pytest.fixture
def store(place: Path) -> Path:
    for name in ("machines", "bases", "signal"):
        (place / "store/local" / name).mkdir(parents=True)
    return place / "store"


def test_machine_homes_without_a_workspace_are_removed_unless_locked(store: Path) -> None:
    machines = store / "local/machines"
    for name in ("known", "lost", "open"):
        (machines / name).mkdir()
        (machines / name / "lock").touch()
    (machines / "lost/deep").mkdir()
    (machines / "lost/deep").chmod(0)
    with (machines / "open/lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        found = find_leftovers(store, {"known"})
    assert found == [Leftover("home", str(machines / "lost"))]
    assert remove_leftovers(found) == 1
    assert sorted(path.name for path in machines.iterdir()) == ["known", "open"]
    assert remove_leftovers(found) == 1  # again is no error


def test_a_supervisor_without_a_hub_is_found_and_killed(store: Path) -> None:
    home = store / "local/machines/known"
    home.mkdir()
    command = [sys.executable, "-c", "print(1, flush=True); input()", "zygote.py"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as one:
        assert one.stdout is not None
        one.stdout.readline()
        (home / "root").symlink_to(f"/proc/{one.pid}/root")
        found = find_leftovers(store, {"known"})
        assert found == [Leftover("process", str(home), one.pid)]
        remove_leftovers(found)
        assert one.wait(WAIT) == -9
    assert find_leftovers(store, {"known"}) == []


def test_half_made_layers_are_removed_unless_the_build_lock_is_held(store: Path) -> None:
    bases = store / "local/bases"
    (bases / "abc.new").mkdir()
    (bases / "probe-x").mkdir()
    (bases / "abc").mkdir()
    with (bases / "build.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert find_leftovers(store, ()) == []
    found = find_leftovers(store, ())
    assert [Path(left.path).name for left in found] == ["abc.new", "probe-x"]
    remove_leftovers(found)
    assert sorted(path.name for path in bases.iterdir()) == ["abc", "build.lock"]


def test_signal_sockets_of_dead_processes_are_removed(store: Path) -> None:
    signal = store / "local/signal"
    living = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    dead = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    living.bind(str(signal / "living.sock"))
    dead.bind(str(signal / "dead.sock"))
    dead.close()
    found = find_leftovers(store, ())
    assert found == [Leftover("socket", str(signal / "dead.sock"))]
    remove_leftovers(found)
    living.close()
    assert [path.name for path in signal.iterdir()] == ["living.sock"]


def test_a_missing_store_has_no_leftovers(place: Path) -> None:
    assert find_leftovers(place / "nowhere", ()) == []
