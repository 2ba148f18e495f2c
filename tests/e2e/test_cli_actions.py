"""act, effects, comment and journal --follow: effects of one process that another answers."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.fixtures import forked
from tests.fixtures.commands import Ortet
from tests.fixtures.waiting import WAIT

from ortet.config.environment import open_hub

WORKER = Path(__file__).with_name("worker.py")


@pytest.fixture
def here(ortet: Ortet, tmp_path: Path) -> Path:
    ortet("session", "new", "s", "--goal", "pay the bills", cwd=tmp_path)
    return tmp_path


def start(ortet: Ortet, job: str, *args: str) -> subprocess.Popen[str]:
    return forked.Popen(
        [sys.executable, str(WORKER), str(ortet.store), job, *args],
        env=ortet.env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


@contextmanager
def running(process: subprocess.Popen[str]) -> Iterator[subprocess.Popen[str]]:
    """Killed at the end of the block."""
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def first_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


class TestApproval:
    def test_an_effect_approved_after_its_process_was_killed_runs_once(
        self, ortet: Ortet, here: Path
    ) -> None:
        """One process asks and is killed, another approves, a third goes on."""
        to = here / "paid"
        with running(start(ortet, "wait_for_approval", str(to))) as process:
            id_ = first_line(process)
            (asked,) = ortet.json("act", "waiting", cwd=here)
            assert (asked["id"], asked["name"], asked["state"]) == (id_, "s", "asked")
            process.send_signal(signal.SIGKILL)
            assert process.wait(WAIT) == -signal.SIGKILL
        assert not to.exists()
        given = ortet.json("act", "approve", id_[-8:], "--why", "ok", cwd=here)
        assert (given["state"], given["because"]) == ("given", "ok")
        assert given["by"] == "tester"  # the user of the command
        assert ortet.json("act", "waiting", cwd=here) == []
        with running(start(ortet, "go_on", str(to))) as process:
            assert first_line(process) == "{'paid': 5}"
            assert process.wait(WAIT) == 0
        with running(start(ortet, "go_on", str(to))) as process:
            assert first_line(process) == "{'paid': 5}"  # the recorded outcome
        assert to.read_text() == "5\n"
        (action,) = ortet.json("act", "ls", "-s", "s", cwd=here)
        assert (action["approval"], action["outcome"]) == (id_, {"paid": 5})

    def test_an_approval_is_accepted_while_another_process_holds_the_session(
        self, ortet: Ortet, here: Path
    ) -> None:
        to = here / "paid"
        with running(start(ortet, "wait_for_approval", str(to))) as process:
            id_ = first_line(process)
        with running(start(ortet, "stay", str(to))) as process:
            assert first_line(process) == "open"
            ortet("act", "approve", id_, "-s", "s", cwd=here)  # it has the lease; no conflict
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
            assert first_line(process) == "{'paid': 5}"
        assert to.read_text() == "5\n"

    def test_a_denied_effect_does_not_run(self, ortet: Ortet, here: Path) -> None:
        with running(start(ortet, "wait_for_approval", "x")) as process:
            id_ = first_line(process)
        out = ortet("act", "waiting", cwd=here).out
        assert id_[-8:] in out and "it is 5" in out
        assert ortet("act", "deny", id_[-8:], "--why", "too much", cwd=here).out.startswith(
            "denied for s: pay(5"
        )
        late = ortet("--json", "act", "approve", id_, cwd=here, code=5).error
        assert (late["kind"], late["details"]["state"]) == ("answered", "denied")
        assert "too much" in ortet("act", "waiting", "--all", cwd=here).out
        assert ortet("act", "waiting", cwd=here).out == "nothing waits\n"
        with running(start(ortet, "go_on", "x")) as process:
            assert process.wait(WAIT) != 0
        assert not (here / "x").exists()

    def test_invalid_approval_arguments_are_refused(self, ortet: Ortet, here: Path) -> None:
        assert ortet.kind("act", "approve", "zz", cwd=here, code=4) == "no_approval"
        assert ortet.kind("act", "approve", "zz", "-s", "no", cwd=here, code=4) == "no_session"
        assert ortet.kind("act", "approve", cwd=here, code=2) == "bad_usage"
        assert "approve" in ortet("act", cwd=here).out

    def test_an_approval_shared_with_a_fork_is_one_item(self, ortet: Ortet, here: Path) -> None:
        with open_hub(ortet.store) as hub, hub.session("s") as s:
            id_ = s.actions.request_approval("open the door")
            s.fork(1, machine=False)
        (row,) = ortet.json("act", "waiting", cwd=here)
        assert row["name"] == "s"
        ortet("act", "approve", id_, cwd=here)
        assert ortet.json("act", "waiting", cwd=here) == []


class TestSettle:
    def test_an_unsettled_effect_can_be_settled_with_an_outcome(
        self, ortet: Ortet, here: Path
    ) -> None:
        to = here / "paid"
        with running(start(ortet, "die_paying", str(to))) as process:
            assert process.wait(WAIT) == -signal.SIGKILL
        (effect,) = ortet.json("effects", "s", "--unsettled", cwd=here)
        last = effect["id"][-8:]
        assert last in ortet("effects", "s", cwd=here).out
        shown = ortet.json("session", "show", "s", cwd=here)
        assert shown["unsettled"] == [effect["id"]]
        words = ["act", "settle", last, "-s", "s"]
        both = ["--outcome", "1", "--failed"]
        assert ortet.kind(*words, *both, cwd=here, code=2) == "bad_usage"
        assert ortet.kind("act", "settle", "zzzz", "-s", "s", cwd=here, code=4) == "no_effect"
        ortet(*words, "--outcome", '{"paid": 5}', cwd=here)
        assert ortet.kind(*words, "--failed", cwd=here, code=5) == "settled"
        (action,) = ortet.json("act", "ls", "-s", "s", "--state", "done", cwd=here)
        assert (action["outcome"], action["why"]) == ({"paid": 5}, "due")
        assert ortet.json("act", "ls", "-s", "s", "--state", "failed", cwd=here) == []
        assert ortet.kind("act", "ls", "-s", "s", "--state", "odd", cwd=here, code=2)
        assert to.read_text() == "5\n"
        ortet("audit", "s", cwd=here)

    def test_an_effect_settled_as_failed_can_be_retried(self, ortet: Ortet, here: Path) -> None:
        to = here / "paid"
        with running(start(ortet, "die_paying", str(to))) as process:
            process.wait(WAIT)
        (effect,) = ortet.json("effects", "s", cwd=here)
        ortet("act", "settle", effect["id"][:20], "-s", "s", "--failed", cwd=here)
        assert "failed" in ortet("act", "ls", "-s", "s", cwd=here).out
        with open_hub(ortet.store) as hub, hub.session("s") as s:
            assert s.act(lambda: 7, name="pay", key="invoice-7") == 7

    def test_an_ambiguous_effect_id_prefix_is_refused(self, ortet: Ortet, here: Path) -> None:
        with open_hub(ortet.store) as hub, hub.session("s") as s:
            for number in range(3):
                s.act(str, number, name="look")
        ids = [one["id"] for one in ortet.json("effects", "s", cwd=here)]
        assert ortet.kind("act", "settle", ids[0][:6], "-s", "s", cwd=here, code=5) == "ambiguous"


class TestTerminal:
    def test_lines_are_cut_to_the_terminal_width_but_not_in_a_pipe(
        self, ortet: Ortet, here: Path
    ) -> None:
        with open_hub(ortet.store) as hub, hub.session("s") as s:
            s.act(str, "x" * 200, name="write", why="y" * 200)
        ours, theirs = pty.openpty()
        try:
            env = ortet.env | {"COLUMNS": "60", "TERM": "dumb"}
            words = ortet.argv("act", "ls", "-s", "s")
            subprocess.run(words, cwd=here, env=env, stdout=theirs, check=True)
            line = os.read(ours, 4096).decode().rstrip()
        finally:
            os.close(ours)
            os.close(theirs)
        assert len(line) == 60 and line.endswith("…")
        assert len(ortet("act", "ls", "-s", "s", cwd=here).out) > 400  # a pipe gets all of it


class TestComment:
    def test_a_comment_is_accepted_while_another_process_holds_the_session(
        self, ortet: Ortet, here: Path
    ) -> None:
        with running(start(ortet, "stay", "")) as process:
            assert first_line(process) == "open"
            assert ortet.kind("say", "-s", "s", "hi", cwd=here, code=6) == "lease_held"
            left = ortet.json("comment", "-s", "s", "mind the step", "--by", "ann", cwd=here)
            assert left["waiting"] and left["actor"] == "ann"
            waits = ortet("journal", "s", "-n", "1", cwd=here).out
            assert waits.split()[0] == "-" and "mind the step" in waits
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
            assert len(first_line(process)) == 64
        (event,) = ortet.json("journal", "s", "--kind", "comment", cwd=here)
        assert event["seq"] and not event["waiting"]
        assert ortet.kind("comment", "-s", "s", "", cwd=here, code=2) == "bad_comment"


class TestFollow:
    @contextmanager
    def follow(self, ortet: Ortet, here: Path, *words: str) -> Iterator[subprocess.Popen[str]]:
        process = subprocess.Popen(
            ortet.argv("--json", "journal", "s", "--follow", *words),
            cwd=here,
            env=ortet.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        with running(process):
            yield process

    def next(self, process: subprocess.Popen[str]) -> dict[str, object]:
        found: dict[str, object] = json.loads(first_line(process))
        return found

    def test_follow_shows_a_comment_when_it_waits_and_when_it_is_recorded(
        self, ortet: Ortet, here: Path
    ) -> None:
        with self.follow(ortet, here, "--kind", "comment", "--kind", "message") as process:
            ortet("comment", "-s", "s", "first", cwd=here)
            assert self.next(process)["waiting"] is True
            ortet("say", "-s", "s", "second", cwd=here)
            seen = [self.next(process), self.next(process)]
            assert [one["kind"] for one in seen] == ["comment", "message"]
            assert not any(one["waiting"] for one in seen)
            process.send_signal(signal.SIGINT)
            assert process.wait(WAIT) == 130
            assert process.stderr is not None and process.stderr.read().strip() == ""

    def test_follow_continues_over_commits_trims_and_restores(
        self, ortet: Ortet, here: Path
    ) -> None:
        with self.follow(ortet, here, "--kind", "message", "-n", "1") as process:
            with open_hub(ortet.store) as hub:
                with hub.session("s") as s:
                    s.say("user", "kept")
                    assert self.next(process)["data"] == {"role": "user", "content": "kept"}
                    point = s.commit("here")
                    s.say("user", "gone")
                    assert self.next(process)["data"] == {"role": "user", "content": "gone"}
                    s.restore(point.oid)
                    s.say("user", "instead")
                    assert self.next(process)["data"] == {"role": "user", "content": "instead"}
                    s.commit("again")
                hub.governance.retain()
                with hub.session("s") as s:
                    s.say("user", "after a trim")
            assert self.next(process)["data"] == {"role": "user", "content": "after a trim"}

    def test_journal_n_shows_the_last_n_events(self, ortet: Ortet, here: Path) -> None:
        for word in "abc":
            ortet("say", "-s", "s", word, cwd=here)
        found = ortet.json("journal", "s", "-n", "2", "--kind", "message", cwd=here)
        assert [one["data"]["content"] for one in found] == ["b", "c"]
        whole = ortet.json("journal", "s", cwd=here)
        assert ortet.json("journal", "s", "-n", "3", cwd=here) == whole[-3:]


def test_quiet_act_commands_print_nothing(ortet: Ortet, here: Path) -> None:
    with open_hub(ortet.store) as hub, hub.session("s") as s:
        first, second = s.actions.request_approval("a"), s.actions.request_approval("b")
    for words in (
        *(["act", "ls", "-s", "s"], ["act", "waiting"], ["comment", "-s", "s", "x"]),
        *(["act", "approve", first], ["act", "deny", second], ["effects", "s"]),
    ):
        done = ortet(*words, "-q", cwd=here)
        assert (done.out, done.err) == ("", ""), words


def test_an_effect_of_a_running_process_is_not_unsettled(ortet: Ortet, here: Path) -> None:
    with running(start(ortet, "keep_paying", "due")) as process:
        assert first_line(process) == "begun"
        assert ortet.json("effects", "s", "--unsettled", cwd=here) == []
        assert ortet.json("session", "show", "s", cwd=here)["unsettled"] == []
        assert [one["state"] for one in ortet.json("effects", "s", cwd=here)] == ["begun"]
