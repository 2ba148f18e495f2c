"""What a restore would do is told before, and is what it does then."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.fixtures.waiting import WAIT

import ortet
from ortet.errors import Conflict, Invalid, NotFound
from ortet.hub.hub import Hub
from ortet.ids import from_hex
from ortet.sessions.history.preview import preview_restore, preview_rewind, preview_undo

pytestmark = pytest.mark.files({"file": "one\n"})

_SLEEP = ["sleep", "1000"]


def test_restore_preview_lists_file_changes_and_forgotten_events(hub: Hub, work: Path) -> None:
    with hub.session("s", workspace=work) as s:
        s.say("user", "first")
        target = from_hex(s.commit("first").oid)
        clean = preview_restore(s, target)
        assert (clean.changes, clean.uncommitted, clean.forgotten) == ([], False, 0)
        (work / "file").write_text("two\n")
        (work / "new").write_text("new\n")
        s.say("user", "second")
        s.say("user", "third")
        found = preview_restore(s, target)
        assert [(one.path, one.kind) for one in found.changes] == [
            ("file", "modified"),
            ("new", "removed"),
        ]
        assert found.uncommitted
        assert found.forgotten == 2
        assert (found.starts, found.ends, found.lost) == ([], [], [])
        assert (work / "new").exists()
        assert len(s.messages()) == 3
        assert preview_restore(s, target, {"files"}).forgotten == 0
        assert preview_restore(s, target, {"mind"}).changes == []
        head = s.commit("second").oid
        assert preview_rewind(s, 1).to == s.rewind(1).to
        assert (
            preview_restore(s, from_hex(head)).forgotten == 0
        )  # forth again, nothing is left behind
        with pytest.raises(Invalid):
            preview_restore(s, target, {"nonsense"})
        with pytest.raises(NotFound):
            preview_rewind(s, 9)


def test_restore_preview_lists_effects_that_stay_done(hub: Hub) -> None:
    with hub.session("s") as s:
        s.say("user", "before")
        target = from_hex(s.commit("before").oid)
        s.act(len, "abc", why="to see", key="k", replay="once")
        s.commit("after")
        found = preview_restore(s, target)
        assert [deed.name for deed in found.deeds] == ["len"]
        done = s.restore(found.to)
        assert done.deeds == found.deeds
        assert (done.collaborations, done.secrets) == (found.collaborations, found.secrets)


@pytest.mark.root
def test_restore_preview_lists_programs_that_end_or_are_lost(hub: Hub, work: Path) -> None:
    """An engine that does not carry processes says what does not come back."""
    with hub.session("s", workspace=work, engine="overlay") as s:
        s.machine.run("true")
        bare = from_hex(s.commit("bare").oid)
        s.spawn("service", _SLEEP)
        running = from_hex(s.commit("running").oid)
        found = preview_restore(s, bare)
        assert found.ends == ["service"]
        assert preview_restore(s, bare, {"files", "mind"}).ends == []
        then = preview_restore(s, running)
        assert then.starts == []
        assert [one.path for one in then.lost] == ["service"]
        assert [one.name for one in s.machine.programs.jobs() if one.code is None] == ["service"]


@pytest.mark.criu
def test_restore_preview_lists_programs_that_start_with_criu(hub: Hub, work: Path) -> None:
    with hub.session("s", workspace=work, engine="criu") as s:
        s.spawn("service", _SLEEP)
        target = from_hex(s.commit("running").oid)
        s.programs.job("service").kill()
        s.programs.job("service").wait(WAIT)
        found = preview_restore(s, target)
        assert (found.starts, found.ends, found.lost) == (["service"], [], [])
        assert s.restore(found.to).files.started == found.starts


def test_restore_preview_needs_no_lease_and_records_no_event(hub: Hub, work: Path) -> None:
    """No lease, no event: also while another has the session open, or nobody has."""
    with hub.session("s", workspace=work) as s:
        for word in ("one", "two"):
            s.say("user", word)
            (work / "file").write_text(word)
            target = s.commit(word).oid
        s.say("user", "three")
        id_ = s.id
    (work / "file").write_text("three")
    before = [(one.seq, one.hash) for one in hub.get(id_).events()]
    view = hub.get(id_)
    found = [preview_restore(view, from_hex(target)), preview_undo(view, "undo", 1)]
    for one in found:
        assert (one.to, one.looked, one.uncommitted) == (target, True, True)
        assert [change.path for change in one.changes] == ["file"]
        assert one.forgotten == 1
    assert [step.verb for step in found[1].steps] == ["work"]
    after = hub.get(id_)
    assert [(one.seq, one.hash) for one in after.events()] == before
    assert (after.status, hub.is_open(id_)) == ("paused", False)
    with ortet.open(hub.root) as other, other.session("s"):
        assert preview_rewind(hub.get(id_), 1).forgotten == 2


def test_rewind_undo_and_dry_run_report_the_same_event_count(hub: Hub) -> None:
    with hub.session("s") as s:
        s.say("user", "one")
        s.commit("one")
    with hub.session("s") as s:  # which alone is nothing to forget
        s.say("user", "two")
        s.learn("two")
        s.commit("two")
        told = [
            preview_rewind(s, 1).forgotten,
            preview_undo(s, "undo", 1).forgotten,
            s.undo(dry_run=True).events,
            s.undo().events,
        ]
        assert told == [2, 2, 2, 2]
        assert (s.redo(dry_run=True).events, s.redo().events) == (0, 0)


@pytest.mark.root
def test_restore_preview_of_a_private_machine_open_elsewhere_uses_its_head(
    hub: Hub, work: Path
) -> None:
    with hub.session("s", workspace=work, engine="overlay") as s:
        s.run("echo one > file")
        first = from_hex(s.commit("one").oid)
        s.run("echo two > file")
        s.commit("two")
        s.run("echo three > other")
        with ortet.open(hub.root) as other:
            found = preview_restore(other.get(s.id), first)
        assert (found.looked, [one.path for one in found.changes]) == (False, ["file"])
        seen = preview_restore(s, first)
        assert (seen.looked, [one.path for one in seen.changes]) == (True, ["file", "other"])


def test_restore_preview_of_a_closed_session_is_refused(hub: Hub) -> None:
    with hub.session("s") as s:
        s.say("user", "one")
        target = from_hex(s.commit("one").oid)
        s.finish()
    with pytest.raises(Conflict, match="closed"):
        preview_restore(hub.get(s.id), target)
