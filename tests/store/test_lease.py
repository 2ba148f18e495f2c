"""Leases of sessions: who holds one, when its process counts as dead, and when it is renewed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path
from threading import Event as Flag
from threading import enumerate as enumerate_threads
from typing import Any, cast

import pytest

from ortet._util.lock_timeout import current_lock_timeout
from ortet.backends.base import Catalog, Lease
from ortet.backends.sqlite.catalog import SqliteCatalog
from ortet.errors import Refused, Unavailable
from ortet.store import lease as leases
from ortet.store.lease import (
    HeldLease,
    LeaseRenewer,
    NoLease,
    is_lease_held,
    is_owner_dead,
    is_owner_visible,
    live_owner_pid,
    owner_prefix,
    session_in_use,
)
from ortet.testing.clock import ManualClock

TTL = 90
NEVER = 2**22 + 1
"""A process number above the largest that Linux gives."""


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def sqlite_catalog(tmp_path: Path, clock: ManualClock) -> Iterator[SqliteCatalog]:
    sqlite_catalog = SqliteCatalog(tmp_path / "catalog.db", clock=clock)
    yield sqlite_catalog
    sqlite_catalog.close()


@pytest.fixture
def ended() -> str:
    """The owner of a lease whose process has ended and was waited for."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        owner = f"here:{child.pid}:{leases._process_start_time(child.pid)}:1"
        assert not is_owner_dead(owner, "here")
    return owner


def stat(monkeypatch: pytest.MonkeyPatch, state: str, *, threads: int, began: int) -> None:
    """Let every process have this line in /proc. The name holds what separates fields."""
    told = [state, *map(str, range(100, 116)), str(threads), "117", str(began), "119", "120"]
    line = f"77 (a) b (c) {' '.join(told)}\n".encode()
    monkeypatch.setattr(leases, "open", lambda *_: BytesIO(line), raising=False)


def without_proc(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object) -> BytesIO:
        raise FileNotFoundError

    monkeypatch.setattr(leases, "open", missing, raising=False)


class TestOwner:
    def test_this_process_is_alive(self) -> None:
        host, pid, began, boot, namespace = owner_prefix("here").split(":")
        assert (host, pid) == ("here", str(os.getpid()))
        assert began.isdigit()
        assert boot == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        assert namespace == str(os.stat("/proc/self/ns/pid").st_ino)
        assert not is_owner_dead(f"{owner_prefix('here')}:1", "here")

    def test_ended_process_of_this_host_is_dead(self, ended: str) -> None:
        assert is_owner_dead(ended, "here")

    def test_process_that_nobody_has_waited_for_is_dead(self) -> None:
        with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
            owner = f"here:{child.pid}:{leases._process_start_time(child.pid)}:1"
            assert child.stdin is not None
            child.stdin.close()
            os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
            assert is_owner_dead(owner, "here")

    def test_process_whose_number_belongs_to_a_newer_process_is_dead(self) -> None:
        assert is_owner_dead(f"here:{os.getpid()}:1:1", "here")

    @pytest.mark.parametrize("host", ["a-host-before", "the-host-after"])
    def test_process_of_another_host_is_never_dead(self, ended: str, host: str) -> None:
        assert not is_owner_dead(ended, host)

    @pytest.mark.parametrize("owner", ["", "ann", f"here:{NEVER}:1", f"here:{NEVER}:1:2:3"])
    def test_owner_of_another_form_is_never_dead(self, owner: str) -> None:
        assert not is_owner_dead(owner, "here")

    @pytest.mark.parametrize("part", [3, 4])
    def test_ended_process_of_another_boot_or_pid_namespace_is_never_dead(self, part: int) -> None:
        parts = owner_prefix("here").split(":")
        parts[1] = str(NEVER)
        assert is_owner_dead(":".join([*parts, "1"]), "here")
        parts[part] = "4026539999"
        assert not is_owner_dead(":".join([*parts, "1"]), "here")
        assert not is_owner_visible(":".join([*parts, "1"]), "here")

    def test_only_a_living_process_that_is_visible_has_a_pid(self, ended: str) -> None:
        owner = f"{owner_prefix('here')}:1"
        assert live_owner_pid(owner, "here") == os.getpid()
        assert live_owner_pid(owner, "there") is None
        assert live_owner_pid(ended, "here") is None
        assert live_owner_pid(f"{owner.rpartition(':')[0]}9:1", "here") is None

    def test_owner_without_a_process_number_is_never_dead(self) -> None:
        assert not is_owner_dead("here:worker:1:1", "here")

    def test_start_time_is_read_behind_a_name_with_brackets(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        stat(monkeypatch, "S", threads=1, began=4711)
        assert owner_prefix("here").split(":")[2] == "4711"
        assert not is_owner_dead("here:77:4711:1", "here")
        assert is_owner_dead("here:77:4712:1", "here")

    def test_process_whose_main_thread_ended_lives_while_another_thread_runs(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        stat(monkeypatch, "Z", threads=2, began=4711)
        assert not is_owner_dead("here:77:4711:1", "here")
        stat(monkeypatch, "Z", threads=1, began=4711)
        assert is_owner_dead("here:77:4711:1", "here")
        stat(monkeypatch, "S", threads=1, began=4711)
        assert not is_owner_dead("here:77:4711:1", "here")


class TestOwnerWithoutProc:
    def test_process_that_exists_is_alive(self, monkeypatch: pytest.MonkeyPatch) -> None:
        without_proc(monkeypatch)
        assert owner_prefix("here").split(":")[2] == "alive"
        assert not is_owner_dead(f"{owner_prefix('here')}:1", "here")

    def test_process_that_does_not_exist_is_dead(self, monkeypatch: pytest.MonkeyPatch) -> None:
        without_proc(monkeypatch)
        assert is_owner_dead(f"here:{NEVER}:alive:1", "here")
        assert is_owner_dead(f"here:{NEVER}:4711:1", "here")
        assert is_owner_dead(f"here:{10**30}:alive:1", "here")

    def test_process_of_another_user_is_not_dead(self, monkeypatch: pytest.MonkeyPatch) -> None:
        asked: list[tuple[int, int]] = []

        def forbidden(pid: int, signal: int) -> None:
            asked.append((pid, signal))
            raise PermissionError

        without_proc(monkeypatch)
        monkeypatch.setattr(os, "kill", forbidden)
        assert not is_owner_dead("here:77:alive:1", "here")
        assert asked == [(77, 0)]  # a signal of another number would end it

    def test_process_whose_start_time_is_hidden_is_not_dead(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        owner = f"{owner_prefix('here')}:1"
        without_proc(monkeypatch)
        assert not is_owner_dead(owner, "here")

    def test_process_that_could_not_read_its_own_start_time_is_not_dead(self) -> None:
        assert not is_owner_dead(f"here:{os.getpid()}:alive:1", "here")


class Told:
    """A catalog that refuses a lease and says who has it."""

    def __init__(self, kind: str, held: Lease | None) -> None:
        self.kind = kind
        self.held = held

    def acquire(self, *_: object) -> Lease:
        raise Refused(self.kind, "no")

    def lease(self, _: str) -> Lease | None:
        return self.held


class TestTaking:
    def test_lease_of_a_dead_process_is_taken_at_once_and_logged(
        self,
        sqlite_catalog: Catalog,
        clock: ManualClock,
        ended: str,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        caplog.set_level("INFO", "ortet")
        old = sqlite_catalog.acquire("w", ended, TTL)
        new = leases.acquire_lease(sqlite_catalog, "w", "here:1:1:2", "here", TTL)
        assert new == Lease("w", "here:1:1:2", new.fence, clock.now_ns() + TTL)
        assert new.fence > old.fence
        assert caplog.messages == ["took the lease on w over from a process that ended"]

    def test_lease_of_a_live_process_is_refused(self, sqlite_catalog: Catalog) -> None:
        old = sqlite_catalog.acquire("w", f"{owner_prefix('here')}:1", TTL)
        with pytest.raises(Refused) as caught:
            leases.acquire_lease(sqlite_catalog, "w", "here:1:1:2", "here", TTL)
        assert caught.value.kind == "lease_held"
        assert sqlite_catalog.lease("w") == old

    def test_other_refusals_and_a_lease_released_meanwhile_are_raised(self, ended: str) -> None:
        held = Lease("w", ended, 1, 1)
        for told in (Told("other", held), Told("lease_held", None), Told("other", None)):
            with pytest.raises(Refused) as caught:
                leases.acquire_lease(cast(Catalog, told), "w", "me", "here")
            assert caught.value.kind == told.kind

    def test_lease_is_held_until_it_expires(
        self, sqlite_catalog: Catalog, clock: ManualClock
    ) -> None:
        now = clock.now_ns()
        assert not is_lease_held(sqlite_catalog, "w", "here", now)
        sqlite_catalog.acquire("w", "ann", TTL)
        assert is_lease_held(sqlite_catalog, "w", "here", now)
        assert is_lease_held(sqlite_catalog, "w", "here", now + TTL - 1)
        assert not is_lease_held(sqlite_catalog, "w", "here", now + TTL)
        assert not is_lease_held(sqlite_catalog, "w", "here", now + 2 * TTL)

    def test_lease_of_a_dead_process_is_not_held(
        self, sqlite_catalog: Catalog, clock: ManualClock, ended: str
    ) -> None:
        sqlite_catalog.acquire("w", ended, TTL)
        assert not is_lease_held(sqlite_catalog, "w", "here", clock.now_ns())
        assert is_lease_held(sqlite_catalog, "w", "there", clock.now_ns())


class TestRefusal:
    @pytest.mark.parametrize(
        ("owner", "who"),
        [
            ("here:PID:1:1", "in this process"),
            ("here:77:1:1", "in process 77 of this host"),
            ("here:PID:1:another-boot:2:1", "in process PID of another container or boot"),
            ("there:PID:1:1", "in a process of another host"),
            ("there:PID:1:boot:2:1", "in a process of another host"),
            ("there:here:1:1", "in a process of another host"),
            ("here:77:1", "in a process of another host"),
            ("here:77:1:1:1", "in a process of another host"),
            ("", "in a process of another host"),
        ],
    )
    def test_refusal_names_the_process_that_has_the_session(self, owner: str, who: str) -> None:
        owner = owner.replace("PID", str(os.getpid()))  # not in the id: each worker has its own
        error = session_in_use(Refused("lease_held", "no", owner=owner, expires=7), "s", "here")
        assert f"session 's' is open {who.replace('PID', str(os.getpid()))}" in error.message
        assert error.kind == "lease_held"
        assert error.details == {"owner": owner, "expires": 7}

    def test_refusal_without_an_owner_names_another_host(self) -> None:
        assert (
            "a process of another host" in session_in_use(Refused("k", "no"), "s", "here").message
        )


class TestHolding:
    @pytest.fixture
    def holding(self, sqlite_catalog: Catalog, clock: ManualClock) -> HeldLease:
        return HeldLease(sqlite_catalog, clock, sqlite_catalog.acquire("w", "ann", TTL), TTL)

    @pytest.mark.parametrize(
        ("passed", "renewed"), [(0, False), (30, False), (31, True), (90, True), (-1, True)]
    )
    def test_lease_is_renewed_after_a_third_of_its_time_or_when_the_clock_went_back(
        self,
        sqlite_catalog: Catalog,
        clock: ManualClock,
        holding: HeldLease,
        passed: int,
        renewed: bool,
    ) -> None:
        before = holding.lease
        clock.advance(passed)
        holding.renew_if_due()
        assert sqlite_catalog.lease("w") == holding.lease
        expires = clock.now_ns() + TTL if renewed else before.expires
        assert holding.lease == Lease("w", "ann", before.fence, expires)

    def test_lease_taken_by_another_is_lost_at_the_next_renewal(
        self, sqlite_catalog: Catalog, clock: ManualClock, holding: HeldLease
    ) -> None:
        clock.advance(TTL)
        sqlite_catalog.acquire("w", "bob", TTL)
        for renew in (holding.renew_if_due, holding.renew):
            with pytest.raises(Refused) as caught:
                renew()
            assert caught.value.kind == "lease_lost"

    def test_renew_extends_the_lease_at_once(
        self, sqlite_catalog: Catalog, clock: ManualClock, holding: HeldLease
    ) -> None:
        clock.advance(1)
        holding.renew()
        assert sqlite_catalog.lease("w") == holding.lease
        assert holding.lease.expires == clock.now_ns() + TTL

    def test_ended_lease_is_released_and_never_renewed(
        self, sqlite_catalog: Catalog, clock: ManualClock, holding: HeldLease
    ) -> None:
        assert not holding.is_released
        holding.release()
        assert holding.is_released
        assert sqlite_catalog.lease("w") is None
        clock.advance(TTL)
        holding.renew_if_due()
        with pytest.raises(Refused) as caught:
            holding.renew()
        assert caught.value.kind == "closed"
        again = sqlite_catalog.acquire("w", "ann", TTL)
        holding.lease = again
        holding.release()  # a second end must not release what was acquired since
        assert sqlite_catalog.lease("w") == again

    def test_reader_has_no_lease_and_cannot_get_one(
        self, sqlite_catalog: Catalog, clock: ManualClock
    ) -> None:
        unheld = NoLease("w")
        assert unheld.lease == Lease("w", "", 0, 0)
        unheld.renew_if_due()
        with pytest.raises(Refused) as caught:
            unheld.renew()
        assert caught.value.kind == "replaying"
        assert not unheld.is_released
        unheld.release()
        assert unheld.is_released
        assert sqlite_catalog.lease("w") is None


class Beating:
    """Counts its renewals; `beaten` is set at each, and `then` is called."""

    def __init__(self, then: Callable[[], Any] = lambda: None) -> None:
        self.beaten = Flag()
        self.patience: set[float | None] = set()
        self._then = then
        self.lease = Lease("w", "me", 1, 1)

    def renew_if_due(self) -> None:
        found = current_lock_timeout()
        self.patience.add(found.seconds if found else None)
        self.beaten.set()
        self._then()


def fail() -> None:
    raise Unavailable("store_locked", "later")


class TestHeart:
    @pytest.fixture
    def heart(self) -> Iterator[LeaseRenewer]:
        heart = LeaseRenewer(0.001)
        yield heart
        heart.close()

    def test_lease_lives_for_thirty_seconds_and_is_renewed_every_ten(self) -> None:
        assert leases.LEASE_TTL_NS == 30 * 10**9
        assert LeaseRenewer()._interval_seconds == 10.0

    def test_every_lease_is_renewed_again_and_again_although_one_fails(
        self, heart: LeaseRenewer
    ) -> None:
        held = [Beating(fail), Beating(), Beating()]
        for one in held:
            heart.add(cast(HeldLease, one))
        for _ in range(3):
            for one in held:
                one.beaten.clear()
            assert all(one.beaten.wait(30) for one in held)

    def test_renewing_thread_does_not_keep_the_process_alive(self, heart: LeaseRenewer) -> None:
        before = set(enumerate_threads())
        heart.add(cast(HeldLease, Beating()))
        (thread,) = set(enumerate_threads()) - before
        assert (thread.name, thread.daemon) == ("ortet-heart", True)

    def test_renewal_waits_one_second_for_a_locked_store(self, heart: LeaseRenewer) -> None:
        one = Beating()
        heart.add(cast(HeldLease, one))
        assert one.beaten.wait(30)
        assert one.patience == {1.0}

    def test_removed_lease_is_not_renewed(self, heart: LeaseRenewer) -> None:
        gone, kept = Beating(), Beating()
        for one in (gone, kept):
            heart.add(cast(HeldLease, one))
        heart.remove(cast(HeldLease, gone))
        heart.remove(cast(HeldLease, gone))
        for _ in range(2):  # the round in which it was removed may still renew it
            kept.beaten.clear()
            assert kept.beaten.wait(30)
        gone.beaten.clear()
        kept.beaten.clear()
        assert kept.beaten.wait(30)
        assert not gone.beaten.is_set()

    def test_closed_heart_starts_again_with_the_next_lease(self, heart: LeaseRenewer) -> None:
        heart.close()
        heart.close()
        first, second = Beating(), Beating()
        heart.add(cast(HeldLease, first))
        assert first.beaten.wait(30)
        heart.close()
        heart.add(cast(HeldLease, second))
        assert second.beaten.wait(30)
