"""Many look, one moves."""

from __future__ import annotations

import fcntl
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.fixtures.waiting import eventually, is_waited_for

from ortet.errors import Conflict, NotFound
from ortet.workspaces.machine_homes import MachineLock, lock_for_removal


@pytest.fixture
def turn(tmp_path: Path) -> Iterator[MachineLock]:
    turn = MachineLock(tmp_path)
    yield turn
    turn.close()


def can(home: Path, how: int, name: str = "turn") -> bool:
    """Whether another could have this lock now."""
    fd = os.open(home / name, os.O_RDWR)
    try:
        fcntl.flock(fd, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(fd)
    return True


def test_shared_turn_allows_other_readers_and_no_writer(turn: MachineLock, tmp_path: Path) -> None:
    with turn.shared():
        assert can(tmp_path, fcntl.LOCK_SH)
        assert not can(tmp_path, fcntl.LOCK_EX)


def test_exclusive_turn_allows_no_reader(turn: MachineLock, tmp_path: Path) -> None:
    with turn.exclusive():
        assert not can(tmp_path, fcntl.LOCK_SH)


def test_turn_is_released_when_the_block_or_the_holder_ends(
    turn: MachineLock, tmp_path: Path
) -> None:
    for use in (turn.shared, turn.exclusive):
        with pytest.raises(ZeroDivisionError), use():
            _ = 1 / 0
        assert can(tmp_path, fcntl.LOCK_EX)
    other = MachineLock(tmp_path)
    with other.exclusive():
        other.close()
        assert can(tmp_path, fcntl.LOCK_EX)
        other = MachineLock(tmp_path)
    other.close()


def test_forked_child_process_waits_for_its_parents_turn(turn: MachineLock, tmp_path: Path) -> None:
    with turn.exclusive():
        child = os.fork()
        if child == 0:
            try:
                turn.shared().__enter__()  # waits for its parent
                os._exit(0)
            finally:
                os._exit(1)

        def child_waits() -> bool:
            assert os.waitpid(child, os.WNOHANG) == (0, 0)
            return is_waited_for(tmp_path / "turn")

        eventually(child_waits)
        assert not can(tmp_path, fcntl.LOCK_SH)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


class TestPresence:
    def test_directory_open_elsewhere_cannot_be_removed(
        self, turn: MachineLock, tmp_path: Path
    ) -> None:
        with (
            pytest.raises(Conflict, match="close it there first"),
            lock_for_removal(tmp_path, "proj"),
        ):
            pass
        other = MachineLock(tmp_path)  # many have it open
        other.close()

    def test_closed_directory_can_be_removed(self, tmp_path: Path) -> None:
        with lock_for_removal(tmp_path / "missing", "proj"):
            pass
        MachineLock(tmp_path).close()
        with lock_for_removal(tmp_path, "proj"):
            assert not can(tmp_path, fcntl.LOCK_SH, "open")
        assert can(tmp_path, fcntl.LOCK_EX, "open")

    def test_opening_a_directory_while_it_is_removed_is_not_found(self, tmp_path: Path) -> None:
        home = tmp_path / "home"
        home.mkdir()
        MachineLock(home).close()
        found: list[Exception] = []

        def enter() -> None:
            try:
                MachineLock(home)
            except NotFound as error:
                found.append(error)

        with lock_for_removal(home, "proj"):
            waiter = threading.Thread(target=enter)
            waiter.start()

            def waiter_waits() -> bool:
                assert waiter.is_alive()
                return is_waited_for(home / "open")

            eventually(waiter_waits)
            shutil.rmtree(home)
        waiter.join()
        assert len(found) == 1
