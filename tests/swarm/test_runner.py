"""Swarms on this host: each attempt has its own process and fork, and the best is kept."""

from __future__ import annotations

import os
import secrets
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.swarm import tasks

from ortet.errors import Conflict, Invalid, NotFound, OrtetError, Refused, Unavailable
from ortet.hub.hub import Hub
from ortet.sessions.session import Session
from ortet.sessions.swarm_api import SwarmResult, SwarmStopSignal


def states(result: SwarmResult) -> list[str]:
    return [one.state if one.state != "failed" else one.reason for one in result.attempts]


def scores(result: SwarmResult) -> list[float | None]:
    return [one.score for one in result.attempts]


def sleeping(seconds: int) -> list[int]:
    """Processes that sleep for so long."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            words = Path(f"/proc/{name}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if words[:2] == [b"sleep", str(seconds).encode()]:
            found.append(int(name))
    return found


@pytest.fixture
def long() -> int:
    """Seconds to sleep that no other test sleeps."""
    return 10**6 + secrets.randbelow(10**6)


def test_the_best_attempt_is_adopted_and_the_others_are_dropped(hub: Hub, mind: Session) -> None:
    result = mind.swarm(tasks.number, n=5, parallel=2)
    assert (result.state, result.kept, scores(result)) == ("finished", [4], [0, 1, 2, 3, 4])
    assert [m.content for m in mind.messages()] == ["go on", "attempt 4"]
    assert mind.head is not None and mind.head.oid == result.winners[0].commit
    assert [row.name for row in hub.sessions()] == ["mind"]
    assert [head.name for head in hub.refs.branches()] == ["mind"]
    assert [hub.show(one.commit).parents for one in result.attempts] == [[result.commit]] * 5
    hub.verify()


def test_each_attempt_runs_in_its_own_process(mind: Session) -> None:
    result = mind.swarm(tasks.own_process, n=3, score=tasks.number)
    found: list[list[int]] = [one.value for one in result.attempts]
    pids, parents, leaders = (list(each) for each in zip(*found, strict=True))
    assert len(set(pids)) == 3
    assert len(set(parents)) == 1
    assert leaders == pids
    assert os.getpid() not in (*pids, *parents)


def test_attempts_have_separate_files_and_the_best_are_adopted(
    hub: Hub, files: Session, work: Path
) -> None:
    result = files.swarm(tasks.write, n=3)
    assert states(result) == ["done"] * 3, [one.error for one in result.attempts]
    assert sorted(path.name for path in work.iterdir()) == ["all", "mine-2"]
    assert (work / "all").read_text() == "2\n"
    assert [row.name for row in hub.workspaces.table.all()] == [files.internals.row.branch]
    assert list((hub.root / "local/machines").iterdir()) == [
        hub.root / "local/machines" / files.machine.row.machine
    ]
    hub.verify()


def test_swarm_works_on_a_directory_without_a_commit(hub: Hub, work: Path) -> None:
    session = hub.session("new", workspace=work)
    result = session.swarm("echo $ORTET_ATTEMPT | tee found", n=2)
    assert (states(result), (work / "found").read_text()) == (["done"] * 2, "1\n")


def test_commands_can_be_task_and_score(files: Session, work: Path) -> None:
    task = "echo $ORTET_SESSION > who; expr $ORTET_ATTEMPT % 3 > score; cat who"
    result = files.swarm(task, n=4, score=["cat", "score"])
    assert scores(result) == [0, 1, 2, 0]
    assert (work / "who").read_text() == "files/swarm-1-2\n"


@pytest.mark.parametrize(
    ("score", "expected"),
    [
        ("exit $ORTET_ATTEMPT", [0, -1, -2]),
        ("echo scored; echo $ORTET_ATTEMPT.5", [0.5, 1.5, 2.5]),
        ("echo 5; exit $ORTET_ATTEMPT", [5, None, None]),
        (["no-such-command"], [None, None, None]),
        (None, [0, 0, 0]),
    ],
)
def test_score_command_output_or_exit_code_is_the_score(
    mind: Session, score: Any, expected: list[Any]
) -> None:
    result = mind.swarm("true", n=3, score=score, keep=0)
    assert scores(result) == expected, [one.error for one in result.attempts]
    assert {one.reason for one in result.attempts} <= {"", "score"}


def test_failing_attempt_does_not_affect_the_others(hub: Hub, mind: Session) -> None:
    result = mind.swarm(tasks.fail, n=5, parallel=3)
    assert states(result) == ["crash", "error", "crash", "done", "done"]
    errors = [one.error for one in result.attempts]
    assert "signal 9" in errors[0]
    assert errors[1] == "RuntimeError: it went wrong"
    assert "exit code 7" in errors[2]
    assert result.kept == [4]
    assert [row.name for row in hub.sessions()] == ["mind"]


def test_a_failing_command_is_a_failed_attempt(mind: Session) -> None:
    task = "test $ORTET_ATTEMPT = 1 || { echo broken >&2; exit 3; }"
    result = mind.swarm(task, n=2, score="true")
    assert states(result) == ["error", "done"]
    assert result.attempts[0].error == "exit code 3: broken"


def test_timeout_ends_every_process_of_an_attempt(
    files: Session, tmp_path: Path, long: int
) -> None:
    files.note("here", str(tmp_path))
    files.note("long", long)
    for seconds in (4.0, 15.0, 60.0):  # a slow host may need more for what is to be ended, or done
        result = files.swarm(tasks.hang, n=2, timeout=seconds)
        assert sleeping(long) == []
        if (tmp_path / "begun").exists() and states(result)[1] == "done":
            break
    assert states(result) == ["timeout", "done"]
    assert (tmp_path / "begun").exists()
    assert result.kept == [1]


def test_processes_left_by_an_attempt_are_ended(mind: Session, long: int) -> None:
    mind.note("long", long)
    result = mind.swarm(tasks.leave_behind, n=3)
    assert states(result) == ["done"] * 3
    assert sleeping(long) == []


def test_swarm_stops_the_rest_once_stop_when_is_reached(mind: Session) -> None:
    result = mind.swarm(tasks.block, n=4, parallel=2, stop_when=0)
    assert states(result) == ["done", "stopped", "stopped", "stopped"]
    assert result.kept == [0]


def test_halted_swarm_keeps_the_best_finished_attempt(mind: Session, long: int) -> None:
    with SwarmStopSignal() as halt:

        def enough(result: SwarmResult) -> None:
            if result.best:
                halt.stop()

        task = f"[ $ORTET_ATTEMPT = 0 ] || sleep {long}; echo 5"
        result = mind.swarm(task, 4, parallel=2, halt=halt, progress=enough)
    assert states(result) == ["done", "stopped", "stopped", "stopped"]
    assert (result.state, result.kept) == ("finished", [0])
    assert sleeping(long) == []


def test_swarm_left_by_its_driver_can_be_resumed(mind: Session, tmp_path: Path, long: int) -> None:
    gate = tmp_path / "go"
    task = f"[ $ORTET_ATTEMPT = 0 ] || [ -e {gate} ] || sleep {long}; echo $ORTET_ATTEMPT"

    def leave(now: SwarmResult) -> None:
        if now.best is not None:
            halt.detach()

    with SwarmStopSignal() as halt, pytest.raises(Unavailable) as error:
        mind.swarm(task, 4, name="cut", halt=halt, progress=leave)
    assert error.value.kind == "swarm_left"
    assert sleeping(long) == []
    gate.touch()
    result = mind.swarm(name="cut")
    assert states(result) == ["done"] * 4
    assert result.attempts[0].tries == 1
    assert result.kept == [3]


def test_stop_when_function_gets_the_results_so_far(mind: Session) -> None:
    seen: list[int] = []

    def stop(found: SwarmResult) -> bool:
        assert found.best is not None
        seen.append(found.count("done"))
        return found.best.score == 2

    result = mind.swarm(tasks.number, n=9, parallel=1, stop_when=stop)
    assert (seen, result.kept, result.count("stopped")) == ([1, 2, 3], [2], 6)


@pytest.mark.parametrize("score", [tasks.bad_score, None])
def test_invalid_score_fails_the_attempt(mind: Session, score: Any) -> None:
    task = tasks.nothing if score else tasks.bad_score
    result = mind.swarm(task, n=4, score=score)
    assert states(result) == ["score", "score", "score", "done"]
    assert all("finite number" in one.error for one in result.attempts[:3])
    assert result.kept == [3]


def test_score_function_that_raises_fails_its_attempt(mind: Session) -> None:
    result = mind.swarm(tasks.nothing, n=2, score=tasks.raise_score)
    assert states(result) == ["score", "done"]
    assert "ValueError: no idea" in result.attempts[0].error


def test_without_a_score_nothing_is_kept(mind: Session) -> None:
    before = mind.head
    result = mind.swarm(tasks.nothing, n=2)
    assert (states(result), result.kept) == (["score", "score"], [])
    assert mind.head is not None
    assert mind.head.oid == result.commit
    assert mind.swarm(tasks.nothing, n=1, keep=0).attempts[0].state == "done"
    assert before is None


def test_keep_of_several_leaves_them_as_sessions(hub: Hub, mind: Session) -> None:
    result = mind.swarm(tasks.number, n=4, keep=2, name="round")
    assert (result.kept, result.winners[0].session) == ([3, 2], "mind/round-3")
    assert {row.name for row in hub.sessions()} == {"mind", "mind/round-2", "mind/round-3"}
    assert [m.content for m in mind.messages()] == ["go on"]
    next_ = [hub.session(one.session).swarm(tasks.number, n=2) for one in result.winners]
    assert [one.kept for one in next_] == [[1], [1]]


def test_losing_attempts_are_kept_as_sessions_on_request(hub: Hub, mind: Session) -> None:
    mind.swarm(tasks.number, n=3, losers="keep", name="all")
    names = {row.name for row in hub.sessions()}
    assert names == {"mind", "mind/all-0", "mind/all-1", "mind/all-2"}
    assert [m.content for m in hub.session("mind/all-1").messages()][-1] == "attempt 1"


def test_keep_merge_merges_all_attempts_and_the_best_wins_conflicts(
    files: Session, work: Path
) -> None:
    result = files.swarm(tasks.write, n=3, keep="merge")
    assert result.kept == [2, 1, 0]
    assert sorted(path.name for path in work.iterdir()) == ["all", "mine-0", "mine-1", "mine-2"]
    assert (work / "all").read_text() == "2\n"  # the best comes first, and wins
    assert result.conflicts == ["all"]
    assert {fact.text for fact in files.facts()} == {f"learned by {i}" for i in range(3)}


def test_keep_merge_2_merges_the_best_two(files: Session, work: Path) -> None:
    assert files.swarm(tasks.write, n=3, keep="merge:2").kept == [2, 1]
    assert sorted(path.name for path in work.iterdir()) == ["all", "mine-1", "mine-2"]


def test_harvest_adds_facts_of_losing_attempts(mind: Session) -> None:
    result = mind.swarm(tasks.learn, n=3, harvest=True)
    assert result.kept == [2]
    texts = {fact.text for fact in mind.facts()}
    assert {"0 is the answer", "1 is the answer", "2 is the answer", "lesson 0"} <= texts
    assert len(result.harvested) == 4
    pairs = {(one.ours.text[0], one.theirs.text[0]) for one in result.contradictions}
    assert pairs == {("2", "0"), ("2", "1"), ("0", "1")}
    assert mind.head is not None
    assert mind.head.message == "swarm swarm-1: learned from other attempts"


def test_swarm_starts_from_the_given_tag(hub: Hub, files: Session, work: Path) -> None:
    golden = files.commit("golden")
    hub.refs.create("golden", bytes.fromhex(golden.oid), kind="tag")  # type: ignore[arg-type]
    (work / "all").write_text("later\n")
    files.commit("later")
    result = files.swarm('test "$(cat all)" = before && echo 1 > found', n=2, at="golden")
    assert (result.commit, states(result)) == (golden.oid, ["done", "done"])
    assert ((work / "all").read_text(), (work / "found").exists()) == ("before\n", True)


# money


def test_attempt_that_exceeds_its_budget_share_fails(hub: Hub) -> None:
    s = hub.session("rich", budget={"usd": 10.0})
    result = s.swarm(tasks.spend, n=3, budget={"usd": 1.0}, keep=0)
    assert states(result) == ["budget", "done", "done"]
    assert "its share (usd 2 of 1)" in result.attempts[0].error
    assert s.accounting.budget_left()["usd"] == pytest.approx(7.0)


def test_unspent_budget_of_an_attempt_is_returned(hub: Hub) -> None:
    s = hub.session("poor", budget={"usd": 1.0})
    result = s.swarm(tasks.spend_some, n=5, parallel=2, budget={"usd": 0.5}, keep=0)
    assert states(result) == ["done"] * 5
    assert scores(result) == pytest.approx([0.4] * 5)
    assert s.accounting.budget_left()["usd"] == pytest.approx(0.5)


def test_swarm_is_refused_if_the_budget_does_not_cover_one_share(hub: Hub) -> None:
    s = hub.session("poor", budget={"usd": 2.0})
    with pytest.raises(Refused, match="give less to each") as refused:
        s.swarm(tasks.spend, n=2, budget={"usd": 3.0})
    assert refused.value.kind == "budget_spent"
    assert [head.name for head in hub.refs.branches()] == []
    result = s.swarm(tasks.spend, n=4, parallel=1, budget={"usd": 1.5}, keep=0)
    assert states(result) == ["budget"] * 4  # the first spent it all


# a second call


def test_a_finished_swarm_is_not_run_again(mind: Session) -> None:
    first = mind.swarm(tasks.number, n=2, name="one")
    assert mind.swarm(tasks.number, n=2, name="one") == first
    assert mind.swarm(name="one") == first
    with pytest.raises(Conflict, match=r"another n, task") as error:
        mind.swarm(tasks.learn, n=3, name="one")
    assert error.value.kind == "swarm_differs"
    with pytest.raises(NotFound, match="no swarm 'two'"):
        mind.swarm(name="two")


def test_swarms_are_listed_and_removed_with_their_session(hub: Hub, mind: Session) -> None:
    mind.swarm(tasks.number, n=2)
    second = mind.swarm(tasks.number, n=3)
    assert [one.name for one in hub.swarms.all(mind)] == ["swarm-1", "swarm-2"]
    assert hub.swarms.get(hub.get("mind"), "swarm-2") == second
    id_ = mind.id
    mind.pause()
    hub.remove(id_)
    assert hub.catalog.rows(f"swarm/{id_}") == []


def test_second_driver_of_a_running_swarm_is_refused(hub: Hub, mind: Session) -> None:
    refused: list[OrtetError] = []
    seen = threading.Event()

    def watch(found: SwarmResult) -> None:
        if not seen.is_set():
            seen.set()
            with pytest.raises(Refused, match="being driven already") as error:
                mind.swarm(tasks.number, n=2)
            refused.append(error.value)

    mind.swarm(tasks.number, n=2, progress=watch)
    assert [error.kind for error in refused] == ["swarm_driven"]


def test_swarm_name_that_collides_with_a_session_is_refused(hub: Hub, mind: Session) -> None:
    hub.session("mind/try-1").pause()
    with pytest.raises(Conflict, match="mind/try-1") as error:
        mind.swarm(tasks.number, n=3, name="try")
    assert error.value.kind == "name_taken"
    assert hub.swarms.all(mind) == []


@pytest.mark.parametrize(
    ("wrong", "kind"),
    [
        ({"n": 0}, "bad_count"),
        ({"n": 2.5}, "bad_count"),
        ({"parallel": 0}, "bad_count"),
        ({"task": 5}, "bad_task"),
        ({"task": None}, "bad_task"),
        ({"task": ""}, "bad_task"),
        ({"task": []}, "bad_task"),
        ({"score": 5}, "bad_task"),
        ({"keep": -1}, "bad_keep"),
        ({"keep": "best"}, "bad_keep"),
        ({"keep": "merge:0"}, "bad_keep"),
        ({"keep": True}, "bad_keep"),
        ({"timeout": "long"}, "bad_value"),
        ({"losers": "eat"}, "bad_value"),
        ({"harvest": 1}, "bad_value"),
        ({"interrupted": "?"}, "bad_value"),
        ({"stop_when": "good"}, "bad_value"),
        ({"stop_when": float("nan")}, "bad_value"),
        ({"budget": 5}, "bad_budget"),
        ({"budget": {"usd": -1}}, "bad_amount"),
        ({"name": "a/b"}, "bad_name"),
        ({"name": "7"}, "bad_name"),
        ({"name": "a b"}, "bad_name"),
        ({"name": 5}, "not_text"),
        ({"progress": 5}, "bad_value"),
        ({"halt": 5}, "bad_value"),
        ({"at": "nowhere"}, "no_ref"),
    ],
)
def test_invalid_arguments_are_refused_before_anything_is_written(
    hub: Hub, mind: Session, wrong: dict[str, Any], kind: str
) -> None:
    with pytest.raises((Invalid, NotFound)) as error:
        mind.swarm(**{"task": tasks.number, "n": 2, **wrong})
    assert error.value.kind == kind
    assert hub.swarms.all(mind) == []
    assert [row.name for row in hub.sessions()] == ["mind"]
