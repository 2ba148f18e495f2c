"""Sessions through a real process: their state, actions and life cycle."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
from pathlib import Path

import pytest
from tests.fixtures.commands import Commit, Ortet
from tests.fixtures.waiting import WAIT

from ortet.config.environment import open_hub


@pytest.fixture
def here(ortet: Ortet, tmp_path: Path) -> Path:
    """A place with a session `s` of its store."""
    ortet("session", "new", "s", "--goal", "be green", "--budget", "usd=5", cwd=tmp_path)
    return tmp_path


def break_off(ortet: Ortet) -> str:
    """A process killed in the middle of an action; the id of that."""
    code = (
        "import os, signal, sys\n"
        "from ortet.config.environment import open_hub\n"
        "hub = open_hub(sys.argv[1])\n"
        "s = hub.session('s')\n"
        "s.act(lambda: os.kill(os.getpid(), signal.SIGKILL), name='pay', key='k', why='due')\n"
    )
    done = subprocess.run(
        [ortet.argv()[0], "-c", code, str(ortet.store)], env=ortet.env, check=False
    )
    assert done.returncode == -signal.SIGKILL
    with open_hub(ortet.store) as hub:
        (row,) = hub.sessions()
        id_: str = hub.get(row.id).effects()[0].id
        return id_


def at_terminal(ortet: Ortet, cwd: Path, typed: bytes, *words: str) -> int:
    """The exit code of a call at a terminal, where this is typed."""
    ours, theirs = pty.openpty()
    try:
        process = subprocess.Popen(
            ortet.argv(*words), cwd=cwd, env=ortet.env, stdin=theirs, stdout=theirs, stderr=theirs
        )
        os.write(ours, typed)
        return process.wait(WAIT)
    finally:
        os.close(ours)
        os.close(theirs)


class TestSession:
    def test_sessions_are_created_listed_shown_and_removed(self, ortet: Ortet, here: Path) -> None:
        (row,) = ortet.json("session", "ls", cwd=here)
        assert (row["name"], row["status"], row["agent"]) == ("s", "paused", "default")
        again = ortet.json("session", "new", "s", cwd=here)
        assert again["id"] == row["id"]
        ortet("session", "new", "t", "--agent", "other", cwd=here)
        assert len(ortet.json("session", "ls", cwd=here)) == 2
        assert len(ortet.json("session", "ls", "--agent", "other", cwd=here)) == 1
        assert ortet.json("session", "ls", "--status", "closed", cwd=here) == []
        shown = ortet.json("session", "show", "s", cwd=here)
        assert shown["goal"] == "be green" and shown["head"] is None
        for word in (row["id"], row["id"][:-1], "default/s"):
            found = ortet("session", "show", word, "--json", cwd=here, code=None)
            assert found.code == 0, word
        out = ortet("session", "show", "s", cwd=here).out
        assert "be green" in out and out.startswith("s, paused")
        assert ortet("session", "ls", cwd=here).out.startswith("s ")
        assert ortet.json("session", "rm", "s", "--yes", cwd=here)["name"] == "s"
        assert ortet.kind("session", "show", "s", cwd=here, code=4) == "no_session"
        assert "rm" in ortet("session", cwd=here).out

    def test_log_of_a_session_without_commits_names_the_journal(
        self, ortet: Ortet, here: Path
    ) -> None:
        assert "`ortet journal s`" in ortet("log", "s", cwd=here, code=4).err
        assert "`ortet branch`" in ortet("log", "other", cwd=here, code=4).err

    def test_a_new_session_named_like_a_cloned_branch_prints_a_hint(
        self, ortet: Ortet, here: Path
    ) -> None:
        ortet("session", "new", "told", cwd=here)
        with open_hub(str(ortet.store)) as hub, hub.session("told") as s:
            s.say("user", "the login test fails")
            s.commit("said")
        clone = here / "clone"
        ortet("clone", str(ortet.store), str(clone), cwd=here)
        env = {"ORTET_URL": str(clone)}
        assert ortet("session", "new", "other", cwd=here, env=env).err == ""
        hint = ortet("session", "new", "told", cwd=here, env=env).err
        assert hint == ortet("session", "new", "told", cwd=here, env=env).err  # still empty
        _, _, program = hint.partition("in Python: ")
        subprocess.run(
            [ortet.argv()[0], "-c", f"import ortet\n{program}"], env=ortet.env | env, check=True
        )
        assert "1 message" in ortet("session", "show", "told", cwd=here, env=env).out
        assert ortet("session", "new", "told", cwd=here, env=env).err == ""

    def test_session_rm_needs_a_confirmation(self, ortet: Ortet, here: Path) -> None:
        assert ortet.kind("session", "rm", "s", cwd=here, code=2) == "not_confirmed"
        assert "--yes" in ortet("session", "rm", "s", cwd=here, code=2).err
        assert at_terminal(ortet, here, b"n\n", "session", "rm", "s") == 130
        assert len(ortet.json("session", "ls", cwd=here)) == 1
        assert at_terminal(ortet, here, b"y\n", "session", "rm", "s") == 0
        assert ortet.json("session", "ls", cwd=here) == []

    def test_a_session_takes_a_parent_and_a_profile(self, ortet: Ortet, here: Path) -> None:
        sub = ortet.json("session", "new", "sub", "--parent", "s", "--profile", "worker", cwd=here)
        (boss, _) = ortet.json("session", "ls", cwd=here)
        assert sub["parent"] == boss["id"]
        assert ortet.json("session", "show", "sub", cwd=here)["left"] == {"usd": 5.0}
        assert ortet.kind("session", "new", "x", "--profile", "odd", cwd=here, code=2)

    def test_invalid_session_arguments_are_refused(self, ortet: Ortet, here: Path) -> None:
        assert ortet.kind("session", "new", "a b", cwd=here, code=2) == "bad_name"
        assert ortet.kind("session", "new", "x", "--budget", "usd", cwd=here, code=2)
        assert ortet.kind("say", "hi", cwd=here, code=4) == "no_session"
        assert ortet.kind("say", "-s", "nobody", "hi", cwd=here, code=4) == "no_session"
        assert ortet.kind("say", "-s", "s", "", cwd=here, code=2) == "bad_usage"
        assert ortet.kind("say", "-s", "s", cwd=here, code=2) == "bad_usage"  # nothing comes in
        assert ortet.kind("turn", "s", cwd=here, code=2) == "bad_usage"
        assert ortet.kind("session", "rm", cwd=here, code=2) == "bad_usage"
        assert ortet.kind("session", "ls", "--status", "odd", cwd=here, code=2) == "bad_usage"

    def test_a_session_name_of_two_agents_is_ambiguous(self, ortet: Ortet, here: Path) -> None:
        ortet("session", "new", "s", "--agent", "other", cwd=here)
        assert ortet.kind("facts", "s", cwd=here, code=5) == "ambiguous"
        assert ortet.json("facts", "other/s", cwd=here) == []

    def test_session_ls_without_a_store_is_refused(self, ortet: Ortet, tmp_path: Path) -> None:
        assert ortet.kind("session", "ls", cwd=tmp_path, code=4) == "no_store"

    def test_commands_use_the_session_of_the_current_directory(
        self, ortet: Ortet, proj: Path, commit: Commit
    ) -> None:
        ortet("session", "new", "w", "-w", ".", cwd=proj)
        ortet("say", "here", cwd=proj)
        assert ortet.json("session", "show", cwd=proj)["messages"] == 1
        commit("both", **{"a.txt": "two\n"})
        assert ortet.json("session", "show", cwd=proj)["head"]


class TestMind:
    def test_say_plan_and_decide_are_recorded_in_the_journal(
        self, ortet: Ortet, here: Path
    ) -> None:
        first = ortet.json("say", "-s", "s", "hi", cwd=here)
        ortet("say", "-s", "s", "--role", "assistant", cwd=here, stdin=b"from a pipe")
        ortet("say", "-s", "s", "-", cwd=here, stdin=b"from another")
        ortet("plan", "-s", "s", "look", "fix", cwd=here)
        assert ortet("plan", "-s", "s", "--advance", cwd=here).out.split() == [
            *("done", "look", "now", "fix")
        ]
        assert ortet.json("plan", "-s", "s", cwd=here) == {"plan": ["look", "fix"], "step": 1}
        assert ortet.kind("plan", "-s", "s", "x", "--advance", cwd=here, code=2) == "bad_usage"
        ortet("decide", "-s", "s", "left", "--why", "near", "--instead-of", "right", cwd=here)
        shown = ortet.json("session", "show", "s", cwd=here)
        assert shown["messages"] == 3 and shown["decisions"] == ["left"]
        events = ortet.json("journal", "s", "--kind", "message", cwd=here)
        assert [e["data"]["content"] for e in events] == ["hi", "from a pipe", "from another"]
        assert events[0]["hash"] == first["hash"]
        assert len(ortet.json("journal", "s", "-n", "2", cwd=here)) == 2
        assert "(near)" in ortet("journal", "s", cwd=here).out
        assert "be green" in ortet("brief", "s", cwd=here).out
        assert ortet.json("brief", "s", "--tokens", "500", cwd=here)["markdown"]

    def test_facts_lists_facts_and_lessons(self, ortet: Ortet, here: Path) -> None:
        with open_hub(ortet.store) as hub, hub.session("s") as s:
            one, two = s.learn("known"), s.lesson("bitter")
        assert ortet("facts", "s", cwd=here).out.splitlines() == [
            f"{one[-8:]}  fact    session    known",
            f"{two[-8:]}  lesson  session    bitter",
        ]

    def test_journal_follow_prints_new_events_until_interrupted(
        self, ortet: Ortet, here: Path
    ) -> None:
        process = subprocess.Popen(
            ortet.argv("--json", "journal", "s", "--follow", "--kind", "message"),
            cwd=here,
            env=ortet.env,
            stdout=subprocess.PIPE,
        )
        try:
            assert process.stdout is not None
            for word in ("one", "two"):
                ortet("say", "-s", "s", word, cwd=here)
                assert json.loads(process.stdout.readline())["data"]["content"] == word
            process.send_signal(signal.SIGINT)
            assert process.wait(WAIT) == 130
        finally:
            process.kill()
            process.communicate()


class TestActions:
    def test_an_interrupted_effect_can_be_settled_with_an_outcome(
        self, ortet: Ortet, here: Path
    ) -> None:
        id_ = break_off(ortet)
        (effect,) = ortet.json("effects", "s", "--unsettled", cwd=here)
        assert (effect["id"], effect["why"]) == (id_, "due")
        assert "pay" in ortet("act", "ls", "-s", "s", cwd=here).out
        ortet("act", "settle", id_[-8:], "-s", "s", "--outcome", '{"paid": true}', cwd=here)
        assert ortet.json("effects", "s", "--unsettled", cwd=here) == []
        assert ortet.kind("act", "settle", id_, "-s", "s", cwd=here, code=5) == "settled"
        assert ortet("act", "settle", "zz", "-s", "s", cwd=here, code=None).code == 4
        with open_hub(ortet.store) as hub, hub.session("s") as s:
            assert s.act(lambda: {"paid": False}, name="pay", key="k") == {"paid": True}


class TestLife:
    def test_a_session_is_paused_archived_resumed_finished_and_reopened(
        self, ortet: Ortet, here: Path
    ) -> None:
        assert ortet.json("pause", "s", "--why", "lunch", cwd=here)["status"] == "paused"
        assert ortet.json("resume", "s", cwd=here)["status"] == "paused"
        archived = ortet.json("archive", "s", cwd=here)
        assert archived["key"].startswith("archives/")
        assert ortet.kind("finish", "s", cwd=here, code=5) == "session_closed"
        assert ortet.json("resume", "s", cwd=here)["status"] == "paused"
        assert ortet.json("finish", "s", "--why", "done", cwd=here)["status"] == "closed"
        assert ortet.kind("resume", "s", cwd=here, code=5) == "illegal_move"
        assert ortet.kind("say", "-s", "s", "x", cwd=here, code=5) == "session_closed"
        assert ortet.json("resume", "s", "--reopen", cwd=here)["status"] == "paused"
        ortet("session", "finish", "s", cwd=here)
        assert ortet.kind("session", "new", "s", cwd=here, code=5) == "session_closed"
        assert ortet.json("session", "new", "s", "--reopen", cwd=here)["status"] == "paused"
        ortet("finish", "s", cwd=here)
        ortet("archive", "s", cwd=here)
        ortet("verify", cwd=here)

    def test_the_session_of_a_killed_process_can_be_paused(self, ortet: Ortet, here: Path) -> None:
        break_off(ortet)
        assert ortet.json("session", "ls", cwd=here)[0]["status"] == "active"
        assert ortet.json("pause", "s", cwd=here)["status"] == "paused"

    def test_say_to_a_session_in_use_is_refused_and_names_the_holder(
        self, ortet: Ortet, here: Path
    ) -> None:
        with open_hub(ortet.store) as hub, hub.session("s"):
            assert ortet.kind("say", "-s", "s", "x", cwd=here, code=6) == "lease_held"
            said = ortet("say", "-s", "s", "x", cwd=here, code=6).err
            assert f"open in process {os.getpid()} of this host" in said and "comment" in said

    def test_audit_reports_a_sound_journal_and_detects_a_missing_body(
        self, ortet: Ortet, here: Path
    ) -> None:
        ortet("say", "-s", "s", "hi", cwd=here)
        report = ortet.json("audit", "s", cwd=here)
        assert report["lines"][-1]["hash"] == report["head"]
        last = ortet("audit", "s", cwd=here).out.splitlines()[-1]
        assert last == f"sound: {report['events']} events, head {report['head']}"
        with open_hub(ortet.store) as hub:
            (row,) = hub.sessions()
            hub.catalog.erase_events(row.timeline, [2])
        assert ortet.kind("audit", "s", cwd=here, code=8) == "missing_body"

    def test_retain_erases_messages_past_the_retention_limit(
        self, ortet: Ortet, here: Path
    ) -> None:
        assert ortet("retain", "--dry-run", cwd=here).out == "nothing to do\n"
        with open_hub(ortet.store) as hub:
            hub.governance.retention(keep_messages=0)
        ortet("say", "-s", "s", "x", cwd=here)
        dry = ortet.json("retain", "--dry-run", cwd=here)
        assert dry["dry_run"] and [deed["what"] for deed in dry["deeds"]] == ["erase"]
        assert ortet("retain", cwd=here).out.startswith("erase s: ")
        assert ortet.json("session", "show", "s", cwd=here)["messages"] == 0

    def test_quiet_session_commands_print_nothing(self, ortet: Ortet, here: Path) -> None:
        for words in (
            *(["session", "ls"], ["session", "show", "s"], ["say", "-s", "s", "x"]),
            *(["journal", "s"], ["plan", "-s", "s", "a"], ["facts", "s"], ["effects", "s"]),
            *(["pause", "s"], ["resume", "s"], ["audit", "s"], ["retain"], ["brief", "s"]),
            *(["archive", "s"], ["session", "rm", "s", "--yes"]),
        ):
            done = ortet(*words, "-q", cwd=here)
            assert (done.out, done.err) == ("", ""), words
        assert os.listdir(here) == ["home"]
