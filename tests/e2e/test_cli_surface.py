"""What all commands share: options, help, exit codes, errors, terminals, interrupts."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
from tests.fixtures.commands import Commit, Ortet
from tests.fixtures.waiting import WAIT

from ortet.cli.main import SECTIONS, cli

VERBS = [verb for section in SECTIONS.values() for verbs in section.values() for verb in verbs]
HEAVY = (
    "apsw",
    "msgspec",
    "blake3",
    "ortet.config.environment",
    "ortet.hub",
    "ortet.sessions",
    "ortet.objects",
    "ortet.store",
    "json",
)


def modules_of(ortet: Ortet, cwd: Path, *args: str) -> set[str]:
    """What a call imports."""
    code = (
        "import sys\n"
        "from ortet.cli.main import run\n"
        f"run({list(args)!r})\n"
        "print('--', *sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=cwd, env=ortet.env, capture_output=True, check=True
    )
    return set(done.stdout.decode().rpartition("-- ")[2].split())


class TestStart:
    def test_version_and_help_load_no_store(self, ortet: Ortet, tmp_path: Path) -> None:
        version = modules_of(ortet, tmp_path, "--version")
        assert not {name for name in version if name.startswith((*HEAVY, "ortet.cli.commands."))}
        asked = modules_of(ortet, tmp_path, "commit", "--help")
        assert {name for name in asked if name.startswith("ortet.cli.commands.")} == {
            "ortet.cli.commands.workspace"
        }
        assert not {name for name in asked if name.startswith(("apsw", "ortet.objects"))}

    def test_the_installed_command_prints_its_version(self, ortet: Ortet, tmp_path: Path) -> None:
        command = Path(sys.executable).with_name("ortet")
        done = subprocess.run(
            [command, "--version"], env=ortet.env, capture_output=True, check=True
        )
        assert done.stdout.startswith(b"ortet 0.")
        assert ortet("--version", cwd=tmp_path).out == done.stdout.decode()

    def test_no_help_summary_is_cut_at_80_columns(self) -> None:
        """Not on a terminal of 80 columns, nor beside a completion."""
        width: dict[str, Any] = {"terminal_width": 80, "max_content_width": 80}
        todo: list[tuple[click.Command, click.Context]] = []
        todo.append((cli, click.Context(cli, info_name="ortet", **width)))
        while todo:
            one, context = todo.pop()
            assert not one.get_short_help_str(70).endswith("..."), context.command_path
            if isinstance(one, click.Group):
                told = one.get_help(context).splitlines()[1:]
                assert not [line for line in told if line.endswith("...")], context.command_path
                below = {
                    name: one.get_command(context, name) for name in one.list_commands(context)
                }
                todo += [
                    (sub, click.Context(sub, parent=context, info_name=name, **width))
                    for name, sub in below.items()
                    if sub is not None
                ]

    def test_every_option_and_command_says_what_it_does(self) -> None:
        context = click.Context(cli, info_name="ortet")
        todo: list[tuple[str, click.Command]] = [("ortet", cli)]
        silent = []
        while todo:
            path, command = todo.pop()
            options = [param for param in command.params if isinstance(param, click.Option)]
            silent += [path] if not command.help else []
            silent += [f"{path} {one.opts[0]}" for one in options if not (one.hidden or one.help)]
            if isinstance(command, click.Group):
                names = command.list_commands(context)
                below = {name: command.get_command(context, name) for name in names}
                todo += [(f"{path} {name}", sub) for name, sub in below.items() if sub is not None]
        assert silent == []

    def test_help_lists_every_command(self, ortet: Ortet, tmp_path: Path) -> None:
        out = ortet("--help", cwd=tmp_path).out
        assert ortet(cwd=tmp_path).out == out
        assert "start" in ortet("bisect", cwd=tmp_path).out
        for verb in VERBS:
            assert f"\n  {verb} " in out

    @pytest.mark.parametrize("verb", VERBS)
    def test_help_of_each_verb_has_an_example(
        self, ortet: Ortet, tmp_path: Path, verb: str
    ) -> None:
        out = ortet(verb, "--help", cwd=tmp_path).out
        assert "Example:" in out and f"ortet {verb}" in out
        assert "--json" in out and "-q, --quiet" in out


class TestOptions:
    def test_json_before_and_after_the_verb(self, ortet: Ortet, proj: Path, commit: Commit) -> None:
        commit("first")
        assert ortet("--json", "log", cwd=proj).data == ortet("log", "--json", cwd=proj).data

    def test_quiet_commands_print_nothing(self, ortet: Ortet, proj: Path) -> None:
        calls = [
            ["init"],
            ["status"],
            ["commit", "-m", "x"],
            ["log"],
            ["log", "--graph"],
            ["show"],
            ["diff"],
            ["branch"],
            ["branch", "b"],
            ["tag", "t"],
            ["tag"],
            ["reflog"],
            ["fork"],
            ["merge", "b"],
            ["land", "proj/1"],
            ["drop", "proj/1"],
            ["restore", "HEAD"],
            ["restore", "HEAD", "--to", "../quiet"],
            ["verify"],
            ["sweep"],
            ["export", "HEAD", "../quiet.bundle"],
            ["import", "../quiet.bundle"],
            ["stats"],
            ["doctor"],
        ]
        for call in calls:
            done = ortet(*call, "-q", cwd=proj)
            assert (done.out, done.err) == ("", ""), call
        before = ortet("-q", "commit", cwd=proj)
        assert (before.out, before.err) == ("", "")

    def test_option_c_changes_the_directory(self, ortet: Ortet, proj: Path, tmp_path: Path) -> None:
        ortet("-C", "proj", "commit", "-m", "x", cwd=tmp_path)
        done = ortet("-C", "nowhere", "--json", "log", cwd=tmp_path, code=4)
        assert done.error["kind"] == "no_directory"


class TestErrors:
    def test_errors_go_to_stderr_with_a_fixed_shape(self, ortet: Ortet, proj: Path) -> None:
        done = ortet("log", "nothing", "--json", cwd=proj, code=4)
        assert done.out == ""
        assert list(done.error) == ["error", "kind", "message", "details"]
        plain = ortet("log", "nothing", cwd=proj, code=4)
        assert plain.err.startswith("error: ") and "\x1b" not in plain.err

    @pytest.mark.parametrize(
        "words",
        [
            ["comit"],
            ["commit", "--nope"],
            ["commit", "extra"],
            ["restore"],
            ["merge", "x", "--favor", "mine"],
            ["log", "-n", "0"],
        ],
    )
    def test_usage_errors_end_with_exit_code_2(
        self, ortet: Ortet, proj: Path, words: list[str]
    ) -> None:
        done = ortet(*words, "--json", cwd=proj, code=2)
        assert done.error["kind"] == "bad_usage"
        assert "--help" in ortet(*words, cwd=proj, code=2).err

    def test_a_deleted_current_directory_is_reported(self, ortet: Ortet, tmp_path: Path) -> None:
        script = (
            f"mkdir gone && cd gone && rmdir ../gone && {' '.join(ortet.argv('--json', 'init'))}"
        )
        done = subprocess.run(
            ["sh", "-c", script], cwd=tmp_path, env=ortet.env, capture_output=True, check=False
        )
        assert done.returncode == 4
        assert json.loads(done.stderr)["kind"] == "no_directory"

    def test_a_misspelt_verb_suggests_the_right_one(self, ortet: Ortet, proj: Path) -> None:
        assert "did you mean 'commit'?" in ortet("comit", cwd=proj, code=2).err

    def test_an_os_error_is_not_reported_as_a_bug(
        self, ortet: Ortet, proj: Path, commit: Commit
    ) -> None:
        commit("first")
        (proj / "plain").write_text("")
        done = ortet("export", "HEAD", "plain/x.bundle", "--json", cwd=proj, code=None)
        assert done.code not in (0, 1)
        assert done.error["error"] != "bug"

    def test_a_bug_is_reported_in_one_line_with_a_debug_hint(
        self, ortet: Ortet, proj: Path, tmp_path: Path
    ) -> None:
        broken = tmp_path / "broken"
        broken.mkdir()
        (broken / "sitecustomize.py").write_text(
            "import ortet.cli.call as call\n"
            "def workspace(self, name=None): raise KeyError('oops')\n"
            "call.CliCall.workspace = workspace\n"
        )
        env = {"PYTHONPATH": str(broken)}
        done = ortet("status", cwd=proj, code=1, env=env)
        assert "ORTET_DEBUG=1" in done.err and "Traceback" not in done.err
        shown = ortet("status", cwd=proj, code=1, env=env | {"ORTET_DEBUG": "1"})
        assert "Traceback" in shown.err
        told = ortet("status", "--json", cwd=proj, code=1, env=env)
        assert told.error["error"] == "bug"

    def test_log_without_a_store_is_refused_and_creates_none(
        self, ortet: Ortet, proj: Path, tmp_path: Path
    ) -> None:
        env = {"ORTET_URL": str(tmp_path / "none")}
        done = ortet("log", "--json", cwd=tmp_path, code=4, env=env)
        assert done.error["kind"] == "no_store"
        assert not (tmp_path / "none").exists()
        far = ortet("log", "--json", cwd=tmp_path, code=2, env={"ORTET_URL": "postgresql://x/y"})
        assert far.error["kind"] == "bad_url"


class TestInterrupt:
    @pytest.mark.parametrize(
        ("number", "code", "said"),
        [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, ""), (signal.SIGHUP, 129, "")],
    )
    def test_a_signal_ends_the_running_command_too(
        self, ortet: Ortet, proj: Path, number: signal.Signals, code: int, said: str
    ) -> None:
        process = subprocess.Popen(
            ortet.argv("run", "echo started; sleep 300 & echo $!; wait"),
            cwd=proj,
            env=ortet.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "started\n"
        child = os.pidfd_open(int(process.stdout.readline()))
        process.send_signal(number)
        _, err = process.communicate()
        assert (process.returncode, err.strip()) == (code, said)
        ended, _, _ = select.select([child], [], [], WAIT)
        os.close(child)
        assert ended


class Terminal:
    """Runs a call with standard error, and output, on a terminal."""

    def __init__(self, ortet: Ortet) -> None:
        self._ortet = ortet

    def __call__(self, *args: str, cwd: Path, env: dict[str, str] | None = None) -> str:
        ours, theirs = pty.openpty()
        process = subprocess.Popen(
            self._ortet.argv(*args),
            cwd=cwd,
            env=self._ortet.env | {"TERM": "xterm", "ORTET_PAGER": "cat"} | (env or {}),
            stdin=subprocess.DEVNULL,
            stdout=theirs,
            stderr=theirs,
        )
        os.close(theirs)
        shown = b""
        try:
            while piece := os.read(ours, 65_536):
                shown += piece
        except OSError:
            pass  # Linux ends a terminal nobody holds with EIO
        finally:
            os.close(ours)
        assert process.wait() == 0, shown
        return shown.decode()


@pytest.fixture
def terminal(ortet: Ortet) -> Terminal:
    return Terminal(ortet)


class TestTerminal:
    def test_colours_are_printed_only_at_a_terminal(
        self, terminal: Terminal, proj: Path, commit: Commit
    ) -> None:
        commit("first")
        assert "\x1b[33m" in terminal("log", cwd=proj)
        assert "\x1b" not in terminal("log", cwd=proj, env={"NO_COLOR": "1"})
        assert "\x1b" not in terminal("log", cwd=proj, env={"TERM": "dumb"})

    def test_slow_work_shows_a_progress_bar(
        self, terminal: Terminal, ortet: Ortet, proj: Path, tmp_path: Path
    ) -> None:
        slow, quick = tmp_path / "slow", tmp_path / "quick"
        slow.mkdir()
        quick.mkdir()
        # however slow this host is
        (quick / "sitecustomize.py").write_text(
            "import ortet.cli.terminal.progress as progress\nprogress.SHOW_AFTER_SECONDS = 3600.0\n"
        )
        (slow / "sitecustomize.py").write_text(
            "import time\n"
            "import ortet.cli.terminal.progress as progress\n"
            "progress.SHOW_AFTER_SECONDS, progress.REDRAW_SECONDS = 0.0, 0.001\n"
            "leave = progress.Progress.__exit__\n"
            "def wait(self, *error):\n"
            "    while self._thread and not getattr(self, 'drawn', 0): time.sleep(0.001)\n"
            "    leave(self, *error)\n"
            "write = progress.Progress._write\n"
            "def mark(self, line):\n"
            "    write(self, line)\n"
            "    self.drawn = 1\n"
            "progress.Progress.__exit__, progress.Progress._write = wait, mark\n"
        )
        env = {"PYTHONPATH": str(slow)}
        shown = terminal("commit", "-m", "x", cwd=proj, env=env)
        assert "\rcommit ..." in shown
        assert shown.index("\r\x1b[K") < shown.index("[proj")
        calm = {"PYTHONPATH": str(quick)}
        assert "\r\x1b[K" not in terminal("commit", "-m", "x", cwd=proj, env=calm)
        assert "\r\x1b[K" not in terminal("commit", "-q", "-m", "x", cwd=proj, env=env)
        assert ortet("commit", "-m", "y", cwd=proj, env=env).err == ""

    def test_json_is_never_decorated(self, terminal: Terminal, proj: Path, commit: Commit) -> None:
        oid = commit("first")
        assert json.loads(terminal("log", "--json", cwd=proj))[0]["oid"] == oid
