"""undo and redo, through a real process."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.fixtures.commands import Commit, Ortet

import ortet as library


def text(proj: Path) -> str:
    return (proj / "a.txt").read_text()


def test_undo_and_redo_step_through_uncommitted_and_committed_changes(
    ortet: Ortet, proj: Path, commit: Commit
) -> None:
    first = commit("first")
    second = commit("second", **{"a.txt": "two\n", "b.txt": "new\n"})
    (proj / "a.txt").write_text("not committed\n")
    done = ortet("undo", cwd=proj).out
    assert done.startswith(f"[proj {second[:12]}] undid what was not committed: 1 written")
    assert "\n  M a.txt\n" in done and done.endswith("`ortet redo` goes forth again\n")
    assert text(proj) == "two\n"
    done = ortet("undo", cwd=proj).out
    assert done.startswith(f"[proj {first[:12]}] undid commit 'second': 1 written, 1 removed")
    assert "\n  D b.txt\n" in done
    assert text(proj) == "one\n"
    assert ortet("redo", cwd=proj).out.startswith(f"[proj {second[:12]}] did again commit 'second'")
    ortet("redo", cwd=proj)
    assert text(proj) == "not committed\n"
    assert ortet.kind("redo", cwd=proj, code=4) == "nothing_to_redo"
    ortet("undo", "2", cwd=proj)
    assert text(proj) == "one\n"
    assert ortet.kind("undo", cwd=proj, code=4) == "nothing_to_undo"
    ortet("verify", cwd=proj)


def test_undo_dry_run_changes_nothing(ortet: Ortet, proj: Path, commit: Commit) -> None:
    first = commit("first")
    commit("second", **{"a.txt": "two\n"})
    commit("third", **{"a.txt": "three\n", "b.txt": "new\n"})
    (proj / "c.txt").write_text("not committed\n")
    done = ortet("undo", "3", "--dry-run", cwd=proj).out
    title, *rest = done.splitlines()
    steps = "what was not committed; commit 'third'; commit 'second'"
    assert title == f"[proj {first[:12]}] would undo {steps}: 2 removed, 1 modified"
    assert rest == ["  M a.txt", "  D b.txt", "  D c.txt"]
    assert (text(proj), (proj / "c.txt").exists()) == ("three\n", True)
    found = ortet.json("undo", "3", "--dry-run", cwd=proj)
    assert (found["oid"], found["dry_run"], found["kept"]) == (first, True, True)
    assert len(ortet.json("reflog", cwd=proj)) == 3
    done_ = ortet.json("undo", "3", cwd=proj)
    assert {**done_, "dry_run": True}.keys() == found.keys()
    assert done_["changes"] == found["changes"]


def test_undo_names_the_commit_that_keeps_uncommitted_changes(
    ortet: Ortet, proj: Path, commit: Commit
) -> None:
    commit("first")
    commit("second", **{"a.txt": "two\n"})
    (proj / "log").write_text("noise\n")
    ortet("undo", cwd=proj)
    (proj / "log").write_text("noise again\n")
    done = ortet("undo", cwd=proj).out
    (line,) = [line for line in done.splitlines() if line.startswith("what was not committed")]
    oid = line.split()[-1]
    assert ortet("show", oid, "log", cwd=proj).out == "noise again\n"


def test_undo_reverts_the_session_state_but_not_effects(ortet: Ortet, proj: Path) -> None:
    with library.open(ortet.store) as hub, hub.session("fix", workspace=proj) as s:
        s.say("user", "one")
        s.commit("one")
        s.say("user", "two")
        s.act(lambda: "sent", name="send_mail", key="m", replay="once")
        (proj / "a.txt").write_text("two\n")
        s.commit("two")
    shown = ortet("undo", "--dry-run", cwd=proj).out
    assert "1 effect done since stays done: send_mail" in shown
    done = ortet("undo", cwd=proj).out
    assert "1 effect done since stays done: send_mail" in done
    assert "the mind goes back by " in done
    assert text(proj) == "one\n"
    said = [event["data"] for event in ortet.json("journal", "fix", "--kind", "message", cwd=proj)]
    assert [data["content"] for data in said] == ["one"]
    ortet("redo", "-s", "fix", cwd=proj)
    assert text(proj) == "two\n"


def test_undo_works_on_a_fork_and_on_a_session_without_files(
    ortet: Ortet, proj: Path, commit: Commit
) -> None:
    commit("first")
    ortet("fork", cwd=proj)
    ortet("run", "-w", "proj/1", "echo side > side.txt", cwd=proj)
    ortet("commit", "-w", "proj/1", "-m", "aside", cwd=proj)
    assert ortet.json("undo", "-w", "proj/1", cwd=proj)["removed"] == 1
    ortet("session", "new", "talk", cwd=ortet.home)
    for word in ("one", "two"):
        ortet("say", word, "-s", "talk", cwd=ortet.home)
        with library.open(ortet.store) as hub, hub.session("talk") as s:
            s.commit(word)
    before = ortet.json("journal", "talk", cwd=ortet.home)
    told = ortet.json("undo", "-s", "talk", "--dry-run", cwd=ortet.home)
    assert (told["name"], told["dry_run"], told["events"]) == ("talk", True, 1)
    assert ortet.json("journal", "talk", cwd=ortet.home) == before  # it was not opened
    ortet("undo", "-s", "talk", cwd=ortet.home)
    assert len(ortet.json("journal", "talk", "--kind", "message", cwd=proj)) == 1


@pytest.mark.parametrize("words", [("0",), ("-s", "x", "-w", "proj"), ("x",)])
def test_invalid_undo_arguments_are_refused(
    ortet: Ortet, proj: Path, commit: Commit, words: tuple[str, ...]
) -> None:
    commit("first")
    ortet("undo", *words, cwd=proj, code=2)


def test_undo_never_creates_a_store(ortet: Ortet, tmp_path: Path) -> None:
    assert ortet.kind("undo", cwd=tmp_path, code=4) == "no_workspace"
    assert not ortet.store.exists()


def test_undo_and_redo_count_moves_that_can_be_seen(
    ortet: Ortet, proj: Path, commit: Commit
) -> None:
    first = commit("first")
    commit("second", **{"a.txt": "two\n"})
    ortet("restore", first, cwd=proj)
    ortet("undo", "2", cwd=proj)
    assert text(proj) == "one\n"
    ortet("redo", "2", cwd=proj)
    assert text(proj) == "one\n"
    ortet("undo", cwd=proj)
    assert text(proj) == "two\n"
    assert ortet.kind("redo", "2", cwd=proj, code=4) == "nothing_to_redo"
    ortet("verify", cwd=proj)


def test_undo_by_turn_goes_back_to_before_the_last_message_of_the_user(
    ortet: Ortet, proj: Path
) -> None:
    with library.open(ortet.store) as hub, hub.session("fix", workspace=proj) as s:
        s.say("user", "one")
        s.say("assistant", "done")
        (proj / "a.txt").write_text("after one\n")
        s.commit("one")
        s.say("user", "two")
        (proj / "a.txt").write_text("half\n")
        s.commit("half of two")
        (proj / "a.txt").write_text("after two\n")
        s.say("assistant", "done too")
        s.commit("two")

    def said() -> list[str]:
        found = ortet.json("journal", "fix", "--kind", "message", cwd=proj)
        return [event["data"]["content"] for event in found]

    preview = ortet.json("undo", "--turn", "--dry-run", cwd=proj)
    assert [change["path"] for change in preview["changes"]] == ["a.txt"]
    assert (text(proj), len(said())) == ("after two\n", 4)
    ortet("undo", "--turn", cwd=proj)
    assert (text(proj), said()) == ("after one\n", ["one", "done"])
    ortet("redo", "2", cwd=proj)
    assert (text(proj), said()) == ("after two\n", ["one", "done", "two", "done too"])
    assert ortet.kind("undo", "3", "--turn", cwd=proj, code=4) == "nothing_to_undo"
    ortet("undo", "--turn", "2", "-s", "fix", cwd=proj)
    assert said() == []
    ortet("verify", cwd=proj)


def test_undo_by_turn_needs_a_session(ortet: Ortet, proj: Path, commit: Commit) -> None:
    commit("first")
    assert ortet.kind("undo", "--turn", cwd=proj, code=2) == "no_turn"


def test_restore_of_parts_leaves_the_others_as_they_are(ortet: Ortet, proj: Path) -> None:
    with library.open(ortet.store) as hub, hub.session("fix", workspace=proj) as s:
        s.say("user", "one")
        first = s.commit("one").oid
        s.say("user", "two")
        (proj / "a.txt").write_text("two\n")
        second = s.commit("two").oid

    def said() -> list[str]:
        found = ortet.json("journal", "fix", "--kind", "message", cwd=proj)
        return [event["data"]["content"] for event in found]

    shown = ortet("restore", first, "--only", "files", "--dry-run", cwd=proj).out
    assert "\n  M a.txt\n" in shown and "left as it is: mind, processes" in shown
    assert (text(proj), said()) == ("two\n", ["one", "two"])
    done = ortet("restore", first, "--only", "files", cwd=proj).out
    assert "restored: 1 written" in done and "left as it is: mind, processes" in done
    assert (text(proj), said()) == ("one\n", ["one", "two"])
    ortet("restore", second, "--only", "files", cwd=proj)
    done = ortet("restore", first, "--only", "mind", cwd=proj).out
    assert "the mind goes back by 1 event" in done and "left as it is: files" in done
    assert (text(proj), said()) == ("two\n", ["one"])
    told = ortet.json("restore", second, "--only", "mind,files", cwd=proj)
    assert (told["parts"], text(proj), said()) == (["mind", "files"], "two\n", ["one", "two"])
    ortet("verify", cwd=proj)


def test_restore_and_rewind_say_what_goes_back(ortet: Ortet, proj: Path) -> None:
    with library.open(ortet.store) as hub, hub.session("fix", workspace=proj) as s:
        s.say("user", "one")
        first = s.commit("one").oid
        s.say("user", "two")
        (proj / "a.txt").write_text("two\n")
        s.commit("two")
    for words in (("restore", first), ("rewind",)):
        preview = ortet.json(*words, "--dry-run", cwd=proj)
        assert (preview["oid"], preview["events"], preview["dry_run"]) == (first, 1, True)
        assert [change["path"] for change in preview["changes"]] == ["a.txt"]
        shown = ortet(*words, "--dry-run", cwd=proj).out
        assert f"would {words[0]}: 1 modified" in shown
        assert "the mind goes back by 1 event" in shown
    assert text(proj) == "two\n"
    assert "the mind goes back by 1 event" in ortet("rewind", cwd=proj).out
    assert text(proj) == "one\n"


def test_the_mind_of_a_workspace_without_a_session_is_not_there(
    ortet: Ortet, proj: Path, commit: Commit
) -> None:
    first = commit("first")
    commit("second", **{"a.txt": "two\n"})
    kind = ortet.kind("restore", first, "--only", "mind", cwd=proj, code=2)
    assert kind == "nothing_to_restore"
    ortet("restore", first, "--only", "files", cwd=proj)
    assert text(proj) == "one\n"
