"""What is state and what is not: git is the judge of patterns."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from ortet._util.codec import Hasher
from ortet.backends.local.memory import MemoryBucket
from ortet.errors import Invalid
from ortet.history.tree.tree import Trees
from ortet.ids import SystemClock
from ortet.machines.capture.frames import DirectoryScan, ScanPlan, compare_all
from ortet.machines.capture.ignore_rules import IgnoreFilter, IgnoreRules, parse_ignore_file
from ortet.machines.capture.stat_index import DirectoryNode, StatIndex
from ortet.objects.store import PackedObjectStore

FILES = [
    "a", "b", "a.log", "keep.log", "foo bar", "trail ", "#hash", "!bang", "back\\slash", "[x]", "x",
    "build/out", "build/keep/out", "src/build/out", "src/a.log", "src/deep/a.log", "src/deep/b",
    "src/deep/er/a", "doc/a.txt", "doc/sub/a.txt", "doc/sub/b.txt", "lib/x.o", "lib/y.o", "lib/z.c",
    "lib/-.o", "lib/].o", "foo/bar/baz", "foo/baz", "foo/x/y/baz", "é/ü", "size", ".hidden",
]  # fmt: skip

CASES: list[dict[str, str]] = [
    {"": "*.log\n!keep.log\n"},
    {"": "# comment\n\n   \na\n"},
    {"": "/a\n"},
    {"": "build/\n"},
    {"": "/build/\n!/build/keep/\n"},
    {"": "build/*\n!build/keep/\n"},
    {"": "src/deep\n"},
    {"": "**/deep/*\n"},
    {"": "foo/**/baz\n"},
    {"": "foo/**\n"},
    {"": "**/baz\n"},
    {"": "**\n!doc/\n!doc/**\n"},
    {"": "doc/**/b.txt\n"},
    {"": "\\#hash\n\\!bang\nback\\\\slash\n"},
    {"": "foo bar\ntrail\\ \n"},
    {"": "trail   \n"},
    {"": "lib/[xy].o\n"},
    {"": "lib/[!xy].o\n"},
    {"": "lib/[^x]*\n"},
    {"": "lib/[x-z].?\n"},
    {"": "lib/[]-].o\n"},
    {"": "lib/[z-a].o\n"},
    {"": "[[]x]\n"},
    {"": "lib/[x\n"},
    {"": "?\n"},
    {"": "*\n!*/\n!*.txt\n"},
    {"": "é/*\n"},
    {"": ".*\n"},
    {"": "*.log\n", "src": "!a.log\n"},
    {"": "*.log\n", "src": "!a.log\n", "src/deep": "a.log\n"},
    {"src": "/deep/b\nbuild\n", "doc": "*.txt\n!sub/a.txt\n"},
    {"doc/sub": "/a.txt\n", "doc": "!*\n"},
    {"": "a\r\nb\n"},
    {"": "x**y\n**x\nlib/**.o\n"},
    {"": "/\n//\n!\n"},
]


@pytest.mark.parametrize("files", CASES)
def test_ignore_patterns_match_the_same_files_as_in_git(
    tmp_path: Path, files: dict[str, str]
) -> None:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    rules = IgnoreRules()
    for directory, text in files.items():
        (tmp_path / directory).mkdir(parents=True, exist_ok=True)
        (tmp_path / directory / ".gitignore").write_text(text, newline="")
        rules.set_rules(directory.encode(), text.encode())
    for name in FILES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    listed = subprocess.run(
        ["git", "-C", str(tmp_path), "ls-files", "-z", "--others", "--exclude-standard"],
        check=True,
        capture_output=True,
    ).stdout.split(b"\0")
    theirs = {name.decode() for name in listed if name} - {f"{d}/.gitignore" for d in files}
    ours = {name for name in FILES if not left_out(rules, name.encode())}
    assert ours == theirs - {".gitignore"}


def left_out(rules: IgnoreRules, path: bytes) -> bool:
    """As a walk meets it: what is below an ignored directory is never asked for."""
    parts = path.split(b"/")
    above = [b"/".join(parts[:n]) for n in range(1, len(parts))]
    return any(rules.is_ignored(one, True) for one in above) or rules.is_ignored(path, False)


def test_without_rules_only_ortet_files_are_ignored() -> None:
    rules = IgnoreRules()
    assert rules.is_empty
    assert rules.is_ignored(b".ortet", False)
    assert not rules.is_ignored(b".ortet", True)
    assert not rules.is_ignored(b"sub/.ortet", False)
    assert rules.is_ignored(b".ortet.stage.01", True)
    assert rules.is_ignored(b"sub/.ortet.stage.x", False)
    assert not rules.is_ignored(b".ortetignore", False)
    assert not rules.is_ignored(b".git", True)


def test_the_rule_file_itself_is_part_of_the_state() -> None:
    rules = IgnoreRules()
    rules.set_rules(b"", b"*\n")
    assert rules.is_ignored(b"anything", False)
    assert not rules.is_ignored(b".ortetignore", False)


@pytest.mark.parametrize(
    ("line", "limit"),
    [
        ("size > 500MB", 500_000_000),
        ("size>1KiB", 1024),
        ("size >  1.5 GiB", 3 << 29),
        ("size > 12b", 12),
        ("size > 2tb", 2 * 10**12),
        ("size > 0B", 0),
    ],
)
def test_a_size_rule_sets_the_limit_in_its_unit(line: str, limit: int) -> None:
    rules = IgnoreRules()
    rules.set_rules(b"", line.encode())
    assert rules.size_limit(b"any/file") == limit
    assert not rules.is_ignored(b"any/file", False)


def test_the_last_size_line_that_matches_decides() -> None:
    rules = IgnoreRules()
    rules.set_rules(b"", b"size > 1KB\nsize > 1GB *.db\n!a.bin\n")
    assert rules.size_limit(b"x/y.db") == 10**9
    assert rules.size_limit(b"x/y.bin") == 1000
    rules.set_rules(b"x", b"size > 2KB /y.db\n")
    assert rules.size_limit(b"x/y.db") == 2000
    assert rules.size_limit(b"x/z/y.db") == 10**9


@pytest.mark.parametrize(
    "line", ["size > lots", "size > 5", "size >", "size > -1KB", "size > 1XB *"]
)
def test_a_size_rule_without_a_valid_size_is_refused(line: str) -> None:
    with pytest.raises(Invalid) as caught:
        parse_ignore_file(f"a\n{line}\n".encode(), "src")
    assert caught.value.kind == "bad_rule"
    assert "src/.ortetignore line 2" in caught.value.message


def test_a_file_named_size_can_be_ignored() -> None:
    rules = IgnoreRules()
    rules.set_rules(b"", b"size\n\\size > 5\n")
    assert rules.is_ignored(b"size", False)
    assert rules.is_ignored(b"size > 5", False)


def test_digest_tells_where_rules_changed() -> None:
    rules = IgnoreRules()
    assert rules.digest(b"a/b") == b""
    rules.set_rules(b"a", b"x\n")
    below, beside = rules.digest(b"a/b"), rules.digest(b"c")
    assert below and not beside
    rules.set_rules(b"", b"y\n")
    assert rules.digest(b"a/b") != below and rules.digest(b"c") != beside
    rules.set_rules(b"", None)
    assert (rules.digest(b"a/b"), rules.digest(b"c")) == (below, beside)
    rules.remove_below(b"a")
    assert rules.is_empty


class Setting:
    def __init__(self, root: Path) -> None:
        self.root = root / "root"
        self.root.mkdir()
        objects = PackedObjectStore(
            root / "store", MemoryBucket(), hasher=Hasher(), clock=SystemClock()
        )
        self.index = StatIndex(Trees(objects))
        self.rules = IgnoreRules()
        self.sieve = IgnoreFilter(self.index, self.rules)
        self.fd = os.open(self.root, os.O_RDONLY)

    def frame(self, node: DirectoryNode | None = None) -> DirectoryScan:
        return DirectoryScan(node or DirectoryNode(), b"", fd=self.fd, name="", plan=ScanPlan())


@pytest.fixture
def setting(tmp_path: Path) -> Iterator[Setting]:
    setting = Setting(tmp_path)
    yield setting
    os.close(setting.fd)


def test_an_ignore_file_is_read_with_its_directory(setting: Setting) -> None:
    (setting.root / ".ortetignore").write_text("x\nsize > 5B\n")
    frame = setting.frame()
    setting.sieve.apply(frame, compare_all(frame))
    assert frame.plan is None, "new rules: everything below is looked at"
    assert setting.sieve.is_left_out(frame, "x", 0o100644, size=1)
    assert not setting.sieve.is_left_out(frame, "y", 0o100644, size=5)
    assert setting.sieve.is_left_out(frame, "y", 0o100644, size=6)
    assert not setting.sieve.is_left_out(frame, "y", 0o040755, size=4096)
    ((name, (loss,)),) = setting.index.losses[b""].items()
    assert (name, loss.path, loss.what) == ("y", "y", "size")


def test_a_known_name_that_becomes_ignored_is_reported_as_gone(setting: Setting) -> None:
    node = DirectoryNode()
    for name in ("keep", "drop"):
        (setting.root / name).write_text(name)
        node.put(name, (0o100644, 1, 1, 1, 0, 0, 4, 0, 0))
    (setting.root / ".ortetignore").write_text("drop\n")
    frame = setting.frame(node)
    found = compare_all(frame)
    setting.sieve.apply(frame, found)
    assert found.removed == {"drop"}
    again = setting.frame(node)
    setting.sieve.apply(again, compare_all(again))
    assert again.plan is not None, "nothing new"


@pytest.mark.parametrize("kind", ["link", "directory", "fifo"])
def test_an_ignore_file_that_is_not_a_regular_file_is_not_read(setting: Setting, kind: str) -> None:
    place = setting.root / ".ortetignore"
    (setting.root / "other").write_text("*\n")
    if kind == "link":
        place.symlink_to("other")
    elif kind == "directory":
        place.mkdir()
    else:
        os.mkfifo(place)
    frame = setting.frame()
    setting.sieve.apply(frame, compare_all(frame))
    assert setting.rules.is_empty


def test_reload_knows_where_rules_changed(setting: Setting) -> None:
    (setting.root / "d").mkdir()
    (setting.root / ".ortetignore").write_text("x\n")
    (setting.root / "d" / ".ortetignore").write_text("y\n")
    top, below, beside = DirectoryNode(), DirectoryNode(), DirectoryNode()
    governed = [(b"", top), (b"d", below), (b"e", beside)]
    ruled = [b"", b"d"]
    assert setting.sieve.reload(setting.fd, ruled, governed) == [b"", b"d", b"e"]
    for path, node in governed:
        node.rules_digest = setting.rules.digest(path)
    assert setting.sieve.reload(setting.fd, ruled, governed) == []
    (setting.root / "d" / ".ortetignore").write_text("z\n")
    assert setting.sieve.reload(setting.fd, ruled, governed) == [b"d"]
    assert setting.sieve.reload(setting.fd, [b""], governed) == [b"d"], "its file is gone"
