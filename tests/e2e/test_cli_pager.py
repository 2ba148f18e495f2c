"""The pager at a real terminal with a real less, and colours."""

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

YELLOW, RED, GREEN, CYAN, BOLD, PLAIN = (f"\x1b[{n}m" for n in (33, 31, 32, 36, 1, 0))

At = Callable[..., Terminal]


@pytest.fixture
def at(ortet: Ortet, proj: Path, tmp_path: Path) -> Iterator[At]:
    """A command at a terminal of ten lines, on which no bar is drawn, however slow this host is."""
    made: list[Terminal] = []
    calm = tmp_path / "calm"
    calm.mkdir()
    (calm / "sitecustomize.py").write_text(
        "import ortet.cli.terminal.progress as progress\nprogress.SHOW_AFTER_SECONDS = 3600.0\n"
    )
    path = f"{calm}:{ortet.env.get('PYTHONPATH', '')}".rstrip(":")

    def run(*words: str, **env: str) -> Terminal:
        given = {**ortet.env, "TERM": "xterm", "PYTHONPATH": path, **env}
        made.append(Terminal(ortet.argv(*words), cwd=proj, env=given))
        return made[-1]

    yield run
    for terminal in made:
        terminal.__exit__(None, None, None)


@pytest.fixture
def long(ortet: Ortet, proj: Path) -> None:
    """A history longer than the screen."""
    with library.open(ortet.store) as hub, hub.workspace(proj) as ws:
        for number in range(40):
            (proj / "a.txt").write_text(f"{number}\n")
            ws.commit(f"commit {number}")


@pytest.fixture
def shown(tmp_path: Path) -> Path:
    """A pager that writes what it is given, and who it is, to a file."""
    return tmp_path / "shown"


@pytest.mark.usefixtures("long")
class TestLess:
    def test_a_long_log_waits_for_its_reader(self, at: At) -> None:
        terminal = at("log")
        terminal.until("commit 33")
        assert "commit 0\n" not in terminal.text and YELLOW in terminal.text
        terminal.type("G")
        terminal.until("commit 0")
        terminal.type("q")
        assert terminal.end() == 0

    def test_quitting_the_pager_before_the_end_is_no_error(
        self, at: At, ortet: Ortet, proj: Path
    ) -> None:
        with library.open(ortet.store) as hub, hub.workspace(proj) as ws:
            (proj / "a.txt").write_text("last")
            ws.commit("x" * 300_000)  # more than the pipe and our buffer hold
        terminal = at("log")
        terminal.until("xxxx")
        terminal.type("q")
        assert terminal.end() == 0
        assert "rror" not in terminal.text

    def test_an_interrupt_is_handled_by_the_pager(self, at: At) -> None:
        terminal = at("log")
        terminal.until("commit 33")
        terminal.type("\x03")
        terminal.until("\x07")
        terminal.until("commit 0", typing="G")  # it drops what is typed while it is interrupted
        terminal.type("q")
        assert terminal.end() == 0

    def test_short_output_is_printed_without_waiting(self, at: At) -> None:
        terminal = at("log", "-n", "3")
        assert terminal.end() == 0
        assert "commit 39" in terminal.text and "commit 37" in terminal.text

    def test_an_error_is_not_paged_and_keeps_its_exit_code(self, at: At) -> None:
        terminal = at("log", "nowhere")
        assert terminal.end() == 4
        assert "no branch, tag or commit is called 'nowhere'" in terminal.text
        assert f"{RED}{BOLD}error:{PLAIN}" in terminal.text

    @pytest.mark.parametrize(
        "words", [("--no-pager", "log"), ("log", "--no-pager"), ("log", "--json"), ("log", "-q")]
    )
    def test_no_pager_json_and_quiet_bypass_the_pager(self, at: At, words: tuple[str, ...]) -> None:
        terminal = at(*words, ORTET_PAGER="echo paged; cat")
        assert terminal.end() == 0
        assert "paged" not in terminal.text
        assert ("commit 0" in terminal.text) is ("-q" not in words)

    @pytest.mark.parametrize("verb", ["log", "reflog", "branch", "diff", "show"])
    def test_every_listing_verb_uses_the_pager(self, at: At, verb: str) -> None:
        terminal = at(verb, ORTET_PAGER="echo paged; cat")
        assert terminal.end() == 0
        assert terminal.text.startswith("paged\n")

    def test_show_of_a_file_uses_the_pager(self, at: At) -> None:
        terminal = at("show", "HEAD~1", "a.txt", ORTET_PAGER="echo paged; cat")
        assert terminal.end() == 0
        assert terminal.text == "paged\n38\n"


@pytest.mark.usefixtures("long")
class TestChoice:
    @pytest.mark.parametrize(
        ("env", "paged"),
        [
            ({"ORTET_PAGER": "echo ours; cat", "PAGER": "echo theirs; cat"}, "ours"),
            ({"PAGER": "echo theirs; cat"}, "theirs"),
            ({"ORTET_PAGER": "", "PAGER": "echo theirs; cat"}, ""),
            ({"ORTET_PAGER": "cat", "PAGER": "echo theirs; cat"}, ""),
            ({"PAGER": ""}, ""),
            ({"TERM": "dumb"}, ""),
            ({"TERM": "dumb", "PAGER": "echo theirs; cat"}, "theirs"),
        ],
    )
    def test_ortet_pager_and_pager_choose_the_pager(
        self, at: At, env: dict[str, str], paged: str
    ) -> None:
        terminal = at("log", **env)
        assert terminal.end() == 0
        first = terminal.text.splitlines()[0]
        assert first == paged if paged else "commit 39" in first
        assert "commit 0\n" in terminal.text

    def test_a_missing_pager_is_reported_and_output_is_printed(self, at: At) -> None:
        terminal = at("log", ORTET_PAGER="no-such-pager -x")
        assert terminal.end() == 0
        assert "'no-such-pager -x' is not there" in terminal.text
        assert "commit 0\n" in terminal.text

    def test_a_failing_pager_does_not_change_the_exit_code(self, at: At) -> None:
        assert at("log", ORTET_PAGER="cat >/dev/null; exit 3").end() == 0

    @pytest.mark.parametrize(("said", "found"), [({}, "FRX"), ({"LESS": "-i"}, "-i")])
    def test_less_gets_default_options_unless_set(
        self, at: At, said: dict[str, str], found: str, shown: Path
    ) -> None:
        at("log", ORTET_PAGER=f"cat >/dev/null; echo $LESS > {shown}", **said).end()
        assert shown.read_text() == f"{found}\n"

    def test_output_into_a_pipe_is_not_paged(self, ortet: Ortet, proj: Path) -> None:
        out = ortet("log", cwd=proj, env={"ORTET_PAGER": "echo paged; cat"}).out
        assert "paged" not in out and "\x1b" not in out

    def test_journal_follow_is_not_paged(self, at: At, ortet: Ortet, proj: Path) -> None:
        ortet("session", "new", "talk", cwd=proj)
        ortet("say", "hello", "-s", "talk", cwd=proj)
        terminal = at("journal", "talk", "--follow", ORTET_PAGER="echo paged; cat")
        terminal.until("hello")
        terminal.type("\x03")
        assert terminal.end() == 130
        assert "paged" not in terminal.text
        assert at("journal", "talk", ORTET_PAGER="echo paged; cat").until("hello")[:5] == "paged"


class TestColours:
    @pytest.fixture(autouse=True)
    def _two_commits(self, commit: Commit) -> None:
        commit("first", **{"a.txt": "one\ntwo\n"})
        commit("second", **{"a.txt": "one\n-- two\n"})

    @pytest.mark.parametrize(
        ("env", "words", "coloured"),
        [
            ({}, (), True),
            ({"NO_COLOR": "1"}, (), False),
            ({"NO_COLOR": ""}, (), True),
            ({"NO_COLOR": "1", "FORCE_COLOR": "1"}, (), False),
            ({"TERM": "dumb"}, (), False),
            ({"TERM": "dumb", "CLICOLOR_FORCE": "1"}, (), True),
            ({"CLICOLOR": "0"}, (), False),
            ({"FORCE_COLOR": "0"}, (), False),
            ({}, ("--color", "never"), False),
            ({"NO_COLOR": "1"}, ("--color=always",), True),
        ],
    )
    @pytest.mark.parametrize("pager", ["cat", "exec cat"])
    def test_colours_at_a_terminal_follow_the_variables_and_options(
        self, at: At, env: dict[str, str], words: tuple[str, ...], coloured: bool, pager: str
    ) -> None:
        terminal = at("log", *words, ORTET_PAGER=pager, **env)
        assert terminal.end() == 0
        assert ("\x1b[" in terminal.text) is coloured

    @pytest.mark.parametrize(
        ("env", "words", "coloured"),
        [
            ({}, (), False),
            ({"CLICOLOR_FORCE": "1"}, (), True),
            ({"CLICOLOR_FORCE": "0"}, (), False),
            ({"FORCE_COLOR": "1"}, (), True),
            ({}, ("--color=always",), True),
            ({"FORCE_COLOR": "1"}, ("--color=never",), False),
        ],
    )
    def test_colours_in_a_pipe_need_to_be_forced(
        self,
        ortet: Ortet,
        proj: Path,
        env: dict[str, str],
        words: tuple[str, ...],
        coloured: bool,
    ) -> None:
        assert ("\x1b[" in ortet(*words, "log", cwd=proj, env=env).out) is coloured

    def test_a_patch_has_the_colours_of_git(self, ortet: Ortet, proj: Path) -> None:
        lines = ortet("diff", "HEAD~1", "HEAD", "-p", "--color=always", cwd=proj).out.splitlines()
        assert lines == [
            f"{BOLD}--- a/a.txt{PLAIN}",
            f"{BOLD}+++ b/a.txt{PLAIN}",
            f"{CYAN}@@ -1,2 +1,2 @@{PLAIN}",
            " one",
            f"{RED}-two{PLAIN}",
            f"{GREEN}+-- two{PLAIN}",
        ]

    @pytest.mark.slow
    def test_no_color_disables_the_colours_of_every_verb(self, ortet: Ortet, proj: Path) -> None:
        (proj / "a.txt").write_text("three\n")
        verbs = ("log", "show", "diff", "diff -p", "status", "commit", "doctor", "undo", "redo")
        for env in ({"FORCE_COLOR": "1"}, {"FORCE_COLOR": "1", "NO_COLOR": "1"}):
            for verb in (*verbs, "rewind", "merge HEAD@{1}"):
                done = ortet(*verb.split(), cwd=proj, env=env, code=None)
                assert ("\x1b[" in done.out) is ("NO_COLOR" not in env), verb
            (proj / "a.txt").write_text("four\n")
        bad = ortet("log", "nowhere", cwd=proj, env={"FORCE_COLOR": "1"}, code=4)
        assert bad.err.startswith(f"{RED}{BOLD}error:{PLAIN}")


@pytest.mark.criu
def test_output_of_the_host_agent_is_paged_at_the_terminal_of_the_caller(
    ortet: Ortet, proj: Path, commit: Commit
) -> None:
    """The machine is the agent's, so the agent compares; the pager is ours, at our terminal."""
    commit("first")
    ortet.env["ORTET_AGENT"] = "on"
    if "ORTET_CRIU" in os.environ:
        ortet.env["ORTET_CRIU"] = os.environ["ORTET_CRIU"]
    try:
        ortet("start", cwd=proj)
        ortet("commit", "-w", "proj-live", cwd=proj)
        names = " ".join(f"file{number:02}" for number in range(40))
        ortet("run", "-w", "proj-live", f"touch {names}", cwd=proj)
        words = ortet.argv("diff", "-w", "proj-live")
        env = {**ortet.env, "TERM": "xterm"}
        with Terminal(words, cwd=proj, env=env) as terminal:
            terminal.until("file05")
            assert "file39" not in terminal.text and GREEN in terminal.text
            terminal.type("G")
            terminal.until("file39")
            terminal.type("q")
            assert terminal.end() == 0
        with Terminal(words, cwd=proj, env={**env, "ORTET_PAGER": "head -n 1"}) as terminal:
            assert terminal.end() == 0
            assert "file00" in terminal.text and "file39" not in terminal.text
    finally:
        ortet("agent", "stop", "--force", cwd=proj)


def test_subprocess_is_not_imported_without_a_pager(ortet: Ortet, proj: Path) -> None:
    """A commit must not import what only a terminal needs."""
    code = "import sys, ortet.cli.main; print('subprocess' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=proj, env=ortet.env, capture_output=True, check=True
    )
    assert done.stdout == b"False\n"
