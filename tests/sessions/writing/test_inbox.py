"""The second lane: comments and approvals without a lease, never lost, never twice."""

from __future__ import annotations

import os
import sys
import threading
from collections import Counter
from pathlib import Path

import pytest
from tests.fixtures import forked

from ortet.config.environment import open_hub
from ortet.errors import Conflict, Invalid, NotFound, Refused
from ortet.hub.hub import Hub
from ortet.journal.event_chain import EventChain
from ortet.journal.events import Tip


def comments(hub: Hub, session: str) -> list[tuple[str, bool]]:
    return [
        (event.data["text"], event.waiting) for event in hub.get(session).conversation.comments()
    ]


class TestComments:
    def test_comment_is_visible_to_readers_before_the_writer_records_it(
        self, store: Path, hub: Hub
    ) -> None:
        with hub.session("s") as s:
            with open_hub(store) as other:
                said = other.comment(s.id, "look at the lexer", by="ann")
                assert (said.waiting, said.seq, said.actor) == (True, 0, "ann")
                assert comments(other, s.id) == [("look at the lexer", True)]
            assert s.act(len, "abc") == 3
            taken = next(event for event in s.events() if event.kind == "comment")
            assert (taken.waiting, taken.actor, taken.data["sent"]) == (False, "ann", said.time)
            assert taken.seq < next(event.seq for event in s.events() if event.kind == "begun")
            assert comments(hub, s.id) == [("look at the lexer", False)]
            assert s.messages() == []

    def test_commit_open_and_pause_record_waiting_comments(self, hub: Hub) -> None:
        with hub.session("s") as s:
            s.commit("empty")
            hub.comment(s.id, "one")
            first = s.commit("with one")
            assert comments(hub, s.id) == [("one", False)]
            hub.comment(s.id, "two")
        assert comments(hub, s.id) == [("one", False), ("two", False)]
        hub.comment(s.id, "three")
        with hub.session("s") as s:
            assert comments(hub, s.id)[-1] == ("three", False)
            assert s.commit().state != first.state
        assert hub.catalog.rows(f"inbox/{s.id}") == []

    def test_comments_survive_a_kill_at_every_point_exactly_once(self, store: Path) -> None:
        with open_hub(store) as hub:
            with hub.session("s") as s:
                id_ = s.id
            code = f"import ortet\nortet.open({str(store)!r}).session('s')"
            for number, point in enumerate(
                ("inbox.before-drain", "journal.before-append", "inbox.after-drain")
            ):
                hub.comment(id_, str(number))
                env = {**os.environ, "ORTET_FAULT": f"{point}:kill"}
                done = forked.run([sys.executable, "-c", code], env=env, check=False)
                assert done.returncode == -9
            with hub.session("s"):
                pass
            assert sorted(comments(hub, id_)) == [("0", False), ("1", False), ("2", False)]

    def test_comment_with_bad_input_or_on_a_closed_session_is_refused(self, hub: Hub) -> None:
        s = hub.session("s")
        with pytest.raises(NotFound):
            hub.comment("0" * 32, "x")
        for wrong in ("", None, 3):
            with pytest.raises(Invalid):
                hub.comment(s.id, wrong)  # type: ignore[arg-type]
        with pytest.raises(Invalid):
            hub.comment(s.id, "x" * (2 << 20))
        s.finish()
        with pytest.raises(Conflict) as caught:
            hub.comment(s.id, "too late")
        assert caught.value.kind == "session_closed"

    def test_concurrent_writers_and_commenters_record_each_comment_once(self, store: Path) -> None:
        with open_hub(store) as hub, hub.session("s") as s:
            id_ = s.id
        failures: list[BaseException] = []
        talked = threading.Event()

        def write() -> None:
            with open_hub(store) as hub:
                last = False
                while not last:
                    last = talked.is_set()
                    try:
                        with hub.session("s") as s:
                            for number in range(3):
                                s.act(abs, number)
                            s.commit()
                    except Refused as error:
                        assert error.kind == "lease_held"  # by the other writer
                        last = False

        def talk(name: str) -> None:
            with open_hub(store) as hub:
                for number in range(10):
                    hub.comment(id_, f"{name}-{number}", by=name)

        def guarded(work: object, *args: str) -> None:
            try:
                work(*args)  # type: ignore[operator]
            except BaseException as error:
                failures.append(error)

        writers = [threading.Thread(target=guarded, args=(write,)) for _ in range(2)]
        talkers = [threading.Thread(target=guarded, args=(talk, f"t{n}")) for n in range(10)]
        for thread in (*writers, *talkers):
            thread.start()
        for thread in talkers:
            thread.join()
        talked.set()
        for thread in writers:
            thread.join()
        assert failures == []
        with open_hub(store) as hub:
            found = Counter(comments(hub, id_))
            assert found == Counter((f"t{n}-{m}", False) for n in range(10) for m in range(10))
            EventChain(hub.objects.hasher, os.urandom).check(
                Tip(), hub.get(id_).internals.event_log.rows()
            )


class TestApprovals:
    def test_action_that_needs_approval_runs_only_after_it_is_given(self, store: Path) -> None:
        sent: list[str] = []
        with open_hub(store) as hub, hub.session("s") as s:
            id_ = s.id
            for _ in range(2):
                with pytest.raises(Refused) as caught:
                    s.act(sent.append, "mail", approve="it leaves the house")
                assert caught.value.kind == "approval_pending"
            (asked,) = s.actions.approvals()
            assert (asked.id, asked.state, asked.why) == (
                caught.value.details["id"],
                "asked",
                "it leaves the house",
            )
            assert "append('mail')" in asked.what
        with open_hub(store) as hub:
            given = hub.approve(id_, asked.id, by="ann", why="go on")
            assert (given.state, given.by, given.because, given.waiting) == (
                "given",
                "ann",
                "go on",
                True,
            )
        with open_hub(store) as hub, hub.session("s") as s:
            s.act(sent.append, "mail", approve="it leaves the house")
            assert sent == ["mail"]
            (used,) = s.actions.approvals()
            assert (used.used, used.waiting) == (s.effects()[0].id, False)
            with pytest.raises(Refused) as caught:  # for one deed only
                s.act(sent.append, "mail", approve="once more")
            assert caught.value.details["id"] != asked.id

    def test_denied_approval_refuses_the_action_and_the_first_answer_counts(self, hub: Hub) -> None:
        with hub.session("s") as s:
            with pytest.raises(Refused) as caught:
                s.act(print, "x", approve="prints")
            id_ = caught.value.details["id"]
            assert hub.approve(s.id, id_, by="bob", ok=False, why="no").state == "denied"
            assert hub.approve(s.id, id_, by="ann").state == "denied"  # the first answer counts
            with pytest.raises(Refused) as caught:
                s.act(print, "x", approve="prints")
            assert (caught.value.kind, caught.value.details["why"]) == ("approval_denied", "no")
            assert s.effects() == []

    def test_used_approval_cannot_be_used_again_by_a_fork_or_after_a_restore(
        self, hub: Hub
    ) -> None:
        done: list[int] = []
        with hub.session("s") as s:
            with pytest.raises(Refused) as caught:
                s.act(done.append, 1, approve="r")
            hub.approve(s.id, caught.value.details["id"])
            before = s.commit()
            (kid,) = s.fork()
            s.act(done.append, 1, approve="r")
            with pytest.raises(Refused):
                kid.act(done.append, 1, approve="r")
            s.restore(before.oid)
            with pytest.raises(Refused):
                s.act(done.append, 1, approve="r")
        assert done == [1]

    def test_retry_of_a_failed_idempotent_effect_keeps_its_approval(self, hub: Hub) -> None:
        tries: list[int] = []

        def put() -> int:
            tries.append(1)
            if len(tries) == 1:
                raise OSError("net")
            return 7

        with hub.session("s") as s:
            with pytest.raises(Refused) as caught:
                s.act(put, key="k", replay="idempotent", approve="r")
            hub.approve(s.id, caught.value.details["id"])
            with pytest.raises(OSError, match="net"):
                s.act(put, key="k", replay="idempotent", approve="r")
            assert s.act(put, key="k", replay="idempotent", approve="r") == 7
            assert s.act(put, key="k", replay="idempotent", approve="r") == 7
        assert len(tries) == 2

    def test_request_approval_records_a_question_without_an_action(self, hub: Hub) -> None:
        with hub.session("s") as s:
            id_ = s.actions.request_approval("merge into main", why="tests are green")
            assert [(a.id, a.state) for a in hub.get(s.id).actions.approvals()] == [(id_, "asked")]
            hub.approve(s.id, id_)
            assert s.actions.approvals()[0].state == "given"

    def test_approval_with_unknown_id_or_bad_values_is_refused(self, hub: Hub) -> None:
        with hub.session("s") as s:
            with pytest.raises(NotFound) as caught:
                hub.approve(s.id, "nope")
            assert caught.value.kind == "no_approval"
            id_ = s.actions.request_approval("x")
            with pytest.raises(Invalid):
                hub.approve(s.id, id_, ok="yes")  # type: ignore[arg-type]
            with pytest.raises(Invalid):
                s.actions.request_approval("")
            with pytest.raises(Invalid):
                s.act(len, "x", approve="")
