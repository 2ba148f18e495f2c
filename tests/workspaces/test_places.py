"""Directories a workspace may be in."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ortet.errors import Invalid, NotFound
from ortet.workspaces.table import check_outside_store, existing_directory, real_path


def test_symlinks_in_a_workspace_path_are_resolved(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("target")
    assert real_path(tmp_path / "link/new") == tmp_path / "target/new"


def test_relative_workspace_path_is_made_absolute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert real_path("x/../y") == tmp_path / "y"
    assert existing_directory(".") == tmp_path


@pytest.mark.parametrize("view", ["/proc/{pid}/root", "/proc/self/cwd", "/proc/self/root/etc"])
def test_a_view_into_a_process_is_not_resolved(view: str) -> None:
    for find in (real_path, existing_directory):
        with pytest.raises(Invalid, match="directory of the host"):
            find(view.format(pid=os.getpid()))


def test_missing_directory_or_a_file_is_refused_as_workspace(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(Invalid, match="give the directory it is in"):
        existing_directory(tmp_path / "file")
    with pytest.raises(NotFound, match="create it first"):
        existing_directory(tmp_path / "missing")


def test_workspace_that_contains_or_lies_in_the_store_is_refused(tmp_path: Path) -> None:
    store = tmp_path / "a/store"
    for place in (store, store / "x", tmp_path / "a", tmp_path, Path("/")):
        with pytest.raises(Invalid, match="put the store elsewhere"):
            check_outside_store(store, place)
    for place in (tmp_path / "a/store2", tmp_path / "b", tmp_path / "a/stor"):
        assert check_outside_store(store, place) == place
