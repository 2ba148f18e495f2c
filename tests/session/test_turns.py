"""Many look, one moves."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from ortet.session.turns import Turn


@pytest.fixture
def turn(tmp_path: Path) -> Iterator[Turn]:
    turn = Turn(tmp_path)
    yield turn
    turn.close()


def can(home: Path, how: int) -> bool:
    """Whether another could have this turn now."""
    fd = os.open(home / "turn", os.O_RDWR)
    try:
        fcntl.flock(fd, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(fd)
    return True


def test_many_look_at_once(turn: Turn, tmp_path: Path) -> None:
    with turn.looking():
        assert can(tmp_path, fcntl.LOCK_SH)
        assert not can(tmp_path, fcntl.LOCK_EX)


def test_one_moves_alone(turn: Turn, tmp_path: Path) -> None:
    with turn.moving():
        assert not can(tmp_path, fcntl.LOCK_SH)


def test_the_turn_ends_with_the_block_or_the_holder(turn: Turn, tmp_path: Path) -> None:
    for use in (turn.looking, turn.moving):
        with pytest.raises(ZeroDivisionError), use():
            _ = 1 / 0
        assert can(tmp_path, fcntl.LOCK_EX)
    other = Turn(tmp_path)
    with other.moving():
        other.close()
        assert can(tmp_path, fcntl.LOCK_EX)
        other = Turn(tmp_path)
    other.close()
