"""Completion in real shells: typed words, Tab, and the completed line."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.e2e.terminal import Terminal
from tests.fixtures.commands import Commit, Ortet

import ortet as library
from ortet.cli.completion import word_list

_BEGIN = {
    "bash": ["bash", "--norc", "--noprofile", "-i"],
    "zsh": ["zsh", "-f", "-i"],
}
_LOAD = {
    "bash": 'eval "$(ortet completion bash)"; bind "set enable-bracketed-paste off"; '
    'bind "set show-all-if-ambiguous on"; bind "set page-completions off"',
    "zsh": "unsetopt zle_bracketed_paste; bindkey -e; autoload -Uz compinit; compinit -u -D; "
    'unset zle_bracketed_paste; LISTMAX=1000; eval "$(ortet completion zsh)"',
}

Type = Callable[[str], list[str]]


SHELLS = ["bash", "zsh"]


@pytest.fixture
def env(ortet: Ortet, tmp_path: Path) -> dict[str, str]:
    """With a command called ortet."""
    place = tmp_path / "bin"
    place.mkdir()
    command = place / "ortet"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m ortet "$@"\n')
    command.chmod(0o755)
    path = f"{place}:{ortet.env['PATH']}"
    return {**ortet.env, "PATH": path, "TERM": "dumb", "PS1": "$ ", "HISTFILE": ""}


@pytest.fixture
def history(ortet: Ortet, proj: Path, commit: Commit) -> str:
    """Two commits, a tag, a fork and a session that knows something; returns the first commit."""
    first = commit("first words")
    commit("second words", **{"a.txt": "two\n"})
    ortet("tag", "golden", "HEAD~1", cwd=proj)
    ortet("fork", cwd=proj)
    with library.open(ortet.store) as hub, hub.session("fix-42", agent="coder") as s:
        s.learn("tests need PYTHONPATH")
        s.artifact("my report.md", data=b"# report", kind="report")
    return first


class Shell:
    """An interactive shell that has loaded the completion."""

    def __init__(self, shell: str, *, cwd: Path, env: dict[str, str]) -> None:
        self.terminal = Terminal(_BEGIN[shell], cwd=cwd, env=env, size=(60, 200))
        self._count = 0
        self.do(_LOAD[shell])

    def words(self, typed: str) -> list[str]:
        """What stands in the line after a Tab, as the shell reads it."""
        self.terminal.type(f"{typed}\t\x01printf '<%s>' \x05")
        self.do("")
        last = self.terminal.text.rpartition("\n<")[2]
        return [word.removesuffix("/") for word in last.partition(">done")[0].split("><")]

    def shows(self, typed: str, *texts: str) -> None:
        """Each of these comes to the screen after a Tab."""
        self.terminal.seen = b""
        self.terminal.type(f"{typed}\t")
        for text in texts:
            self.terminal.until(text)
        self.terminal.type("\x15")
        self.do(":")

    def do(self, command: str) -> str:
        self._count += 1
        mark = f"done-{self._count}-"
        self.terminal.type(f"{command}; echo {mark[:4]}''{mark[4:]}\n")
        return self.terminal.until(f"{mark}\r\n")


@pytest.fixture
def shell(
    request: pytest.FixtureRequest, proj: Path, env: dict[str, str], history: str
) -> Iterator[Shell]:
    one = Shell(request.param, cwd=proj, env=env)
    with one.terminal:
        yield one


@pytest.mark.parametrize("shell", SHELLS, indirect=True)
class TestShells:
    def test_bash_and_zsh_complete_verbs_options_and_names(
        self, shell: Shell, history: str
    ) -> None:
        for typed, words in (
            ("ortet unar", ["ortet", "unarchive"]),
            ("ortet undo --dr", ["ortet", "undo", "--dry-run"]),
            ("ortet --json facts sh", ["ortet", "--json", "facts", "show"]),
            ("ortet merge --favor th", ["ortet", "merge", "--favor", "theirs"]),
            ("ortet --color=al", ["ortet", "--color=always"]),
            ("ortet restore gol", ["ortet", "restore", "golden"]),
            (f"ortet show {history[:6]}", ["ortet", "show", history[:12]]),
            ("ortet undo -w proj/", ["ortet", "undo", "-w", "proj/1"]),
            ("ortet journal fi", ["ortet", "journal", "fix-42"]),
            (
                "ortet artifact get -s fix-42 my",
                ["ortet", "artifact", "get", "-s", "fix-42", "my report.md"],
            ),
            ("ortet import a.t", ["ortet", "import", "a.txt"]),
            ("ortet -C sr", ["ortet", "-C", "src"]),
            ("ortet run -- cat a.t", ["ortet", "run", "--", "cat", "a.txt"]),
            ("ortet tag -d nothing-of-this-na", ["ortet", "tag", "-d", "nothing-of-this-na"]),
        ):
            assert shell.words(typed) == words

    def test_bash_and_zsh_list_several_matches(self, shell: Shell, history: str) -> None:
        shell.shows("ortet re", "redo", "restore", "rewind", "release")
        shell.shows("ortet log ", "HEAD", "proj/1", "golden", history[:12])

    def test_completion_without_a_store_creates_nothing_and_prints_no_error(
        self, shell: Shell, ortet: Ortet, tmp_path: Path
    ) -> None:
        empty = tmp_path / "empty"
        empty.mkdir()
        shell.do(f"cd {empty}; export XDG_DATA_HOME={empty}/data")
        assert shell.words("ortet log zz") == ["ortet", "log", "zz"]
        assert shell.words("ortet facts show zz") == ["ortet", "facts", "show", "zz"]
        assert os.listdir(empty) == []
        assert "rror" not in shell.terminal.text


@pytest.mark.parametrize("shell", ["zsh"], indirect=True)
def test_zsh_shows_a_description_of_each_match(shell: Shell, history: str) -> None:
    shell.shows("ortet l", "-- List the commits of a branch, newest first.")
    shell.shows("ortet restore ", history[:12], "-- first words", "-- second words")


class TestFish:
    def fish(self, typed: str, *, cwd: Path, env: dict[str, str]) -> dict[str, str]:
        script = f"ortet completion fish | source; complete -C {typed!r}"
        done = subprocess.run(
            ["fish", "--no-config", "-c", script],
            cwd=cwd,
            env=env,
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stderr == ""
        rows = [line.partition("\t") for line in done.stdout.splitlines()]
        return {value: text for value, _, text in rows}

    @pytest.mark.usefixtures("history")
    def test_fish_completes_verbs_options_and_names(self, proj: Path, env: dict[str, str]) -> None:
        for typed, values in (
            ("ortet unar", {"unarchive"}),
            ("ortet undo --dr", {"--dry-run"}),
            ("ortet facts ", {"forget", "history", "ls", "show"}),
            ("ortet merge --favor ", {"ours", "theirs"}),
            ("ortet --color=al", {"--color=always"}),
            ("ortet undo -w proj/", {"proj/1"}),
            ("ortet journal ", {"fix-42"}),
            ("ortet tag -d ", {"golden"}),
            ("ortet artifact get -s fix-42 my", {"my report.md"}),
            ("ortet import a.t", {"a.txt"}),
            ("ortet -C sr", {"src/"}),
        ):
            assert set(self.fish(typed, cwd=proj, env=env)) == values, typed

    def test_fish_shows_a_description_of_each_match(
        self, proj: Path, env: dict[str, str], history: str
    ) -> None:
        found = self.fish("ortet restore ", cwd=proj, env=env)
        assert found[history[:12]] == "first words"
        assert found["HEAD"] == "second words"
        assert next(iter(found)) == "HEAD"
        fact = self.fish("ortet facts show -s fix-42 ", cwd=proj, env=env)
        assert list(fact.values()) == ["tests need PYTHONPATH"]

    def test_fish_completion_without_a_store_creates_nothing(
        self, tmp_path: Path, env: dict[str, str], ortet: Ortet
    ) -> None:
        for typed in ("ortet log ", "ortet facts show ", "ortet nonsense --x "):
            assert self.fish(typed, cwd=tmp_path, env=env) == {}
        assert not ortet.store.exists()


def test_the_committed_completion_table_is_up_to_date() -> None:
    """Run `python -m ortet.cli.completion.word_list` when verbs or options have changed."""
    assert word_list.WORD_LIST_FILE.read_text() == "".join(word_list.word_list_lines())


def test_the_agent_gives_the_same_completions(
    ortet: Ortet, proj: Path, env: dict[str, str], history: str
) -> None:
    words = ("_complete", "zsh", "ortet", "artifact", "get", "-s", "fix-42", "")
    alone = ortet(*words, cwd=proj).out
    assert alone == "\nmy report.md\treport\n"
    ortet.env["ORTET_AGENT"] = "on"
    ortet("agent", "start", cwd=proj)
    try:
        assert ortet(*words, cwd=proj).out == alone
        assert ortet.json("agent", "status", cwd=proj)["asked"] == 1
    finally:
        ortet("agent", "stop", cwd=proj)


def test_completion_with_a_damaged_store_prints_nothing(
    ortet: Ortet, proj: Path, commit: Commit
) -> None:
    commit("first")
    (ortet.store / "catalog.db").write_bytes(b"not a database")
    done = ortet("_complete", "zsh", "ortet", "log", "", cwd=proj)
    assert (done.out, done.err) == ("", "")


def test_completion_prints_the_script_of_each_shell(ortet: Ortet, tmp_path: Path) -> None:
    for shell in ("bash", "zsh", "fish"):
        text = ortet("completion", shell, cwd=tmp_path).out
        assert "_complete" in text
        assert ortet.json("completion", shell, cwd=tmp_path)["script"] == text
    assert ortet.kind("completion", "tcsh", cwd=tmp_path, code=2) == "bad_usage"


def test_completion_does_not_import_heavy_modules(ortet: Ortet, proj: Path, commit: Commit) -> None:
    """So it takes little longer than Python itself."""
    commit("first")
    code = (
        "import sys; from ortet.cli.completion import engine; "
        "engine.main(['zsh', 'ortet', 'log', '']); "
        "heavy = {'click', 'msgspec', 'ortet.config.environment', 'subprocess'}; "
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=proj,
        env=ortet.env,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "first" in done.stdout and done.stdout.endswith("\n[]\n")


def test_completion_without_a_shell_lists_the_shells_on_one_line(
    ortet: Ortet, tmp_path: Path
) -> None:
    told = ortet("completion", cwd=tmp_path, code=2).err
    assert "Choose from: bash, zsh, fish; `ortet completion --help`" in told
    assert len(told.splitlines()) == 1
