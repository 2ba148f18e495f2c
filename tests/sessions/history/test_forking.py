"""What-if: a fork at any event with one change; and where two runs part."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ortet.errors import Invalid, NotFound
from ortet.hub.hub import Hub
from ortet.journal.event_chain import EventChain
from ortet.journal.events import Event, Tip
from ortet.sessions.session import Session


def run(s: Session) -> None:
    for word in ("one", "two", "three"):
        s.say("user", word)
        s.act(len, word)


def find(s: Session, kind: str, at: int = 0) -> Event:
    return [event for event in s.events() if event.kind == kind][at]


def said(s: Session) -> list[str]:
    return [message.content for message in s.messages()]


def check(hub: Hub, s: Session) -> None:
    EventChain(hub.objects.hasher, os.urandom).check(Tip(), s.internals.event_log.rows())


class TestWhatIf:
    @pytest.mark.parametrize("commits", ["none", "after", "middle"])
    def test_whatif_replaces_a_message_in_a_fork_and_keeps_the_original(
        self, hub: Hub, commits: str
    ) -> None:
        with hub.session("s") as s:
            run(s)
            if commits == "middle":
                s.commit()
                run(s)
            if commits != "none":
                s.commit()
            before = [event.hash for event in s.events()]
            two = find(s, "message", 1)
            kid = s.whatif(two.seq, message="zwei")
            assert said(kid) == ["one", "zwei"]
            first = next(
                event for event in kid.events() if event.timeline == kid.internals.row.timeline
            )
            assert (first.seq, first.data["whatif"]) == (two.seq, {"session": s.id, "seq": two.seq})
            kid.act(len, "zwei")
            kid.say("user", "on")
            kid.commit("what if")
            check(hub, kid)
            assert [event.hash for event in s.events()] == before
            kid.pause()
        with hub.session(kid.name) as kid:
            assert said(kid) == ["one", "zwei", "on"]
        hub.sweep(expire_ns=0, min_garbage=0.0)
        hub.verify()

    def test_whatif_works_on_trimmed_rows(self, hub: Hub) -> None:
        with hub.session("s") as s:
            run(s)
            s.commit()
            two = find(s, "message", 1)
            line = s.internals.row.timeline
        hub.catalog.trim_events(line, 100)
        kid = hub.whatif(s.id, at=two.seq, message="zwei")
        assert said(kid) == ["one", "zwei"]
        check(hub, kid)
        hub.verify()

    def test_whatif_replaces_a_result_or_makes_it_a_failure(self, hub: Hub) -> None:
        with hub.session("s") as s:
            run(s)
            ended, begun = find(s, "ended", 1), find(s, "begun", 1)
            kid = hub.whatif(s, at=ended.seq, result=99)
            assert find(kid, "ended", -1).data["outcome"] == 99
            worse = hub.whatif(s.id, at=begun.seq, error="OSError: gone")
            last = list(worse.events())[-1]
            assert (last.seq, last.data["state"]) == (ended.seq, "failed")
            assert {effect.state for effect in s.effects()} == {"done"}

    def test_whatif_inside_an_action_closes_the_action(self, hub: Hub) -> None:
        with hub.session("s") as s:
            s.act(lambda: s.say("user", "inside") and 5, name="long")
            kid = s.whatif(find(s, "message").seq, message="other")
            assert find(kid, "ended").data["synthetic"] is True
            assert [effect.state for effect in s.effects()] == ["done"]

    def test_whatif_works_on_a_fork_and_on_another_whatif(self, hub: Hub) -> None:
        with hub.session("s") as s:
            run(s)
            (kid,) = s.fork()
            kid.say("user", "mine")
            other = kid.whatif(find(s, "message", 0).seq, message="eins")
            assert said(other) == ["eins"]
            again = other.whatif(find(other, "message", 0).seq, message="uno")
            assert said(again) == ["uno"]
            check(hub, again)

    def test_whatif_starts_with_the_files_of_the_last_commit(
        self, hub: Hub, tmp_path: Path
    ) -> None:
        work = tmp_path / "work"
        work.mkdir()
        with hub.session("s", workspace=work) as s:
            s.run("echo 1 > a")
            s.commit()
            s.say("user", "now")
            s.run("echo 2 > a")
            s.commit()
            kid = s.whatif(find(s, "message").seq, message="then")
            assert kid.run("cat a").stdout == "1\n"
            assert (work / "a").read_text() == "2\n"

    def test_whatif_with_bad_input_is_refused(self, hub: Hub) -> None:
        with hub.session("s") as s:
            run(s)
            message, begun = find(s, "message").seq, find(s, "begun").seq
            for at, change in (
                (message, {}),
                (message, {"message": "x", "result": 1}),
                (message, {"result": 1}),
                (begun, {"message": "x"}),
                (message, {"plan": []}),
                (0, {"message": "x"}),
                (True, {"message": "x"}),
                (message, {"message": object()}),
            ):
                with pytest.raises(Invalid):
                    s.whatif(at, **change)
            with pytest.raises(NotFound):
                s.whatif(999, message="x")
            with pytest.raises(NotFound):
                hub.whatif("nope", at=1, message="x")
            assert len(hub.sessions()) == 1


class TestRunDiff:
    def test_diff_runs_reports_the_first_different_event(self, hub: Hub) -> None:
        with hub.session("a") as a, hub.session("b") as b:
            for s in (a, b):
                s.say("user", "hello")
                s.learn("same")
            a.say("user", "left")
            a.think("only here")
            b.say("user", "right")
            a.act(len, "x")
            b.act(len, "x")
        diff = hub.diff_runs(a.id, b.id)
        assert diff.first is not None
        assert diff.first.left is not None
        assert diff.first.right is not None
        assert diff.first.left.data["content"] == "left"
        assert diff.first.right.data["content"] == "right"
        assert diff.seq == diff.first.left.seq
        assert [pair.same for pair in diff.pairs] == [True, True, False, False, True, True]
        text = str(diff)
        assert f"part at event {diff.seq}" in text
        assert "user left" in text
        assert "user right" in text

    def test_diff_runs_of_equal_runs_finds_no_difference(self, hub: Hub) -> None:
        with hub.session("a") as a:
            run(a)
        with hub.session("a"), hub.session("b") as b:
            run(b)
        diff = hub.diff_runs(a.id, b.id)
        assert diff.first is None
        assert "the same" in str(diff)

    def test_a_what_if_parts_where_it_was_changed(self, hub: Hub) -> None:
        with hub.session("s") as s:
            run(s)
            at = find(s, "message", 1).seq
            kid = s.whatif(at, message="zwei")
            assert hub.diff_runs(s, kid).seq == at
