"""The order of removals and of restore steps, without a restore."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from ortet.history.records import TreeEntry
from ortet.machines.dirfd import DirFdCache, open_directory
from ortet.machines.restore.compare_images import PathChange, RestorePlan
from ortet.machines.restore.step_order import needs_metadata, order_removals, order_steps
from ortet.machines.restore.steps import DropStep, KeepStep

FOLDER = TreeEntry(b"d", stat.S_IFDIR | 0o755, 0)
FILE = TreeEntry(b"f", stat.S_IFREG | 0o644, 0)
REMOVED = PathChange(b"d", FOLDER, None)
BELOW = [(b"d/e", FOLDER), (b"d/f", FILE), (b"d/e/f", FILE)]


def removed_paths(kept: set[bytes], *, piecemeal: bool) -> list[bytes]:
    moves = order_removals(REMOVED, BELOW, kept, piecemeal=piecemeal)
    return [move.path for move in moves]


def test_a_directory_that_can_be_renamed_is_removed_in_one_step() -> None:
    assert removed_paths(set(), piecemeal=False) == [b"d"]


def test_removals_one_by_one_take_the_deepest_first() -> None:
    assert removed_paths(set(), piecemeal=True) == [b"d/e/f", b"d/f", b"d/e", b"d"]


def test_directories_with_ignored_files_stay_and_lose_the_rest() -> None:
    assert removed_paths({b"d"}, piecemeal=False) == [b"d/f", b"d/e"]
    assert removed_paths({b"d", b"d/e"}, piecemeal=False) == [b"d/e/f", b"d/f"]


@pytest.mark.parametrize(("piecemeal", "step"), [(True, DropStep), (False, KeepStep)])
def test_metadata_precedes_every_removal(tmp_path: Path, piecemeal: bool, step: type) -> None:
    (tmp_path / "d").mkdir()
    plan = RestorePlan([REMOVED], [], [PathChange(b"", FOLDER, FOLDER)], {b""})
    with open_directory(tmp_path) as root, DirFdCache(root) as dirs:
        steps = list(
            order_steps(
                plan,
                [REMOVED],
                {},
                dirs=dirs,
                touched_dirs={b""},
                piecemeal=piecemeal,
                is_present=lambda _: True,
            )
        )
    assert steps[0].path == b""
    assert isinstance(steps[-1], step) and steps[-1].path == b"d"


def test_metadata_is_needed_if_names_or_attributes_changed() -> None:
    same = PathChange(b"d", FOLDER, FOLDER)
    assert not needs_metadata(same, set())
    assert needs_metadata(same, {b"d"})
    other = TreeEntry(b"d", stat.S_IFDIR | 0o700, 0)
    assert needs_metadata(PathChange(b"d", FOLDER, other), set())
