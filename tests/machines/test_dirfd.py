"""Directories by descriptors: no link followed, no depth too deep."""

from __future__ import annotations

import errno
import gc
import os
import sys
from pathlib import Path

import pytest
from tests.fixtures import forked

from ortet.errors import Corrupt, Refused, Unavailable, Unsupported
from ortet.machines.dirfd import (
    DirFdCache,
    check_name,
    join_path,
    open_directory,
    remove_tree,
    translate_os_error,
    writable_for_rename,
)


def _descend(path: Path, depth: int) -> None:
    """A chain of directories with a file in each, far beyond PATH_MAX and the recursion limit."""
    fd = os.open(path, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir(b"down", dir_fd=fd)
        os.close(os.open(b"file", os.O_CREAT | os.O_WRONLY, dir_fd=fd))
        inner = os.open(b"down", os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = inner
    os.close(fd)


def test_deep_paths_are_opened_with_few_descriptors(place: Path) -> None:
    _descend(place, 3000)
    with open_directory(place) as top, DirFdCache(top, max_open=8) as dirs:
        before = len(os.listdir("/proc/self/fd"))
        deepest = dirs.fd(b"/".join([b"down"] * 3000))
        assert os.listdir(deepest) == []
        assert os.listdir(dirs.fd(b"down/down")) != []
        assert len(os.listdir("/proc/self/fd")) <= before + 8
        assert dirs.fd(b"") == top


def test_a_link_on_the_way_is_not_followed(place: Path) -> None:
    (place / "real" / "inner").mkdir(parents=True)
    (place / "link").symlink_to("real")
    with open_directory(place) as top, DirFdCache(top) as dirs:
        dirs.fd(b"real/inner")
        for path in (b"link", b"link/inner"):
            with pytest.raises(OSError) as error:
                dirs.fd(path)
            assert error.value.errno in (errno.ELOOP, errno.ENOTDIR)


@pytest.mark.parametrize("name", [b"", b".", b"..", b"a/b", b"/", b"a\0b"])
def test_names_that_could_lead_outside_are_refused(place: Path, name: bytes) -> None:
    with pytest.raises(Corrupt) as error:
        check_name(name)
    assert error.value.kind == "bad_name"
    (place / "x/a/b").mkdir(parents=True)
    with open_directory(place) as top, DirFdCache(top) as dirs:
        for path in (b"x/" + name + b"/..", b"x/" + name + b"//y", b"../" + name):
            with pytest.raises(Corrupt):
                dirs.open_parent(path)


def test_remove_takes_any_depth_away(place: Path) -> None:
    (place / "tree").mkdir()
    _descend(place / "tree", 3000)
    (place / "outside").write_text("stays")
    (place / "tree" / "link").symlink_to(place / "outside")
    with open_directory(place) as at:
        gc.collect()  # what earlier tests left open
        before = set(os.listdir("/proc/self/fd"))
        remove_tree(at, b"tree")
        remove_tree(at, b"tree")  # nothing there is no error
        assert set(os.listdir("/proc/self/fd")) - before == set()
    assert sorted(os.listdir(place)) == ["outside"]


def test_remove_unlinks_a_link_and_not_what_it_leads_to(place: Path) -> None:
    (place / "real").mkdir()
    (place / "real" / "file").write_text("stays")
    (place / "link").symlink_to("real")
    with open_directory(place) as at:
        remove_tree(at, b"link")
    assert (place / "real" / "file").read_text() == "stays"
    assert not (place / "link").is_symlink()


def test_remove_completes_an_interrupted_remove(place: Path) -> None:
    tree = place / "tree"
    for name in (".ortet.stage.0/x", ".ortet.stage.1/y", "deep/down/z"):
        (tree / name).mkdir(parents=True)
    with open_directory(place) as at:
        remove_tree(at, b"tree")
    assert os.listdir(place) == []


def test_an_unprivileged_owner_removes_and_moves_closed_directories(place: Path) -> None:
    code = (
        "import os\n"
        "from ortet.machines.dirfd import open_directory, writable_for_rename, remove_tree\n"
        "os.setgid(65534); os.setuid(65534)\n"
        f"os.chdir({str(place)!r})\n"
        "os.makedirs('t/a/b/c'); os.makedirs('t/m/n'); os.mkdir('to')\n"
        "for p in ('t/a/b/c', 't/a/b', 't/a', 't/m/n'): os.chmod(p, 0)\n"
        "os.chmod('t/m', 0o555)\n"
        "with open_directory('.') as at, open_directory('t') as t:\n"
        "    with writable_for_rename(t, b'm'):\n"
        "        os.rename('m', 'to/m', src_dir_fd=t, dst_dir_fd=at)\n"
        "    assert os.stat('to/m').st_mode & 0o777 == 0o555\n"
        "    remove_tree(at, b't'); remove_tree(at, b'to')\n"
        "assert os.listdir('.') == [], os.listdir('.')\n"
    )
    forked.run([sys.executable, "-c", code], check=True)


def test_writable_for_rename_leaves_a_file_unchanged(place: Path) -> None:
    (place / "file").write_text("")
    (place / "file").chmod(0)
    with open_directory(place) as at, writable_for_rename(at, b"file"):
        os.rename("file", "moved", src_dir_fd=at, dst_dir_fd=at)
    assert (place / "moved").stat().st_mode & 0o777 == 0


@pytest.mark.parametrize(
    ("code", "kind", "cls"),
    [
        (errno.ENOSPC, "disk_full", Unavailable),
        (errno.EDQUOT, "disk_full", Unavailable),
        (errno.EACCES, "not_permitted", Refused),
        (errno.EROFS, "not_permitted", Refused),
        (errno.ENAMETOOLONG, "file_system", Unsupported),
        (errno.EXDEV, "crosses_mount", Unsupported),
        (errno.EIO, "io_error", Unavailable),
    ],
)
def test_errors_of_the_system_say_what_to_do(code: int, kind: str, cls: type) -> None:
    error = translate_os_error(OSError(code, os.strerror(code)), "cannot write x")
    assert isinstance(error, cls)
    assert error.kind == kind
    assert error.message.startswith("cannot write x: ")
    assert ";" in error.message


def test_join_puts_a_slash_only_between_two_parts() -> None:
    assert (join_path(b"", b"a"), join_path(b"a/b", b"c")) == (b"a", b"a/b/c")
