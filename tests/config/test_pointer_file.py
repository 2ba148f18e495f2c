"""The `.ortet` file: found from below, written without a trace, hidden from git."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from ortet.config.pointer_file import find_pointer, write_pointer
from ortet.errors import Invalid, Refused


def git(*args: str, cwd: Path) -> str:
    done = subprocess.run(
        ["git", "-c", "user.name=t", "-c", "user.email=t@t", *args],
        cwd=cwd,
        check=True,
        capture_output=True,
        text=True,
    )
    return done.stdout


class TestRoundTrip:
    @pytest.mark.parametrize("workspace", ["proj", "proj/1", "a#b", "50%41", "ünïcode", ""])
    @pytest.mark.parametrize(
        "store", ["/store", "/with #hash", "/with\nline", "/with\rreturn", "/bytes\udcff", "/50%41"]
    )
    def test_a_written_pointer_reads_back_unchanged(
        self, tmp_path: Path, store: str, workspace: str
    ) -> None:
        from ortet.config.environment import store_path

        write_pointer(tmp_path, Path(store), workspace)
        found = find_pointer(tmp_path)
        assert found is not None
        assert (found.directory, found.workspace) == (tmp_path, workspace)
        assert store_path(found.url) == Path(store)

    def test_the_nearest_pointer_is_used(self, tmp_path: Path) -> None:
        deep = tmp_path / "a/b/c"
        deep.mkdir(parents=True)
        write_pointer(tmp_path, Path("/far"), "far")
        write_pointer(tmp_path / "a", Path("/near"), "near")
        assert find_pointer(deep).workspace == "near"  # type: ignore[union-attr]
        assert find_pointer(tmp_path).workspace == "far"  # type: ignore[union-attr]

    def test_a_directory_named_ortet_is_no_pointer(self, tmp_path: Path) -> None:
        write_pointer(tmp_path, Path("/store"), "x")
        (tmp_path / "sub/.ortet").mkdir(parents=True)
        assert find_pointer(tmp_path / "sub").workspace == "x"  # type: ignore[union-attr]

    def test_a_pointer_without_a_workspace_name_is_valid(self, tmp_path: Path) -> None:
        (tmp_path / ".ortet").write_text("/store\n")
        found = find_pointer(tmp_path)
        assert found is not None
        assert (found.url, found.workspace) == ("/store", "")

    @pytest.mark.parametrize("text", [b"", b"\n", b"#name\n", b"/a\n/b\n", b"/a\0b\n"])
    def test_a_broken_pointer_is_refused_with_advice(self, tmp_path: Path, text: bytes) -> None:
        (tmp_path / ".ortet").write_bytes(text)
        with pytest.raises(Invalid, match="run `ortet init` again") as caught:
            find_pointer(tmp_path)
        assert caught.value.kind == "bad_pointer"

    @pytest.mark.root
    def test_an_unreadable_pointer_is_refused_with_the_reason(self, tmp_path: Path) -> None:
        tmp_path.chmod(0o755)
        (tmp_path / ".ortet").write_text("/store\n")
        (tmp_path / ".ortet").chmod(0)
        here = os.open(tmp_path, os.O_RDONLY)
        try:
            os.seteuid(65534)
            with pytest.raises(Invalid, match="Permission denied"):
                find_pointer(Path(f"/proc/self/fd/{here}"))
        finally:
            os.seteuid(0)
            os.close(here)


class TestWrite:
    def test_the_directory_keeps_its_mtime(self, tmp_path: Path) -> None:
        os.utime(tmp_path, ns=(1, 123_456_789))
        for name in ("one", "another", "one"):
            write_pointer(tmp_path, Path("/store"), name)
            assert tmp_path.stat().st_mtime_ns == 123_456_789

    def test_a_pointer_in_an_unwritable_directory_is_refused_with_the_reason(
        self, tmp_path: Path
    ) -> None:
        (tmp_path / ".ortet").mkdir()
        with pytest.raises(Refused, match="make it writable"):
            write_pointer(tmp_path, Path("/store"), "x")


class TestGit:
    @pytest.fixture
    def repository(self, tmp_path: Path) -> Path:
        place = tmp_path / "repo"
        place.mkdir()
        git("init", "-q", cwd=place)
        git("commit", "-q", "--allow-empty", "-m", "x", cwd=place)
        return place

    @pytest.mark.parametrize("below", [".", "sub/dir", "odd [a] *?\\ !#", "ünï"])
    def test_git_does_not_see_the_pointer(self, repository: Path, below: str) -> None:
        place = repository / below
        place.mkdir(parents=True, exist_ok=True)
        for _ in range(2):
            write_pointer(place, Path("/store"), "x")
        (place / "seen").touch()
        shown = git("status", "--porcelain", "-uall", "-z", cwd=repository).split("\0")
        assert shown == [f"?? {os.path.normpath(f'{below}/seen')}", ""]

    def test_git_does_not_see_the_pointer_in_a_worktree(self, repository: Path) -> None:
        tree = repository / "tree"
        git("worktree", "add", "-q", str(tree), cwd=repository)
        write_pointer(tree, Path("/store"), "x")
        assert git("status", "--porcelain", "-uall", cwd=tree) == ""

    def test_a_git_exclude_file_that_cannot_be_written_is_left_alone(
        self, repository: Path
    ) -> None:
        exclude = repository / ".git/info/exclude"
        exclude.unlink(missing_ok=True)
        exclude.mkdir(parents=True)  # root may write every file
        write_pointer(repository, repository.parent / "store", "w")
        assert find_pointer(repository) is not None

    def test_an_exclude_file_without_a_last_newline_is_kept(self, repository: Path) -> None:
        exclude = repository / ".git/info/exclude"
        exclude.write_text("*.tmp")
        write_pointer(repository, Path("/store"), "x")
        assert exclude.read_text() == "*.tmp\n/.ortet\n"

    def test_a_git_file_that_names_a_missing_directory_is_ignored(self, tmp_path: Path) -> None:
        (tmp_path / ".git").write_text("gitdir: /nowhere\n")
        write_pointer(tmp_path, Path("/store"), "x")
        assert find_pointer(tmp_path) is not None
