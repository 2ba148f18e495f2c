"""Archives, policies, holds, removal and data sets."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import pytest
from tests.fixtures import forked
from tests.fixtures.erasing import OTHER, SECRET, fill, holds, seqs_of

from ortet.config.environment import open_hub
from ortet.errors import Conflict, Invalid, NotFound, Refused, Unavailable
from ortet.hub.hub import Hub
from ortet.testing.clock import ManualClock

DAY = 86_400 * 10**9


def archives(store: Path) -> list[Path]:
    return sorted(store.glob("bucket/archives/*/*"))


class TestArchive:
    def test_archived_session_is_readable_and_can_be_unarchived(self, store: Path) -> None:
        with open_hub(store) as hub:
            id_ = fill(hub)
            before = [e.data for e in hub.get(id_).events()]
            done = hub.archive(id_)
            assert hub.get(id_).status == "archived"
            assert len(archives(store)) == 1 and done.size == archives(store)[0].stat().st_size
            view = hub.get(id_)
            assert len(hub.catalog.events(view.internals.row.timeline)) == 1
            assert [e.data for e in view.events()][: len(before)] == before
            hub.verify()
            hub.audit(id_)
            with pytest.raises(Conflict):
                hub.session("s")
            with pytest.raises(Conflict):
                hub.archive(id_)
        with open_hub(store) as hub:
            assert hub.unarchive(id_).status == "paused"
            assert archives(store) == []
            with hub.session("s") as s:
                assert s.messages()[0].content == OTHER
                s.say("user", "back")
            hub.audit(id_)
            hub.verify()

    def test_archive_includes_files_changed_since_the_last_commit(
        self, hub: Hub, work: Path, tmp_path: Path
    ) -> None:
        """Failed before: files changed since the last commit were not in it."""
        s = hub.session("s", workspace=work)
        s.say("user", "x")
        s.commit()
        s.run("echo new > b.txt")
        done = s.archive()
        hub.restore(done.commit, to=tmp_path / "out")
        assert (tmp_path / "out/b.txt").read_text() == "new\n"
        hub.unarchive(s.id)
        assert hub.session("s").diff(done.commit) == []

    def test_archive_uses_the_head_files_if_the_workspace_directory_is_missing(
        self, hub: Hub, work: Path, tmp_path: Path
    ) -> None:
        s = hub.session("s", workspace=work)
        s.say("user", "x")
        s.commit()
        s.say("user", "y")
        s.pause()
        work.rename(tmp_path / "away")
        done = hub.archive(s.id)
        hub.restore(done.commit, to=tmp_path / "out")
        assert (tmp_path / "out/a.txt").exists()
        hub.verify()

    def test_session_archive_sets_the_status_to_archived(self, hub: Hub) -> None:
        s = hub.session("s")
        s.say("user", "x")
        s.archive()
        assert hub.get(s.id).status == "archived"

    def test_archive_of_an_open_session_is_refused(self, hub: Hub) -> None:
        with hub.session("s") as s, pytest.raises(Conflict) as caught:
            hub.archive(s.id)
        assert caught.value.kind == "illegal_move"
        with pytest.raises(Conflict):
            hub.unarchive(s.id)
        with pytest.raises(NotFound):
            hub.archive("0" * 32)

    def test_unarchive_works_after_the_branch_was_deleted_and_swept(self, store: Path) -> None:
        with open_hub(store) as hub:
            id_ = fill(hub)
            hub.archive(id_)
            hub.refs.delete("s")
            hub.sweep(expire_ns=0, min_garbage=0.0)
            hub.verify()
            hub.unarchive(id_)
            with hub.session("s") as s:
                assert [f.text for f in s.facts()][-1] == "kept"
            hub.verify()

    def test_erasing_rewrites_the_bundle(self, store: Path) -> None:
        with open_hub(store) as hub:
            id_ = fill(hub)
            hub.archive(id_)
            (before,) = archives(store)
            assert str(before.relative_to(store)) in holds(store, SECRET)
            hub.erase(id_, seqs=seqs_of(hub, id_))
            (after,) = archives(store)
            assert after != before
            hub.unarchive(id_)
            assert [m.content for m in hub.get(id_).messages()] == [OTHER]
            hub.verify()
        assert holds(store, SECRET) == []


RUN = """
import sys
from ortet.config.environment import open_hub
with open_hub(sys.argv[1]) as hub:
    getattr(hub, sys.argv[2])(sys.argv[3])
"""


def killed(store: Path, verb: str, id_: str, fault: str) -> None:
    done = forked.run(
        [sys.executable, "-c", RUN, str(store), verb, id_],
        env={**os.environ, "ORTET_FAULT": f"{fault}:kill"},
        capture_output=True,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr


@pytest.mark.parametrize("point", ["committed", "stored", "turned", "back"])
def test_archive_killed_at_any_point_can_be_finished_and_unarchived(
    store: Path, point: str
) -> None:
    with open_hub(store) as hub:
        id_ = fill(hub)
        if point == "back":
            hub.archive(id_)
    killed(store, "unarchive" if point == "back" else "archive", id_, f"archive.{point}")
    with open_hub(store) as hub:
        hub.verify()
        if point == "turned":
            assert hub.get(id_).status == "archived"
        elif point != "back":
            hub.archive(id_)
        assert len(archives(store)) == 1
        hub.unarchive(id_)
        assert archives(store) == []
        assert list((store / "local").glob("archive.*")) == []
        with hub.session("s") as s:
            assert s.messages()[0].content == OTHER
        hub.verify()


class TestRetain:
    def test_retain_dry_run_changes_nothing_and_retain_erases_and_archives(
        self, store: Path
    ) -> None:
        clock = ManualClock()
        with open_hub(store, clock=clock) as hub:
            id_ = fill(hub)
            hub.governance.retention(keep_messages=30, archive_after=90)
            hub.governance.retain()
            assert len(hub.get(id_).messages()) == 3
            clock.advance(31 * DAY)
            with hub.session("s") as s:
                s.say("user", "new")
            before = [line.hash for line in hub.audit(id_).lines]
            dry = hub.governance.retain(dry_run=True)
            assert dry.dry_run
            assert [(d.what, d.events) for d in dry.deeds if d.what == "erase"] == [("erase", 3)]
            assert [line.hash for line in hub.audit(id_).lines] == before
            assert hub.audit(id_).erased == 0
            assert hub.governance.retain().deeds[0].what == "erase"
            assert [m.content for m in hub.get(id_).messages()] == ["new"]
            assert len(hub.get(id_).facts()) == 2  # durable
            clock.advance(91 * DAY)
            assert "archive" in [d.what for d in hub.governance.retain().deeds]
            assert hub.get(id_).status == "archived"
            assert hub.governance.retain().deeds == []
            hub.verify()

    def test_hold_on_a_fork_prevents_retention_erase_and_remove(self, store: Path) -> None:
        clock = ManualClock()
        with open_hub(store, clock=clock) as hub:
            with hub.session("s") as s:
                s.say("user", "evidence")
                (kid,) = s.fork(machine=False)
                kid.pause()
            hub.governance.retention(keep_messages=0, archive_after=0)
            clock.advance(DAY)
            hub.governance.hold(kid.id, "incident 7")
            deeds = hub.governance.retain().deeds
            assert {d.what for d in deeds} == {"keep"}
            assert [m.content for m in hub.get(s.id).messages()] == ["evidence"]
            for verb in (hub.erase, hub.remove):
                with pytest.raises(Refused) as caught:
                    verb(kid.id)
                assert caught.value.kind == "on_hold"
            hub.governance.release(kid.id)
            hub.governance.retain()
            assert hub.get(s.id).messages() == []
            hub.verify()

    def test_enterprise_profile_holds_messages_against_retention(self, hub: Hub) -> None:
        with hub.session("s", profile="enterprise") as s:
            s.say("user", "x")
        hub.governance.retention(keep_messages=0, archive_after=0)
        assert [d.what for d in hub.governance.retain().deeds] == ["keep"]
        assert len(hub.get(s.id).messages()) == 1

    def test_rows_behind_commits_are_trimmed(self, hub: Hub) -> None:
        with hub.session("s") as s:
            for number in range(5):
                s.say("user", str(number))
            s.commit()
        (dry,) = hub.governance.retain(dry_run=True).deeds
        assert dry.what == "trim"
        count = len(hub.catalog.events(s.internals.row.timeline))
        hub.governance.retain()
        assert len(hub.catalog.events(s.internals.row.timeline)) == count - dry.events
        assert hub.governance.retain(dry_run=True).deeds == []
        assert len(hub.get(s.id).messages()) == 5
        hub.verify()

    def test_retain_trims_rows_and_shrinks_the_catalog_file(self, hub: Hub) -> None:
        with hub.session("s") as s:
            for number in range(300):
                s.say("user", f"{number} " * 100)
            s.commit()
        file = hub.root / "catalog.db"
        hub.catalog.scrub()
        before = file.stat().st_size
        hub.governance.retain(dry_run=True)
        assert file.stat().st_size == before
        hub.governance.retain()
        assert file.stat().st_size < before / 2
        assert len(hub.get(s.id).messages()) == 300
        hub.verify()

    def test_retention_policy_with_bad_values_is_refused(self, hub: Hub) -> None:
        with pytest.raises(Invalid):
            hub.governance.retention(keep_messages=-1)
        with pytest.raises(Invalid):
            hub.governance.retention("no agent!")


class TestRemove:
    def test_remove_keeps_events_adopted_from_another_family(self, hub: Hub) -> None:
        """Failed before: the other session lost its timelines, and could not be opened again."""
        with hub.session("s") as s:
            s.say("user", OTHER)
            point = s.commit("one")
        with hub.session("other") as other:
            other.adopt(point.oid)
            other.say("user", "mine")
            other.commit("two")
        hub.remove(other.id)
        with hub.session("s") as s:
            assert [m.content for m in s.messages()] == [OTHER]
        hub.verify()

    def test_timelines_a_fork_was_restored_away_from_go_too(self, hub: Hub) -> None:
        """Failed before: nothing led to them any more."""
        with hub.session("s") as s:
            point = s.commit("one")
            (kid,) = s.fork(machine=False)
        left = kid.internals.row.timeline
        kid.say("user", "of the fork")
        kid.restore(point.oid)
        kid.pause()
        assert hub.catalog.timeline(left) is not None
        hub.remove(kid.id)
        assert hub.catalog.timeline(left) is None
        assert hub.catalog.rows(f"left/{kid.id}") == []
        hub.verify()

    def test_removed_session_frees_its_name_and_keeps_its_forks(self, hub: Hub) -> None:
        with hub.session("s") as s:
            s.say("user", "x")
            (kid,) = s.fork(machine=False)
            kid.pause()
            with pytest.raises(Refused):
                hub.remove(s.id)
        hub.remove(s.id)
        assert [row.id for row in hub.sessions()] == [kid.id]
        assert [m.content for m in hub.get(kid.id).messages()] == ["x"]
        hub.verify()
        hub.remove(kid.id)
        with hub.session("s") as new:
            assert new.messages() == []
        hub.sweep(expire_ns=0, min_garbage=0.0)
        hub.verify()
        with pytest.raises(NotFound):
            hub.remove(s.id)


class TestDataSets:
    def test_export_jsonl_writes_one_object_per_session(self, hub: Hub, tmp_path: Path) -> None:
        id_ = fill(hub)
        with hub.session("t") as t:
            t.say("user", "x", name="bob")
        assert hub.governance.export_jsonl(tmp_path / "all.jsonl") == 2
        first, second = map(json.loads, (tmp_path / "all.jsonl").read_text().splitlines())
        assert first["id"] == id_ and first["goal"] == "help"
        assert first["actions"][0]["outcome"] == SECRET
        assert second["messages"] == [{"role": "user", "content": "x", "name": "bob"}]
        assert hub.governance.export_jsonl(tmp_path / "one.jsonl", sessions=[t.id]) == 1
        hub.erase(id_, seqs=seqs_of(hub, id_))
        hub.governance.export_jsonl(tmp_path / "all.jsonl")
        assert SECRET not in (tmp_path / "all.jsonl").read_text()
        with pytest.raises(NotFound):
            hub.governance.export_jsonl(tmp_path / "no.jsonl", sessions=["0" * 32])
        assert not (tmp_path / "no.jsonl").exists()
        with pytest.raises(Unavailable):
            hub.governance.export_jsonl(tmp_path / "nowhere" / "x.jsonl")
