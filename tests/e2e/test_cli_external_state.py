"""collab, window, token and vault through a real process."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.fixtures import forked
from tests.fixtures.commands import Ortet
from tests.fixtures.waiting import eventually

from ortet.config.environment import open_hub

VALUE = "ghp_do-not-show-me-4711"
FAR = "4000000000"


@pytest.fixture
def here(ortet: Ortet, tmp_path: Path) -> Path:
    """A place with a session `s` of its store."""
    ortet("session", "new", "s", cwd=tmp_path)
    return tmp_path


class TestCollab:
    def test_collab_set_and_ls_show_the_record(self, ortet: Ortet, here: Path) -> None:
        ortet("collab", "set", "pr", "-s", "s", "--kind", "pull_request", cwd=here)
        more = ("--status", "done", "--text", "-", "--json")
        said = ortet("collab", "set", "pr", "-s", "s", *more, cwd=here, stdin=b"half written").data
        assert (said["status"], said["text"]) == ("done", "half written")
        (one,) = ortet.json("collab", "ls", "-s", "s", cwd=here)
        assert (one["name"], one["kind"], one["status"]) == ("pr", "pull_request", "done")
        assert ortet("collab", "ls", "-s", "s", cwd=here).out.startswith("pr  done  pull_request")
        assert "[done] pr (pull_request)" in ortet("brief", "s", cwd=here).out
        assert "set" in ortet("collab", cwd=here).out

    def test_invalid_collab_arguments_are_refused(self, ortet: Ortet, here: Path) -> None:
        bad = ("collab", "set", "pr", "-s", "s")
        assert ortet.kind(*bad, "--status", "open", cwd=here, code=2) == "bad_status"
        assert ortet.kind(*bad, "--effect", "none", cwd=here, code=4) == "no_effect"
        ortet(*bad, "--status", "withdrawn", cwd=here)
        assert ortet.kind(*bad, "--status", "done", cwd=here, code=5) == "illegal_move"
        assert ortet.kind("collab", "ls", "-s", "none", cwd=here, code=4) == "no_session"


class TestWindow:
    def test_window_set_and_ls_show_the_remaining_quota(self, ortet: Ortet, here: Path) -> None:
        set_ = ("window", "set", "github", "-s", "s")
        ortet(*set_, "--remaining", "12", "--limit", "5000", "--reset", FAR, cwd=here)
        (one,) = ortet.json("window", "ls", "-s", "s", cwd=here)
        assert (one["service"], one["remaining"], one["full"]) == ("github", 12, False)
        assert "12 left  of 5000  until 2096-" in ortet("window", "ls", "-s", "s", cwd=here).out
        ortet(*set_, "--remaining", "12", "--reset", "1000", cwd=here)
        assert "github  full" in ortet("window", "ls", "-s", "s", cwd=here).out
        bad = ortet.kind(*set_, "--remaining", "-1", "--reset", FAR, cwd=here, code=2)
        assert bad == "bad_window"
        assert "ls" in ortet("window", cwd=here).out


class TestVault:
    def test_vault_put_ls_and_rm_never_show_the_value(self, ortet: Ortet, here: Path) -> None:
        done = ortet("vault", "put", "gh", cwd=here, stdin=f"{VALUE}\n".encode())
        assert VALUE not in done.out + done.err
        assert ortet.json("vault", "ls", cwd=here) == ["gh"]
        ortet("token", "set", "github", "gh", "-s", "s", cwd=here)
        assert ortet("token", "get", "github", "-s", "s", cwd=here).out == f"{VALUE}\n"
        assert ortet("token", "ls", "-s", "s", cwd=here).out == "github  gh\n"
        assert ortet.json("vault", "rotate", cwd=here) == {"sealed": 1}
        assert ortet.json("token", "get", "github", "-s", "s", cwd=here)["token"] == VALUE
        with open_hub(ortet.store) as hub, hub.session("s") as s:
            assert VALUE not in str(list(s.events()))
        ortet("vault", "rm", "gh", cwd=here)
        assert ortet("vault", "ls", cwd=here).out == ""
        assert ortet.kind("token", "get", "github", "-s", "s", cwd=here, code=4) == "no_secret"
        for group in ("vault", "token"):
            assert "ls" in ortet(group, cwd=here).out

    def test_invalid_vault_arguments_are_refused(self, ortet: Ortet, here: Path) -> None:
        for name, value, kind in (("a b", b"x", "bad_name"), ("a", b"", "bad_value")):
            done = ortet("--json", "vault", "put", name, cwd=here, code=2, stdin=value)
            assert done.error["kind"] == kind
        ortet("vault", "put", "a", cwd=here, code=2, stdin=b"\xff")
        assert ortet.kind("vault", "rm", "a", cwd=here, code=4) == "no_secret"
        assert ortet.kind("token", "set", "x", "a", "-s", "s", cwd=here, code=4) == "no_secret"
        done = ortet("vault", "put", "a", VALUE, cwd=here, code=2)
        assert "standard input" in done.err and VALUE not in done.err
        assert ortet.json("vault", "ls", cwd=here) == []

    def test_a_vault_value_under_another_key_is_refused(self, ortet: Ortet, here: Path) -> None:
        ortet("vault", "put", "gh", cwd=here, stdin=b"x", env={"ORTET_VAULT_KEY": "ab" * 32})
        ortet("token", "set", "github", "gh", "-s", "s", cwd=here)
        get = ("token", "get", "github", "-s", "s")
        for env in ({"ORTET_VAULT_KEY": "cd" * 32}, {}):
            done = ortet("--json", *get, cwd=here, code=6, env=env)
            assert done.error["kind"] == "wrong_key"
        assert ortet(*get, cwd=here, env={"ORTET_VAULT_KEY": "ab" * 32}).out == "x\n"

    def test_commands_of_agents_do_not_see_the_vault_key(self, ortet: Ortet, here: Path) -> None:
        (here / "w").mkdir()
        ortet("init", cwd=here / "w")
        env = {"ORTET_VAULT_KEY": "ab" * 32}
        seen = ortet("run", "env", cwd=here / "w", env=env).out
        assert "HOME=" in seen and env["ORTET_VAULT_KEY"] not in seen
        code = (
            "import sys, ortet\n"
            "with ortet.open() as hub, hub.workspace('w', engine='overlay') as ws:\n"
            "    print(ws.run('cat /proc/[0-9]*/environ').stdout)\n"
        )
        inside = forked.run(
            [sys.executable, "-c", code],
            cwd=here,
            env=ortet.env | env,
            stdout=subprocess.PIPE,
            check=True,
        ).stdout.decode()
        assert "HOME=" in inside and env["ORTET_VAULT_KEY"] not in inside


class TestSecret:
    def test_a_secret_is_given_to_one_command_and_kept_out_of_commits(
        self, ortet: Ortet, here: Path
    ) -> None:
        here = here / "proj"
        here.mkdir()
        ortet("init", cwd=here)
        done = ortet("secret", "set", "DEPLOY", cwd=here, stdin=f"{VALUE}\n".encode())
        assert VALUE not in done.out + done.err
        assert ortet.json("secret", "ls", cwd=here) == ["DEPLOY"]
        told = ortet("run", "--secret", "DEPLOY", "echo $DEPLOY > config", cwd=here)
        assert VALUE not in told.out + told.err
        assert (here / "config").read_text() == f"{VALUE}\n"
        assert ortet.kind("commit", "-m", "no", cwd=here, code=6) == "secret_found"
        assert ortet.json("commit", "-m", "yes", "--allow-secrets", cwd=here)["created"]
        ortet("secret", "rm", "DEPLOY", cwd=here)
        assert ortet.json("secret", "ls", cwd=here) == []
        assert ortet.kind("run", "--secret", "DEPLOY", "true", cwd=here, code=4) == "no_secret"

    def test_an_expired_secret_is_refused(self, ortet: Ortet, here: Path) -> None:
        here = here / "proj"
        here.mkdir()
        (here / "file").write_text("one")
        ortet("init", cwd=here)
        put = ("secret", "set", "A", "--expires")
        ends = ortet("--json", *put, "1s", cwd=here, stdin=b"value-of-a-1").data
        ortet("secret", "set", "B", "--expires", "90d", cwd=here, stdin=b"value-of-b-1")
        assert "until 2" in ortet("secret", "ls", "--long", cwd=here).out
        code = "import ortet\nwith ortet.open() as h, h.session('p', workspace='.') as s:\n"
        code += " s.act(lambda: 1, name='early')\n s.run('true', secrets=['B'])\n"
        code += " print(s.commit('c').oid)\n s.act(lambda: 1, name='publish')\n"
        python, env = [sys.executable, "-c", code], ortet.env
        oid = subprocess.run(python, cwd=here, env=env, stdout=-1, check=True).stdout.decode()
        oid = oid.strip()
        eventually(lambda: time.time_ns() > ends["expires"])
        assert ortet.kind("run", "--secret", "A", "true", cwd=here, code=6) == "secret_expired"
        (one, two) = ortet.json("secret", "ls", "--long", cwd=here)
        assert (one["expired"], two["expired"]) == (True, False)
        ortet("secret", "rm", "B", cwd=here)
        (here / "file").write_text("two")
        told = ortet.json("restore", oid, cwd=here)
        assert [(one["name"], one["state"]) for one in told["secrets"]] == [("B", "missing")]
        assert [deed["name"] for deed in told["deeds"]] == ["publish"]
        out = ortet("restore", oid, cwd=here).out
        assert "1 effect done since stays done: publish" in out
        assert "secret B is missing" in out
        wrong = ortet("--json", *put, "x", cwd=here, stdin=b"value-of-a-1", code=2).error
        assert wrong["kind"] == "bad_time"
