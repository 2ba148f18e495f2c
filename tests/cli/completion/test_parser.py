"""Where an unfinished command line stands, and what a shell is answered."""

from __future__ import annotations

from pathlib import Path

import pytest

from ortet.cli.completion.engine import answer, complete
from ortet.cli.completion.parser import Line, Place, Table, split


@pytest.fixture(scope="module")
def table() -> Table:
    return Table()


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
def test_the_kind_of_value_at_the_cursor_is_found(table: Table, typed: str, kind: str) -> None:
    place = Line(table, split(typed)[0]).place()
    assert (place.kind, place.verbs, place.options) == (kind, [], [])


def test_verbs_and_unused_options_are_offered(table: Table) -> None:
    assert "commit" in dict(Line(table, [""]).place().verbs)
    assert set(dict(Line(table, ["facts", ""]).place().verbs)) == {
        "ls",
        "show",
        "forget",
        "history",
    }
    assert Line(table, ["nonsense", ""]).place() == Place()
    options = dict(Line(table, ["log", "--graph", "-"]).place().options)
    assert "--graph" not in options and {"-n", "--limit", "--json"} <= set(options)
    again = dict(Line(table, ["run", "--env", "a=b", "--timeout=1", "-"]).place().options)
    assert "--env" in again and "--timeout" not in again


def test_the_line_knows_its_directory_and_option_values(table: Table) -> None:
    line = Line(table, ["-C", "a", "-C", "b", "log", "-qwproj/1", "--limit=3", ""])
    assert line.directory == "a/b"
    assert (line.named("--workspace"), line.named("-n")) == ("proj/1", "3")
    assert line.named("--session") == ""


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
    assert split(line) == (words, quote)


def test_bash_completes_only_the_part_after_a_word_break() -> None:
    assert answer("bash", ["ortet --color=al", " =:@"]) == "\nalways\n"
    assert answer("bash", ["ortet --color=al", " "]) == "\n--color=always\n"
    assert answer("zsh", ["ortet", "--color=al"]) == "\n--color=always\t\n"


def test_completion_without_a_store_creates_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ORTET_URL", str(tmp_path / "none"))
    assert complete(["run", ""]).how == "files"
    with pytest.raises(Exception, match="unable to open"):
        complete(["log", ""])
    assert list(tmp_path.iterdir()) == []
