"""Bad input and faults of a session: each is a clear error, and nothing is lost by it."""

from __future__ import annotations

import errno
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ortet.config.environment import open_hub
from ortet.errors import Conflict, Invalid, NotFound, OrtetError, Refused
from ortet.hub.hub import Hub
from ortet.journal.events import MAX_BODY_BYTES
from ortet.testing.clock import ManualClock

if TYPE_CHECKING:
    from tests.fixtures.stores import Open

HOUR = 3600 * 10**9


def deep(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


def cycle() -> Any:
    value: list[Any] = []
    value.append(value)
    return value


BAD: dict[str, Any] = {
    "nan": math.nan,
    "infinite": [-math.inf],
    "bytes": {"k": b"x"},
    "set": {"k": {1}},
    "huge": 2**64,
    "very negative": -(2**63) - 1,
    "half a character": "\ud800",
    "half a character as key": {"\ud800": 1},
    "key": {1: "x"},
    "deep": deep(100),
    "very deep": deep(5000),
    "cycle": cycle(),
    "object": object(),
    "complex": 1j,
    "large": "x" * (MAX_BODY_BYTES + 1),
}


@pytest.mark.parametrize("value", BAD.values(), ids=BAD.keys())
def test_value_that_is_not_json_is_refused_and_nothing_is_recorded(hub: Hub, value: Any) -> None:
    with hub.session("s") as s:
        s.say("user", "before")
        asked = s.ask("what?")
        tip = s.internals.state.core.events
        verbs: list[Callable[[], object]] = [
            lambda: s.say("user", value),
            lambda: s.say("user", "x", extra_part=value),
            lambda: s.note("n", value),
            lambda: s.answer(asked, value),
        ]
        for verb in verbs:
            with pytest.raises(Invalid) as caught:
                verb()
            assert caught.value.kind in ("not_json", "payload_too_large")
        assert s.internals.state.core.events == tip
        assert [m.content for m in s.messages()] == ["before"]
        assert s.act(lambda: value) is value  # an action may return anything: it is shown as text
        s.say("user", "after")
    assert hub.audit(s.id).events == hub.get(s.id).internals.state.core.events


@pytest.mark.parametrize("value", BAD.values(), ids=BAD.keys())
def test_comment_that_is_not_json_is_refused(hub: Hub, value: Any) -> None:
    with hub.session("s") as s:
        with pytest.raises(Invalid):
            hub.comment(s.id, value)
        assert not s.conversation.comments()


def test_extreme_numbers_and_deep_values_are_stored_unchanged(hub: Hub) -> None:
    edge = [2**64 - 1, -(2**63), 0.1, 1e308, True, None, "\U0001f40d", deep(60)]
    with hub.session("s") as s:
        s.note("n", edge)
    assert hub.get(s.id).conversation.notes()["n"] == edge


def test_every_hub_verb_on_an_unknown_session_is_not_found(hub: Hub) -> None:
    for verb in (
        hub.get,
        hub.audit,
        hub.archive,
        hub.unarchive,
        hub.remove,
        hub.governance.hold,
        hub.erase,
    ):
        with pytest.raises(NotFound) as caught:
            verb("0" * 32)
        assert caught.value.kind == "no_session"
    for late in (lambda: hub.comment("gone", "x"), lambda: hub.approve("gone", "x")):
        with pytest.raises(NotFound):
            late()


def test_closed_or_archived_session_cannot_be_opened_or_archived_again(hub: Hub) -> None:
    s = hub.session("s")
    s.finish("done")
    s.pause()  # of one that was let go: nothing
    assert hub.get(s.id).status == "closed"
    first: list[Callable[[], object]] = [lambda: hub.session("s"), lambda: hub.unarchive(s.id)]
    for move in first:
        with pytest.raises(Conflict):
            move()
    hub.archive(s.id)
    then: list[Callable[[], object]] = [lambda: hub.session("s"), lambda: hub.archive(s.id)]
    for move in then:
        with pytest.raises(Conflict):
            move()
    assert [e.data["to"] for e in hub.get(s.id).events() if e.kind == "lifecycle"] == [
        "active",
        "closed",
        "archived",
    ]


def test_action_result_or_error_that_cannot_be_printed_is_recorded(hub: Hub) -> None:
    class Odd:
        def __repr__(self) -> str:
            raise ValueError

    class OddError(Exception):
        def __str__(self) -> str:
            raise ValueError

    def fail() -> None:
        raise OddError

    with hub.session("s") as s:
        s.act(Odd, name="odd")
        with pytest.raises(OddError):
            s.act(fail)
        assert [effect.state for effect in s.effects()] == ["done", "failed"]


class TestClock:
    def test_event_times_stay_ordered_if_the_clock_goes_backwards(self, store: Path) -> None:
        clock = ManualClock()
        with open_hub(store, clock=clock) as hub:
            with hub.session("s", budget={"seconds": 100}) as s:
                s.note("n", 1, ttl=60)
                s.commit("one")
                clock.advance(-5 * HOUR)
                s.say("user", "earlier, says the clock")
                s.commit("two")
                s.restore(s.head.oid if s.head else "")
                s.rewind(1)
                s.say("user", "on another timeline")
                hub.comment(s.id, "beside")
                s.spend(tokens=1)
                assert s.conversation.notes() == {"n": 1}
                assert s.accounting.budget_left()["seconds"] == 100
            with hub.session("s") as s:
                s.say("user", "opened again")
            times = [event.time for event in hub.get(s.id).events()]
            assert times == sorted(times)
            hub.verify()
            hub.audit(s.id)
            hub.remove(s.id)
            hub.verify()

    def test_first_event_after_a_restore_is_not_older_than_the_commit(self, store: Path) -> None:
        clock = ManualClock()
        with open_hub(store, clock=clock) as hub, hub.session("s") as s:
            s.say("user", "x")
            c = s.commit("one")
            s.say("user", "y")
            clock.advance(-HOUR)
            s.restore(c.oid)
            s.say("user", "z")
            times = [event.time for event in s.events()]
            assert times == sorted(times)

    def test_a_lease_does_not_outlive_a_clock_that_was_set_back(self, store: Path) -> None:
        clock = ManualClock()
        with open_hub(store, clock=clock) as one, open_hub(store, clock=clock) as two:
            s = one.session("s")
            clock.advance(-5 * HOUR)
            s.internals.held_lease.renew_if_due()
            clock.advance(31 * 10**9)
            two.session("s").say("user", "taken over")
            with pytest.raises(Refused):
                s.say("user", "late")


SLEEPER = """
import sys, time
import ortet.store.lease as leases, ortet.sessions.manager as sessions
leases.LEASE_TTL_NS = sessions.LEASE_TTL_NS = 10**9
from ortet.errors import Refused
from ortet.config.environment import open_hub
hub = open_hub(sys.argv[1])
s = hub.session("s")
s.say("user", "before")
print("ready", flush=True)
sys.stdin.readline()
try:
    s.say("user", "late")
    print("written", flush=True)
except Refused as error:
    print(error.kind, flush=True)
s.pause()
"""


def test_writer_stopped_longer_than_its_lease_is_refused(store: Path) -> None:
    """SIGSTOP, another takes over, SIGCONT: what the first writes then is Refused."""
    with subprocess.Popen(
        [sys.executable, "-c", SLEEPER, str(store)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        try:
            assert child.stdout.readline() == "ready\n"
            os.kill(child.pid, signal.SIGSTOP)
            os.waitid(os.P_PID, child.pid, os.WSTOPPED)
            clock = ManualClock(time.time_ns() + 60 * 10**9)
            with open_hub(store, clock=clock) as hub:
                s = hub.session("s")
                s.say("user", "taken over")
                child.stdin.write("\n")
                child.stdin.flush()
                os.kill(child.pid, signal.SIGCONT)
                assert child.stdout.readline() == "lease_lost\n"
                s.say("user", "and on")
                assert child.wait() == 0
                assert [m.content for m in s.messages()] == ["before", "taken over", "and on"]
                s.pause()
                hub.verify()
                hub.audit(s.id)
        finally:
            child.kill()


def roomless(disk: Path) -> Path:
    """A store that may fill its disk to the last byte."""
    store = disk / "store"
    store.mkdir()
    (store / "config.toml").write_text("reserve = 0\n")
    return store


class TestFullDisk:
    def fill(self, disk: Path) -> Path:
        """Until nothing more can be written."""
        ballast = disk / "ballast"
        with ballast.open("wb", buffering=0) as file:
            for size in (65536, 4096, 512):
                try:
                    while True:
                        file.write(b"x" * size)
                except OSError as error:
                    assert error.errno == errno.ENOSPC
        return ballast

    def test_full_disk_refuses_writes_and_loses_nothing_once_space_is_free(
        self, opened: Open, small_disk: Path, work: Path
    ) -> None:
        hub = opened(roomless(small_disk))
        s = hub.session("s", workspace=work, engine="folder")
        s.say("user", "before")
        s.commit("one")
        s.artifact("a", data=b"a")
        ballast = self.fill(small_disk)
        said = []
        with pytest.raises(OrtetError) as caught:
            for number in range(10_000):
                s.say("user", f"{number} " + "x" * 3000)
                said.append(number)
        assert "space" in str(caught.value) or "full" in str(caught.value)
        with pytest.raises(OrtetError):
            s.act(lambda: pytest.fail("an action whose intent is not durable must not run"))
        (work / "new").write_bytes(os.urandom(100_000))
        with pytest.raises(OrtetError):
            s.commit("two")
        with pytest.raises(OrtetError):
            s.artifact("b", data=os.urandom(100_000))
        ballast.unlink()
        s.say("user", "after")
        s.commit("two")
        assert [m.content.split()[0] for m in s.messages()] == [
            "before",
            *map(str, said),
            "after",
        ]
        hub.verify()
        ballast = self.fill(small_disk)
        with pytest.raises(OrtetError):
            s.pause()
            hub.archive(s.id)
        ballast.unlink()
        if hub.get(s.id).status == "active":
            hub.session("s").pause()
        hub.archive(s.id)
        hub.unarchive(s.id)
        with hub.session("s") as again:
            assert again.messages()[-1].content == "after"
        hub.verify()
        hub.audit(s.id)

    def test_opening_on_a_full_disk_leaves_it_free(self, opened: Open, small_disk: Path) -> None:
        hub = opened(roomless(small_disk))
        hub.session("s").pause()
        ballast = self.fill(small_disk)
        with pytest.raises(OrtetError):
            for number in range(1000):
                with hub.session("s") as s:
                    s.say("user", f"{number}" + "x" * 3000)
        ballast.unlink()
        with hub.session("s") as s:
            s.say("user", "room again")
        hub.verify()


class TestWeakSpots:
    def test_time_of_a_killed_process_counts_against_the_seconds_budget(self, store: Path) -> None:
        clock = ManualClock()
        hub = open_hub(store, clock=clock)
        s = hub.session("s", budget={"seconds": 100})
        clock.advance(40 * 10**9)
        s.say("user", "still at it")
        clock.advance(31 * 10**9)  # and killed: its lease has run out
        with open_hub(store, clock=clock) as other, other.session("s") as t:
            assert t.accounting.budget_left() == {"seconds": pytest.approx(60)}
            assert t.accounting.spent() == {"seconds": pytest.approx(40)}
        with pytest.raises(Refused):
            s.say("user", "late")
        hub.close()

    def test_workspace_commit_includes_waiting_comments_of_its_session(
        self, hub: Hub, work: Path
    ) -> None:
        with hub.session("s", workspace=work, engine="folder") as s:
            s.commit("one")
        hub.comment(s.id, "look at this", by="bob")
        with hub.workspace(work, engine="folder") as ws:
            ws.commit("by hand")
        (said,) = hub.get(s.id).conversation.comments()
        assert not said.waiting
        assert said.seq <= hub.get(s.id).internals.event_log.base.seq

    def test_archive_includes_waiting_comments(self, hub: Hub) -> None:
        with hub.session("s") as s:
            s.say("user", "x")
        hub.comment(s.id, "before it goes", by="bob")
        hub.archive(s.id)
        assert [(e.data["text"], e.waiting) for e in hub.get(s.id).conversation.comments()] == [
            ("before it goes", False)
        ]

    def test_denied_approval_can_be_requested_again_with_another_reason(self, hub: Hub) -> None:
        def deploy(place: str) -> str:
            return place

        def refused(place: str, reason: str) -> str:
            with pytest.raises(Refused) as caught:
                s.act(deploy, place, approve=reason)
            id_ = caught.value.details["id"]
            if caught.value.kind == "approval_pending":
                return str(id_)
            assert caught.value.kind == "approval_denied"
            return ""

        with hub.session("s") as s:
            hub.approve(s.id, refused("prod", "it is friday"), ok=False, why="no")
            assert refused("prod", "it is friday") == ""
            other = refused("test", "it is friday")  # other arguments: another question
            hub.approve(s.id, other)
            assert s.act(deploy, "test", approve="it is friday") == "test"
            again = refused("prod", "the tests pass now")  # a better reason: the same
            hub.approve(s.id, again)
            assert s.act(deploy, "prod", approve="the tests pass now") == "prod"

    def test_a_removed_session_leaves_no_rows(self, hub: Hub) -> None:
        with hub.session("s", budget={"usd": 5}) as s:
            s.spend(usd=1)
            s.act(str, 1, key="k", replay="once")
            with pytest.raises(Refused) as caught:
                s.act(str, 2, approve="may I?")
            hub.approve(s.id, caught.value.details["id"])
            s.act(str, 2, approve="may I?")
        hub.comment(s.id, "too late")
        hub.remove(s.id)
        for kind in (
            f"spend/{s.id}",
            f"deed/{s.id}",
            f"inbox/{s.id}",
            "approval-used",
            "approval-asks",
            "deed-key",
            "session",
            "removing",
        ):
            assert hub.catalog.rows(kind) == [], kind
        assert sum(line.amounts["usd"] for line in hub.bill()) == 1  # it was paid for
        hub.verify()

    def test_restore_between_a_tool_call_and_its_result_closes_the_call(self, hub: Hub) -> None:
        with hub.session("s") as s:
            s.say("assistant", None, tool_calls=[{"id": "c", "function": {"name": "f"}}])
            middle = s.commit("middle")
            s.say("tool", "42", tool_call_id="c")
            s.restore(middle.oid)
            assert [m.role for m in s.messages()] == ["assistant", "tool"]

    def test_a_failed_open_leaves_nothing_behind(self, hub: Hub, store: Path) -> None:
        s = hub.session("s")
        with open_hub(store) as other, pytest.raises(Refused):
            other.session("s")
        s.pause()
        with open_hub(store) as other:
            other.session("s").say("user", "mine")
