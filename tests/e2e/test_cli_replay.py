"""replay, whatif and diff-runs: the program of a user is run against its record."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tests.fixtures import forked
from tests.fixtures.commands import Ortet

from ortet.config.environment import open_hub

PROGRAM = """
import pathlib, sys
import ortet

def search(word):
    with pathlib.Path("done").open("a") as file:
        file.write(word + "\\n")
    return {"hits": [word, len(word)]}

with ortet.open() as hub, hub.session("s", goal="find it") as s:
    s.say("user", "find it")
    found = s.act(search, WORD, why="asked")
    s.spend(usd=0.5, model="large")
    s.say("assistant", f"{found}")
    s.commit("found")
    MORE
print("end of program")
"""


class Agent:
    """A user's program with a session `s`, run once."""

    def __init__(self, ortet: Ortet, place: Path) -> None:
        self.ortet = ortet
        self.place = place
        self.write()

    def write(self, word: str = "abc", more: str = "s.say('user', 'thanks')") -> None:
        text = PROGRAM.replace("WORD", repr(word)).replace("MORE", more)
        (self.place / "agent.py").write_text(text)

    @property
    def words(self) -> list[str]:
        return ["--", sys.executable, "agent.py"]

    @property
    def done(self) -> str:
        return (self.place / "done").read_text()

    def events(self) -> list[str]:
        return [one["hash"] for one in self.ortet.json("journal", "s", cwd=self.place)]


@pytest.fixture
def agent(ortet: Ortet, tmp_path: Path) -> Agent:
    agent = Agent(ortet, tmp_path)
    forked.run(
        [sys.executable, "agent.py"], cwd=tmp_path, env=ortet.env, check=True, capture_output=True
    )
    return agent


class TestReplay:
    def test_replay_without_a_program_lists_the_recorded_steps(
        self, ortet: Ortet, agent: Agent
    ) -> None:
        steps = ortet.json("replay", "s", cwd=agent.place)
        assert [step["kind"] for step in steps] == [
            *("message", "begun", "spend", "message", "message")
        ]
        assert steps[1]["outcome"] == {"hits": ["abc", 3]} and steps[1]["state"] == "done"
        out = ortet("replay", "s", cwd=agent.place).out
        assert "act       search('abc')\n" in out and "done: {'hits': ['abc', 3]}" in out

    def test_replay_shows_the_outcome_of_each_try(self, ortet: Ortet, agent: Agent) -> None:
        with open_hub(ortet.store) as hub, hub.session("t") as s:
            with pytest.raises(ZeroDivisionError):
                s.act(lambda: 1 // 0, name="try", key="k")
            s.act(lambda: 5, name="try", key="k")
        first, second = ortet.json("replay", "t", cwd=agent.place)
        assert (first["state"], first["outcome"]) == ("failed", None)
        assert (second["state"], second["outcome"], second["error"]) == ("done", 5, None)

    def test_replay_of_an_unchanged_program_repeats_no_effect(
        self, ortet: Ortet, agent: Agent
    ) -> None:
        before = agent.events()
        done = ortet("replay", "s", *agent.words, cwd=agent.place)
        assert done.out.startswith("end of program\ns: all ")
        found = ortet("replay", "s", "--json", *agent.words, cwd=agent.place).data
        assert found["same"] is True and found["exit_code"] == 0
        assert agent.done == "abc\n"  # once: nothing was done again
        assert agent.events() == before

    def test_replay_of_a_changed_step_shows_the_difference(
        self, ortet: Ortet, agent: Agent
    ) -> None:
        before = agent.events()
        agent.write(word="xyz")
        done = ortet("replay", "s", *agent.words, cwd=agent.place, code=5)
        table = done.err[done.err.index("error: the replay of s left the record") :].splitlines()
        assert table[1].split() == ["then", "now"]
        assert [line.split() for line in table[2:4]] == [
            *(["act", "search", "act", "search"], ["'abc'", "|", "'xyz'"])
        ]
        assert max(map(len, table)) <= 80
        assert agent.done == "abc\n" and agent.events() == before

    def test_replay_reports_a_divergence_that_the_program_catches(
        self, ortet: Ortet, agent: Agent
    ) -> None:
        """A program that swallows the difference is told of all the same: the first one."""
        first = "exec(\"try:\\n s.say('user', 'otherwise')\\nexcept Exception: pass\")"
        agent.write(more=f"{first}; s.say('user', 'thanks')")
        done = ortet("replay", "s", "--json", *agent.words, cwd=agent.place, code=5)
        details = done.error["details"]
        assert details["got"]["data"]["content"] == "otherwise"
        assert details["expected"]["data"]["content"] == "thanks"
        assert details["exit_code"] == 0

    def test_replay_with_a_missing_step_diverges(self, ortet: Ortet, agent: Agent) -> None:
        agent.write(more="")
        error = ortet("replay", "s", "--json", *agent.words, cwd=agent.place, code=5).error
        assert error["error"] == "diverged" and error["details"]["got"] is None
        assert error["details"]["expected"]["data"]["content"] == "thanks"

    def test_replay_with_an_additional_step_diverges(self, ortet: Ortet, agent: Agent) -> None:
        agent.write(more="s.say('user', 'thanks'); s.say('user', 'and more')")
        error = ortet("replay", "s", "--json", *agent.words, cwd=agent.place, code=5)
        assert '"expected": null' in error.err
        assert (
            "nothing more was recorded"
            in ortet("replay", "s", *agent.words, cwd=agent.place, code=5).err
        )

    def test_replay_keeps_the_exit_code_of_the_program(self, ortet: Ortet, agent: Agent) -> None:
        agent.write(more="s.say('user', 'thanks'); sys.exit(3)")
        found = ortet("replay", "s", "--json", *agent.words, cwd=agent.place, code=3).data
        assert found["same"] is True and found["exit_code"] == 3

    def test_invalid_replay_arguments_are_refused(self, ortet: Ortet, agent: Agent) -> None:
        here = agent.place
        assert ortet.kind("replay", "no", cwd=here, code=4) == "no_session"
        assert ortet.kind("replay", "s", "--", "true", cwd=here, code=2) == "not_replayed"
        assert ortet.kind("replay", "s", "--", "no-such", cwd=here, code=4) == "no_command"

    def test_replay_stops_where_the_record_waits_for_an_approval(
        self, ortet: Ortet, tmp_path: Path
    ) -> None:
        """Failed before: it diverged at a step that was only asked for, then as now."""
        agent = Agent(ortet, tmp_path)
        agent.write(more="s.act(search, 'pay', approve='it costs')")
        words = [sys.executable, "agent.py"]
        done = forked.run(words, cwd=tmp_path, env=ortet.env, check=False, capture_output=True)
        assert done.returncode == 1
        before = agent.events()
        with open_hub(ortet.store) as hub:
            (asked,) = hub.get("s").actions.approvals()
        found = ortet.json("replay", "s", *agent.words, cwd=tmp_path)
        assert found["same"] and found["waits"]["id"] == asked.id
        shown = ortet("replay", "s", *agent.words, cwd=tmp_path).out
        assert f"waits for approval {asked.id}" in shown
        assert agent.events() == before and agent.done == "abc\n"
        agent.write(more="s.act(search, 'play', approve='it costs')")
        ortet("replay", "s", *agent.words, cwd=tmp_path, code=5)

    def test_replay_works_while_another_process_holds_the_session(
        self, ortet: Ortet, agent: Agent
    ) -> None:
        with open_hub(ortet.store) as hub, hub.session("s"):
            ortet("replay", "s", *agent.words, cwd=agent.place)
        assert agent.done == "abc\n"


class TestWhatif:
    def test_whatif_with_another_result_makes_a_fork(self, ortet: Ortet, agent: Agent) -> None:
        here, before = agent.place, agent.events()
        (begun,) = ortet.json("journal", "s", "--kind", "begun", cwd=here)
        made = ortet.json("whatif", "s", str(begun["seq"]), "--result", '{"hits": []}', cwd=here)
        assert (made["name"], made["status"]) == ("s/1", "paused")
        (action,) = ortet.json("act", "ls", "-s", "s/1", cwd=here)
        assert action["outcome"] == {"hits": []}
        assert agent.events() == before
        found = ortet.json("diff-runs", "s", "s/1", cwd=here)
        assert not found["same"] and found["seq"] == begun["seq"] + 1
        first = next(pair for pair in found["pairs"] if not pair["same"])
        assert first["right"]["data"]["outcome"] == {"hits": []}
        out = ortet("diff-runs", "s", "s/1", cwd=here).out.splitlines()
        assert out[0] == f"they part at event {begun['seq'] + 1}"
        assert max(map(len, out)) <= 80

    def test_whatif_with_another_message_or_failure_makes_a_fork(
        self, ortet: Ortet, agent: Agent
    ) -> None:
        here = agent.place
        said = ortet.json("journal", "s", "--kind", "message", cwd=here)[0]["seq"]
        ortet("whatif", "s", str(said), "--message", "find them", cwd=here)
        ortet("whatif", "s", str(said), "--message", "-", cwd=here, stdin=b"from a pipe")
        for name, text in (("s/1", "find them"), ("s/2", "from a pipe")):
            (event,) = ortet.json("journal", name, "--kind", "message", cwd=here)
            assert event["data"]["content"] == text
        ortet("whatif", "s", str(said + 1), "--error", "OSError: no net", cwd=here)
        assert ortet.json("act", "ls", "-s", "s/3", cwd=here)[0]["error"] == "OSError: no net"

    def test_diff_runs_of_the_same_run_finds_no_difference(
        self, ortet: Ortet, agent: Agent
    ) -> None:
        assert ortet.json("diff-runs", "s", "s", cwd=agent.place)["same"] is True
        assert ortet("diff-runs", "s", "s", cwd=agent.place).out.startswith("the runs are the same")

    def test_invalid_whatif_arguments_are_refused(self, ortet: Ortet, agent: Agent) -> None:
        here = agent.place
        for words, code, kind in (
            (["s", "3"], 2, "bad_usage"),
            (["s", "3", "--message", "a", "--error", "b"], 2, "bad_usage"),
            (["s", "0", "--message", "a"], 2, "bad_usage"),
            (["s", "999", "--message", "a"], 4, "no_event"),
            (["s", "2", "--result", "1"], 2, "bad_change"),
            (["no", "2", "--result", "1"], 4, "no_session"),
        ):
            assert ortet.kind("whatif", *words, cwd=here, code=code) == kind, words
        assert len(ortet.json("session", "ls", cwd=here)) == 1
        assert ortet.kind("diff-runs", "s", "no", cwd=here, code=4) == "no_session"


def test_quiet_replay_commands_print_nothing(ortet: Ortet, agent: Agent) -> None:
    for words in (
        *(["replay", "s", "-q"], ["replay", "s", "-q", *agent.words]),
        *(["whatif", "s", "3", "--message", "x", "-q"], ["diff-runs", "s", "s/1", "-q"]),
    ):
        done = ortet(*words, cwd=agent.place)
        assert (done.out, done.err) == ("", ""), words
