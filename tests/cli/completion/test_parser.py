"""Completion of unfinished command lines: the position, and the candidates."""

from __future__ import annotations

from pathlib import Path

import pytest

from ortet.cli.completion.engine import complete, complete_for_shell
from ortet.cli.completion.parser import (
    CompletionPosition,
    PartialCommandLine,
    VerbTable,
    split_words,
)


@pytest.fixture(scope="module")
def table() -> VerbTable:
    return VerbTable()


@pytest.mark.parametrize(
    ("typed", "kind"),
    [
        ("restore ", "ref"),
        ("restore HEAD ", "file"),
        ("restore HEAD a b ", "file"),
        ("restore -- HEAD ", "file"),
        ("diff -p HEAD ", "ref"),
        ("diff -w proj/1 HEAD ", "ref"),
        ("log -n5 ", "ref"),
        ("log -n 5 --graph ", "ref"),
        ("log HEAD ", ""),
        ("run ", "command"),
        ("run -- ls -", "command"),
        ("run ls --wor", "command"),
        ("facts show ", "fact"),
        ("-C src --json facts show -s ", "session"),
        ("facts show --session=", "session"),
        ("export HEAD ", "ref+file"),
        ("undo --dry-run ", "text"),
    ],
)
def test_the_kind_of_value_at_the_cursor_is_found(table: VerbTable, typed: str, kind: str) -> None:
    place = PartialCommandLine(table, split_words(typed)[0]).position()
    assert (place.kind, place.verbs, place.options) == (kind, [], [])


def test_verbs_and_unused_options_are_offered(table: VerbTable) -> None:
    assert "commit" in dict(PartialCommandLine(table, [""]).position().verbs)
    assert set(dict(PartialCommandLine(table, ["facts", ""]).position().verbs)) == {
        "ls",
        "show",
        "forget",
        "history",
    }
    assert PartialCommandLine(table, ["nonsense", ""]).position() == CompletionPosition()
    options = dict(PartialCommandLine(table, ["log", "--graph", "-"]).position().options)
    assert "--graph" not in options and {"-n", "--limit", "--json"} <= set(options)
    again = dict(
        PartialCommandLine(table, ["run", "--env", "a=b", "--timeout=1", "-"]).position().options
    )
    assert "--env" in again and "--timeout" not in again


def test_partial_line_returns_its_directory_and_option_values(table: VerbTable) -> None:
    line = PartialCommandLine(table, ["-C", "a", "-C", "b", "log", "-qwproj/1", "--limit=3", ""])
    assert line.directory == "a/b"
    assert (line.option_value("--workspace"), line.option_value("-n")) == ("proj/1", "3")
    assert line.option_value("--session") == ""


@pytest.mark.parametrize(
    ("line", "words", "quote"),
    [
        ("", [""], ""),
        ("ortet ", ["ortet", ""], ""),
        ("ortet  a\\ b", ["ortet", "a b"], ""),
        ("ortet 'a b", ["ortet", "a b"], "'"),
        ('ortet "a\\"b" c', ["ortet", 'a"b', "c"], ""),
        ("ortet '' x", ["ortet", "", "x"], ""),
    ],
)
def test_split_reads_words_like_a_shell(line: str, words: list[str], quote: str) -> None:
    assert split_words(line) == (words, quote)


def test_bash_completes_only_the_part_after_a_word_break() -> None:
    assert complete_for_shell("bash", ["ortet --color=al", " =:@"]) == "\nalways\n"
    assert complete_for_shell("bash", ["ortet --color=al", " "]) == "\n--color=always\n"
    assert complete_for_shell("zsh", ["ortet", "--color=al"]) == "\n--color=always\t\n"


def test_completion_without_a_store_creates_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ORTET_URL", str(tmp_path / "none"))
    assert complete(["run", ""]).how == "files"
    with pytest.raises(Exception, match="unable to open"):
        complete(["log", ""])
    assert list(tmp_path.iterdir()) == []
