"""Erasing: the bytes are nowhere, the chain still verifies, a crash leaves nothing half done."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest
from tests.fixtures import forked
from tests.fixtures.erasing import OTHER, SECRET, fill, holds, seqs_of, unpacked

from ortet.config.environment import open_hub
from ortet.errors import Conflict, Corrupt, Invalid, NotFound, Refused
from ortet.hub.hub import Hub

POINTS = ["begun", "objects", "replaced", "rows", "wiped", "swept"]


class TestErase:
    def test_erased_text_is_in_no_file_and_the_chain_still_verifies(self, store: Path) -> None:
        with open_hub(store) as hub:
            id_ = fill(hub)
            before = hub.audit(id_)
        assert {name.rpartition(".")[2] for name in holds(store, SECRET)} == {"db", "tail"}
        with open_hub(store) as hub:
            seqs = seqs_of(hub, id_)
            receipt = hub.erase(id_, seqs=seqs)
            assert [event.seq for event in receipt.events] == seqs
            assert {e.hash for e in receipt.events} == {before.lines[n - 1].hash for n in seqs}
            assert receipt.complete and receipt.replaced and receipt.session == id_
            hub.verify()
            after = hub.audit(id_)
            assert [line.hash for line in after.lines[: before.events]] == [
                line.hash for line in before.lines
            ]
            assert after.erased == len(seqs)
            assert [one.id for one in after.erasures] == [receipt.id]
        assert holds(store, SECRET) == []
        assert holds(store, OTHER)
        with open_hub(store) as hub, hub.session("s") as s:
            assert [m.content for m in s.messages()] == [OTHER]
            assert [f.text for f in s.facts()] == ["kept"]
            assert s.conversation.decisions() == []
            assert s.accounting.spent() == {"tokens": 5}
            assert s.goal == "help"
            s.say("user", "on")
            s.commit("four")
            s.restore("HEAD~3")
            hub.verify()
        with open_hub(store) as hub:
            hub.sweep(expire_ns=0, min_garbage=0.0)
            hub.verify()
        assert holds(store, SECRET) == []

    def test_erase_also_removes_text_of_trimmed_rows(self, store: Path) -> None:
        with open_hub(store) as hub:
            id_ = fill(hub)
            with hub.session("s") as s:
                s.commit()
                hub.catalog.trim_events(s.internals.row.timeline, 1000)
            hub.erase(id_, seqs=seqs_of(hub, id_))
            hub.verify()
        assert holds(store, SECRET) == []

    def test_erase_of_uncommitted_events_leaves_a_valid_chain(self, store: Path) -> None:
        with open_hub(store) as hub:
            with hub.session("s") as s:
                event = s.say("user", SECRET)
            hub.erase(s.id, seqs=[event.seq])
            hub.verify()
            with hub.session("s") as s:
                s.say("user", "x")
                s.commit()
                assert [m.content for m in s.messages()] == ["x"]
            hub.verify()
            hub.audit(s.id)
        assert holds(store, SECRET) == []

    def test_a_whole_session_spares_the_one_it_was_forked_from(self, hub: Hub) -> None:
        with hub.session("s") as s:
            s.say("user", "shared")
            (kid,) = s.fork(machine=False)
            kid.say("user", "mine")
            kid.commit()
            kid.pause()
        hub.erase(kid.id)
        assert [m.content for m in hub.get(s.id).messages()] == ["shared"]
        assert [m.content for m in hub.get(kid.id).messages()] == ["shared"]
        hub.erase(s.id)
        assert hub.get(s.id).messages() == hub.get(kid.id).messages() == []
        hub.verify()

    def test_erase_of_a_session_keeps_events_adopted_from_a_fork(self, hub: Hub) -> None:
        """Failed before: the fork's own words went with the session, and not with the fork."""
        with hub.session("s") as s:
            s.say("user", "shared")
            (kid,) = s.fork(machine=False)
            kid.say("user", "of the fork")
            s.adopt(kid)
            s.say("user", "after")
            s.commit()
            kid.pause()
        hub.erase(s.id)
        assert [m.content for m in hub.get(s.id).messages()] == ["of the fork"]
        assert [m.content for m in hub.get(kid.id).messages()] == ["of the fork"]
        hub.erase(kid.id)
        assert hub.get(s.id).messages() == hub.get(kid.id).messages() == []
        hub.verify()

    def test_erase_of_a_session_removes_merged_facts_and_the_fork_keeps_them(
        self, hub: Hub
    ) -> None:
        with hub.session("s") as s:
            (kid,) = s.fork(machine=False)
            kid.learn("a fact of the fork")
            s.merge(kid)
            kid.pause()
        hub.erase(s.id)
        assert hub.get(s.id).facts() == []
        assert [fact.text for fact in hub.get(kid.id).facts()] == ["a fact of the fork"]
        hub.verify()

    def test_erase_of_a_session_includes_events_before_a_rewind(self, store: Path) -> None:
        with open_hub(store) as hub:
            with hub.session("s") as s:
                s.say("user", OTHER)
                s.commit("one")
                s.say("user", SECRET)
                s.commit("two")
                s.rewind()
                s.say("user", "else")
            hub.erase(s.id)
            hub.verify()
        assert holds(store, SECRET) == holds(store, OTHER) == []

    @pytest.mark.parametrize("trimmed", [False, True])
    @pytest.mark.parametrize("what", ["session", "user"])
    def test_erase_includes_events_that_a_fork_restored_away(
        self, store: Path, tmp_path: Path, what: str, trimmed: bool
    ) -> None:
        """Failed before: no timeline of the fork led to what it had left, and a user's words were
        looked for only where sessions are now."""
        with open_hub(store) as hub:
            with hub.session("s") as s:
                s.say("user", OTHER)
                point = s.commit("one")
                s.say("user", "of the first")
                (kid,) = s.fork(machine=False)
            kid.say("user", SECRET, user="alice")
            kid.commit("two")
            if trimmed:
                kid.pause()
                hub.governance.retain()
                kid = hub.session(kid.name)
            kid.say("user", f"more {SECRET}", user="alice")
            kid.restore(point.oid)
            kid.say("user", "else")
            kid.pause()
            receipt = hub.erase(kid.id) if what == "session" else hub.erase(user="alice")
            assert receipt.complete
            hub.verify()
            hub.export([s.name, kid.name], tmp_path / "bundle")
            assert [m.content for m in hub.get(s.id).messages()] == [OTHER, "of the first"]
        assert holds(store, SECRET) == []
        assert SECRET.encode() not in unpacked((tmp_path / "bundle").read_bytes())
        assert holds(store, OTHER)

    def test_erase_of_the_parent_keeps_events_of_a_fork_before_its_restore(self, hub: Hub) -> None:
        """Failed before: with the first session went what only a fork had said."""
        with hub.session("s") as s:
            point = s.commit("one")
            (kid,) = s.fork(machine=False)
        kid.say("user", "of the fork")
        left = kid.commit("two")
        kid.restore(point.oid)
        kid.pause()
        hub.erase(s.id)
        with hub.session(kid.name) as kid:
            kid.restore(left.oid)
            assert [m.content for m in kid.messages()] == ["of the fork"]
        hub.verify()

    def test_erase_of_a_session_removes_events_shared_with_forks_after_a_rewind(
        self, hub: Hub
    ) -> None:
        """Failed before: a fork kept what the session had said and restored away since."""
        with hub.session("s") as s:
            s.commit("one")
            s.say("user", SECRET)
            s.commit("two")
            s.rewind()
            s.say("user", SECRET)
            s.commit("three")
            (kid,) = s.fork(machine=False)
            kid.pause()
            s.rewind()
            s.say("user", "else")
        hub.erase(s.id)
        assert hub.get(kid.id).messages() == hub.get(s.id).messages() == []
        hub.verify()

    def test_a_hold_covers_what_was_restored_away(self, hub: Hub) -> None:
        with hub.session("s") as s:
            point = s.commit("one")
            (kid,) = s.fork(machine=False)
        kid.say("user", SECRET, user="alice")
        kid.restore(point.oid)
        kid.pause()
        hub.governance.hold(kid.id, "incident")
        with pytest.raises(Refused) as caught:
            hub.erase(user="alice")
        assert caught.value.kind == "on_hold"

    def test_a_user_in_all_sessions(self, store: Path) -> None:
        with open_hub(store) as hub:
            for name in ("a", "b"):
                with hub.session(name) as s:
                    s.say("user", SECRET, user="alice")
                    s.say("user", OTHER, user="bob")
                    s.commit()
            receipt = hub.erase(user="alice")
            assert len(receipt.events) == 2
            hub.verify()
            for row in hub.sessions():
                assert [m.content for m in hub.get(row.id).messages()] == [OTHER]
        assert holds(store, SECRET) == []

    def test_erase_of_a_message_also_removes_summaries_episodes_and_comments(
        self, store: Path
    ) -> None:
        with open_hub(store) as hub:
            with hub.session("s") as s:
                for text in (SECRET, OTHER, "last"):
                    s.say("user", text)
                s.compact(keep_last=1)
                s.commit()
                assert SECRET in s.conversation.compactions()[0].summary
            first = next(e.seq for e in s.internals.event_log.events() if e.kind == "message")
            receipt = hub.erase(s.id, seqs=[first])
            kinds = sorted(event.kind for event in receipt.events)
            assert kinds == ["compaction", "episode", "episode", "message"]  # one is published
            hub.verify()
            view = hub.get(s.id)  # what the summary stood for stays out of context, and readable
            assert [m.content for m in view.messages()] == ["last"]
            assert [m.content for m in view.conversation.dropped()] == [OTHER]
            assert view.conversation.compactions()[0].summary == ""
            hub.comment(s.id, f"beside: {SECRET}")
            hub.erase(s.id)
            hub.verify()
        assert holds(store, SECRET) == holds(store, OTHER) == []

    def test_erasing_the_same_events_twice_is_allowed(self, hub: Hub) -> None:
        id_ = fill(hub)
        seqs = seqs_of(hub, id_)
        hub.erase(id_, seqs=seqs[:1])
        hub.erase(id_, seqs=seqs[:1])
        hub.erase(id_, seqs=seqs)
        hub.verify()
        assert hub.audit(id_).erased == len(seqs)

    def test_erase_of_an_open_session_is_refused(self, hub: Hub) -> None:
        with hub.session("s") as s:
            event = s.say("user", SECRET)
            with pytest.raises(Refused) as caught:
                hub.erase(s.id, seqs=[event.seq])
            assert caught.value.kind == "lease_held"
            assert [m.content for m in s.messages()] == [SECRET]

    def test_erase_with_missing_or_unknown_arguments_is_refused(self, hub: Hub) -> None:
        id_ = fill(hub)
        with pytest.raises(Invalid):
            hub.erase()
        with pytest.raises(Invalid):
            hub.erase(seqs=[1])
        with pytest.raises(Invalid) as caught:
            hub.erase(id_, seqs=[999])
        assert caught.value.kind == "no_event"
        with pytest.raises(NotFound):
            hub.erase("0" * 32)


class TestTampering:
    def test_event_body_deleted_without_a_receipt_is_corrupt(self, hub: Hub) -> None:
        id_ = fill(hub)
        hub.catalog.erase_events(hub.get(id_).internals.row.timeline, [3])
        for check in (hub.verify, lambda: hub.audit(id_)):
            with pytest.raises(Corrupt):
                check()

    def test_erasure_receipt_with_a_wrong_signature_is_corrupt(self, store: Path) -> None:
        with open_hub(store) as hub:
            id_ = fill(hub)
            hub.erase(id_, seqs=seqs_of(hub, id_))
        (store / "local" / "secret").write_bytes(bytes(32))
        with open_hub(store) as hub, pytest.raises(Corrupt) as caught:
            hub.verify()
        assert "erasure" in caught.value.message


class TestBundles:
    def test_importing_an_old_bundle_does_not_bring_back_erased_events(
        self, store: Path, tmp_path: Path
    ) -> None:
        old, new = tmp_path / "old.bundle", tmp_path / "new.bundle"
        with open_hub(store) as hub:
            id_ = fill(hub)
            with hub.session("s") as s:
                s.commit()
            hub.export("s", old)
            hub.erase(id_, seqs=seqs_of(hub, id_))
            hub.export("s", new)
            hub.import_(old)  # must not bring it back
            hub.verify()
            assert [m.content for m in hub.get(id_).messages()] == [OTHER]
            hub.sweep(min_garbage=0.0)
        assert holds(store, SECRET) == []
        with open_hub(tmp_path / "second") as hub:
            hub.import_(new)
            hub.verify()
        assert holds(tmp_path / "second", SECRET) == []
        with open_hub(tmp_path / "third") as hub:
            hub.import_(old)
            hub.import_(new)  # takes nothing away that is whole here
            hub.verify()
        assert holds(tmp_path / "third", SECRET)


ERASE = """
import sys
from ortet.config.environment import open_hub
with open_hub(sys.argv[1]) as hub:
    hub.erase(sys.argv[2], seqs=[int(n) for n in sys.argv[3].split(",")])
"""


@pytest.mark.parametrize("point", POINTS)
def test_erase_killed_at_any_point_is_finished_by_a_second_call(store: Path, point: str) -> None:
    with open_hub(store) as hub:
        id_ = fill(hub)
        seqs = seqs_of(hub, id_)
    done = forked.run(
        [sys.executable, "-c", ERASE, str(store), id_, ",".join(map(str, seqs))],
        env={**os.environ, "ORTET_FAULT": f"erase.{point}:kill"},
        capture_output=True,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    with open_hub(store) as hub:
        receipt = hub.erase(id_, seqs=seqs)
        assert [event.seq for event in receipt.events] == seqs
        assert receipt.complete
        hub.verify()
        assert hub.audit(id_).erased == len(seqs)
        assert hub.catalog.rows("erasing") == []
    assert holds(store, SECRET) == []


def test_closed_session_can_be_erased_and_its_name_stays_taken(hub: Hub) -> None:
    """A closed session can be erased; its name stays taken."""
    s = hub.session("s")
    s.say("user", SECRET)
    s.finish()
    hub.erase(s.id)
    hub.verify()
    with pytest.raises(Conflict):
        hub.session("s")


def test_erase_in_one_fork_keeps_equal_events_of_its_sibling(hub: Hub) -> None:
    """Two minds may be equal although their events are not: each goes its own way."""
    s = hub.session("a")
    s.say("user", "go")
    first, second = s.fork(2, machine=False)
    for fork in (first, second):
        fork.plan(["look", "fix"])
        fork.note("branch", "main")
        fork.commit("planned")
        fork.pause()
    plan = next(e.seq for e in hub.get(first.id).events() if e.kind == "plan")
    hub.erase(first.id, seqs=[plan])
    assert hub.get(first.id).steps == []
    assert hub.get(second.id).steps == ["look", "fix"]
    hub.verify()
