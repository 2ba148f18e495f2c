"""What is state and what is not: git is the judge of patterns."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from ortet.errors import Invalid
from ortet.machines.capture.ignore_rules import IgnoreRules, parse_ignore_file

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


def test_a_file_may_be_called_size() -> None:
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
