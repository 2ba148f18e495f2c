"""Conversation and files go back together, whoever changed the files."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.fixtures import forked
from tests.integrations.claude.lines import SESSION, answer, append, call, key, load, prompt, result

import ortet
from ortet.errors import Conflict, Invalid, NotFound
from ortet.hub.hub import Hub
from ortet.integrations.claude import OrtetSessionStore
from ortet.integrations.claude.transcript import transcript_session_name

pytestmark = pytest.mark.files({"src/app.py": "print('one')\n"})

ENTRIES = list[dict[str, Any]]


@pytest.fixture
def store(hub: Hub, work: Path) -> OrtetSessionStore:
    return OrtetSessionStore(hub, workspace=work)


def shell(work: Path, command: str) -> None:
    subprocess.run(["sh", "-c", command], cwd=work, check=True)


def turn(store: OrtetSessionStore, work: Path, text: str, command: str) -> ENTRIES:
    """One turn in which the agent runs a shell command, mirrored when it is over."""
    asked, run = prompt(text), call("Bash", command=command)
    shell(work, command)
    lines = [asked, run, result(run, "ok"), answer(f"{text}: done")]
    append(store, key(work), *lines)
    return lines


def files_of(work: Path) -> dict[str, str]:
    return {str(p.relative_to(work)): p.read_text() for p in work.rglob("*") if p.is_file()}


def test_edits_by_shell_commands_are_undone_with_the_turn(
    store: OrtetSessionStore, hub: Hub, work: Path
) -> None:
    start = files_of(work)
    first = turn(store, work, "begin", "echo two > src/app.py; mkdir lib; echo x > lib/x")
    middle = files_of(work)
    turn(store, work, "tidy up", "rm -r lib; sed -i s/two/three/ src/app.py; ln -s app.py src/l")
    told = anyio.run(store.rewind, SESSION, 1)
    assert files_of(work) == middle
    assert not (work / "src" / "l").exists()
    assert load(store, key(work)) == first
    assert told.exact
    assert told.entries == 4
    again = anyio.run(store.rewind, SESSION, 1)
    assert files_of(work) == start
    assert load(store, key(work)) in (None, [])
    anyio.run(store.rewind, SESSION, again.was)
    assert files_of(work) == middle
    anyio.run(store.rewind, SESSION, told.was)
    assert (files_of(work)["src/app.py"], "lib/x" in files_of(work)) == ("three\n", False)
    assert len(load(store, key(work)) or ()) == 8
    hub.verify()


def test_rewind_to_a_message_restores_its_files_and_conversation(
    store: OrtetSessionStore, work: Path
) -> None:
    first = turn(store, work, "one", "echo 1 > n")
    second = turn(store, work, "two", "echo 2 > n")
    turn(store, work, "three", "echo 3 > n")
    go = partial(store.rewind, SESSION)
    last = anyio.run(go, second[-1]["uuid"])
    assert ((work / "n").read_text(), last.exact) == ("2\n", True)
    assert load(store, key(work)) == [*first, *second]
    asked = anyio.run(go, second[0]["uuid"])
    assert ((work / "n").read_text(), asked.exact) == ("1\n", True)
    assert load(store, key(work)) == [*first, second[0]]
    anyio.run(go, last.was)
    told = anyio.run(go, second[2]["uuid"])  # behind the tool's result, before the answer
    assert ((work / "n").read_text(), told.exact) == ("2\n", True)
    assert load(store, key(work)) == [*first, *second[:3]]


def test_rewind_between_two_tools_of_one_batch_restores_the_earlier_files(
    store: OrtetSessionStore, work: Path
) -> None:
    turn(store, work, "one", "echo 1 > n")
    runs = [call("Bash", command=f"echo {n} > n") for n in (2, 3)]
    shell(work, "echo 2 > n; echo 3 > n")
    lines = [prompt("two"), runs[0], result(runs[0], ""), runs[1], result(runs[1], "")]
    append(store, key(work), *lines)
    told = anyio.run(store.rewind, SESSION, lines[2]["uuid"])
    assert ((work / "n").read_text(), told.exact) == ("1\n", False)


def test_mirrored_at_once_every_message_has_its_files(store: OrtetSessionStore, work: Path) -> None:
    lines: ENTRIES = [prompt("count")]
    append(store, key(work), lines[0])
    for n in range(4):
        run = call("Bash", command=f"echo {n} > n")
        append(store, key(work), run)
        shell(work, f"echo {n} > n")
        lines += [run, result(run, "")]
        append(store, key(work), lines[-1])
    told = anyio.run(store.rewind, SESSION, lines[4]["uuid"])
    assert ((work / "n").read_text(), told.exact) == ("1\n", True)


def test_rewind_is_inexact_when_a_tool_ran_before_the_commit(
    store: OrtetSessionStore, work: Path
) -> None:
    first = call("Bash", command="echo 1 > n")
    shell(work, "echo 1 > n")
    told = result(first, "")
    second = call("Bash", command="echo 2 > n")
    shell(work, "echo 2 > n")  # before the result of the first arrives
    append(store, key(work), prompt("count"), first, told)
    append(store, key(work), second, result(second, ""), answer("done"))
    assert not anyio.run(store.rewind, SESSION, told["uuid"]).exact


def test_rewind_is_inexact_when_a_tool_was_running_at_the_commit(
    store: OrtetSessionStore, work: Path
) -> None:
    runs = [call("Bash", command=f"echo {n} > n") for n in (1, 2)]
    shell(work, "echo 1 > n")
    lines = [prompt("count"), runs[0], result(runs[0], "")]
    shell(work, "echo 2 > n")
    append(store, key(work), *lines, runs[1])  # it has begun, and may have written already
    append(store, key(work), result(runs[1], ""), answer("done"))
    assert not anyio.run(store.rewind, SESSION, runs[1]["uuid"]).exact
    assert not anyio.run(store.rewind, SESSION, lines[2]["uuid"]).exact
    assert anyio.run(store.rewind, SESSION, lines[0]["uuid"]).exact
    assert not (work / "n").exists()


def test_rewind_keeps_manual_changes_made_between_turns(
    store: OrtetSessionStore, work: Path
) -> None:
    turn(store, work, "one", "echo 1 > n")
    (work / "mine.txt").write_text("by hand")
    load(store, key(work))  # as the SDK does before it resumes
    turn(store, work, "two", "rm mine.txt; echo 2 > n")
    anyio.run(store.rewind, SESSION, 1)
    assert (work / "mine.txt").read_text() == "by hand"


def test_loading_during_a_turn_does_not_make_rewind_inexact(
    store: OrtetSessionStore, work: Path
) -> None:
    turn(store, work, "one", "echo 1 > n")
    asked, run = prompt("two"), call("Bash", command="echo 2 > n")
    shell(work, "echo 2 > n")
    load(store, key(work))  # a page that shows the session, say
    append(store, key(work), asked, run, result(run, ""), answer("done"))
    told = anyio.run(store.rewind, SESSION, 1)
    assert ((work / "n").read_text(), told.exact) == ("1\n", True)


_REWINDER = """
import sys, anyio, ortet
from ortet.integrations.claude import OrtetSessionStore
store = OrtetSessionStore(ortet.open(sys.argv[1]), workspace=sys.argv[2])
anyio.run(store.rewind, sys.argv[3], 1)
"""


@pytest.mark.parametrize(
    "fault", ["thaw.staged", "thaw.journaled", "thaw.done", "rewind.files", "commit.after-move"]
)
def test_killed_during_a_rewind_the_same_call_ends_it(
    hub: Hub, store: OrtetSessionStore, work: Path, fault: str
) -> None:
    first = turn(store, work, "one", "echo 1 > n; echo x > gone")
    middle = files_of(work)
    turn(store, work, "two", "echo 2 > n; rm gone; echo new > new")
    store.close()
    command = [sys.executable, "-c", _REWINDER, str(hub.root), str(work), SESSION]
    done = forked.run(command, env={**os.environ, "ORTET_FAULT": f"{fault}:kill"}, check=False)
    assert done.returncode == -9
    again = OrtetSessionStore(hub, workspace=work)
    assert len(load(again, key(work)) or ()) == 8, "files go first"
    anyio.run(again.rewind, SESSION, 1)
    assert files_of(work) == middle
    assert load(again, key(work)) == first
    hub.verify()


def test_rewind_keeps_unsaved_files_in_a_commit(
    store: OrtetSessionStore, hub: Hub, work: Path
) -> None:
    turn(store, work, "one", "echo 1 > n")
    (work / "n").write_text("unsaved")
    told = anyio.run(store.rewind, SESSION, 1)
    assert not (work / "n").exists()
    hub.restore(told.was, work.parent / "copy")
    assert (work.parent / "copy" / "n").read_text() == "unsaved"


def test_one_commit_holds_conversation_and_files(
    store: OrtetSessionStore, hub: Hub, work: Path
) -> None:
    turn(store, work, "one", "echo 1 > n")
    head = hub.get(transcript_session_name(key(work))).head
    assert head is not None
    assert head.message == "one"
    hub.restore(head.oid, work.parent / "copy")
    assert files_of(work.parent / "copy") == files_of(work)
    (only,) = anyio.run(store.turns, SESSION)
    assert only.text == "one"
    hub.restore(only.commit, work.parent / "before")
    assert "n" not in files_of(work.parent / "before")


def test_sessions_that_share_a_directory_rewind_independently(
    store: OrtetSessionStore, work: Path
) -> None:
    turn(store, work, "one", "echo 1 > n")
    other = key(work, "0b7c7df0-c236-4231-98c8-c794682a5c45")
    shell(work, "echo 2 > other")
    append(store, other, prompt("elsewhere"))
    shell(work, "echo 3 > other")
    append(store, other, answer("done"))
    anyio.run(store.rewind, SESSION, 1)
    assert "n" not in files_of(work)
    assert len(load(store, other) or ()) == 2


def test_a_batch_whose_files_could_not_be_committed_is_not_written_twice(
    store: OrtetSessionStore, work: Path
) -> None:
    turn(store, work, "one", "echo 1 > n")
    lines = [prompt("two"), {"type": "mode", "mode": "plan"}]
    os.rename(work, work.with_name("away"))
    for _ in range(3):  # as the SDK tries again
        with pytest.raises(ortet.OrtetError):
            append(store, key(work), *lines)
    os.rename(work.with_name("away"), work)
    append(store, key(work), *lines)
    assert (load(store, key(work)) or [])[4:] == lines


def test_an_invalid_rewind_target_is_refused_and_changes_nothing(
    store: OrtetSessionStore, work: Path
) -> None:
    turn(store, work, "one", "echo 1 > n")
    tries: list[tuple[Any, type[Exception]]] = [
        (0, Invalid),
        (-1, Invalid),
        (True, Invalid),
        (1.5, Invalid),
        (2, NotFound),
        ("nobody's", NotFound),
        ("", NotFound),
        ("0" * 64, NotFound),
    ]
    for bad, error in tries:
        with pytest.raises(error):
            anyio.run(store.rewind, SESSION, bad)
    with pytest.raises(NotFound):
        anyio.run(store.rewind, "another session", 1)
    assert files_of(work)["n"] == "1\n"
    assert len(load(store, key(work)) or ()) == 4


@pytest.mark.parametrize("bad", ["nowhere", "a\0b", 5, __file__])
def test_an_invalid_workspace_directory_is_refused(hub: Hub, bad: Any) -> None:
    with pytest.raises(ortet.OrtetError):
        OrtetSessionStore(hub, workspace=bad)


def test_a_directory_of_another_session_is_refused(hub: Hub, work: Path) -> None:
    with hub.session("mine", workspace=work) as session:
        session.commit("first")
    with pytest.raises(Conflict, match="'mine'"):
        OrtetSessionStore(hub, workspace=work)


def test_rewind_without_a_workspace_changes_only_the_conversation(hub: Hub, work: Path) -> None:
    store = OrtetSessionStore(hub)
    first = turn(store, work, "one", "echo 1 > n")
    turn(store, work, "two", "echo 2 > n")
    anyio.run(partial(store.rewind, SESSION, 1, directory=work))
    assert load(store, key(work)) == first
    assert (work / "n").read_text() == "2\n"
