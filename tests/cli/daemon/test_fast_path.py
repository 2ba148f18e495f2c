"""How the host agent is found for a command line that is not parsed yet."""

from __future__ import annotations

from pathlib import Path

import pytest

from ortet.cli.daemon.fast_path import (
    ParsedCommand,
    is_agent_off,
    locate_store,
    parse_words,
    read_nearest_pointer,
)


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["commit"], ParsedCommand("commit", "", "")),
        (["--json", "commit", "-m", "-w", "-q"], ParsedCommand("commit", "", "")),
        (["-C", "a", "-C", "b", "commit"], ParsedCommand("commit", "a/b", "")),
        (["status", "-w", "proj/1", "--json"], ParsedCommand("status", "", "proj/1")),
        (["commit", "--durable", "local"], ParsedCommand("commit", "", "")),
        (["commit", "--help"], None),  # the command line proper knows what to say
        (["commit", "stray"], None),
        (["commit", "-mtext"], None),
        (["--version"], None),
        ([], None),
    ],
)
def test_parse_words_accepts_only_simple_command_lines(
    words: list[str], meant: ParsedCommand | None
) -> None:
    assert parse_words(words) == meant


def test_the_store_is_that_of_the_nearest_pointer(tmp_path: Path) -> None:
    deep = tmp_path / "proj" / "deep"
    deep.mkdir(parents=True)
    (tmp_path / "proj" / ".ortet").write_text("/store#proj\n")
    assert read_nearest_pointer(str(deep)) == (str(tmp_path / "proj"), "/store", "proj")
    asked = ParsedCommand("commit", str(deep), "")
    assert locate_store(asked, {}) == ("/store", "proj")
    assert locate_store(asked._replace(name="x/1"), {}) == ("/store", "x/1")
    assert locate_store(asked, {"ORTET_URL": "/other"}) == ("/other", "proj")
    assert locate_store(asked, {"ORTET_URL": "relative"}) is None
    assert locate_store(asked, {"ORTET_URL": "http://host"}) is None
    assert locate_store(asked._replace(directory=str(tmp_path / "none")), {}) is None


@pytest.mark.parametrize("text", ["", "/store", "#proj", "/store#a%20b\n", "a\nb#c\n"])
def test_an_unusual_pointer_is_not_handled_by_the_fast_path(tmp_path: Path, text: str) -> None:
    (tmp_path / ".ortet").write_text(text)
    assert read_nearest_pointer(str(tmp_path)) is None


@pytest.mark.parametrize(("value", "off"), [("off", True), ("0", True), ("on", False), ("", False)])
def test_ortet_agent_off_or_0_disables_the_agent(value: str, off: bool) -> None:
    assert is_agent_off({"ORTET_AGENT": value}) is off
