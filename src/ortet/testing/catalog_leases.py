"""Tests of leases and fences; part of CatalogTests."""

from __future__ import annotations

import pytest

from ortet.backends.base import Catalog, Lease, Move, RowChange
from ortet.errors import Invalid, Refused
from ortet.testing.clock import ManualClock
from ortet.testing.processes import (
    CatalogOpener,
    make_oid,
    run_in_processes,
    run_in_threads,
    try_lease,
)


class LeaseTests:
    def test_acquire_returns_a_lease_with_fence_and_expiry(
        self, catalog: Catalog, clock: ManualClock
    ) -> None:
        assert catalog.lease("w") is None
        lease = catalog.acquire("w", "ann", 100)
        assert lease == Lease("w", "ann", lease.fence, clock.now_ns() + 100)
        assert lease.fence > 0
        assert catalog.lease("w") == lease

    def test_acquire_by_another_owner_is_refused_while_the_lease_is_live(
        self, catalog: Catalog, clock: ManualClock
    ) -> None:
        lease = catalog.acquire("w", "ann", 100)
        clock.advance(99)
        with pytest.raises(Refused) as caught:
            catalog.acquire("w", "bob", 100)
        assert caught.value.kind == "lease_held"
        assert caught.value.details == {"owner": "ann", "expires": lease.expires}
        assert catalog.lease("w") == lease

    def test_leases_of_different_names_are_independent(self, catalog: Catalog) -> None:
        catalog.acquire("w", "ann", 100)
        assert catalog.acquire("v", "bob", 100).owner == "bob"

    def test_the_same_owner_renews_and_keeps_its_fence(
        self, catalog: Catalog, clock: ManualClock
    ) -> None:
        lease = catalog.acquire("w", "ann", 100)
        clock.advance(50)
        again = catalog.acquire("w", "ann", 100)
        assert (again.fence, again.expires) == (lease.fence, lease.expires + 50)
        clock.advance(500)  # It expired and nobody took it.
        late = catalog.acquire("w", "ann", 100)
        assert late.fence == lease.fence
        assert late.expires == clock.now_ns() + 100

    def test_an_expired_lease_can_be_taken(self, catalog: Catalog, clock: ManualClock) -> None:
        lease = catalog.acquire("w", "ann", 100)
        clock.advance(100)
        assert catalog.lease("w") == lease
        taken = catalog.acquire("w", "bob", 100)
        assert taken.fence > lease.fence
        assert catalog.lease("w") == taken
        with pytest.raises(Refused) as caught:
            catalog.acquire("w", "ann", 100)
        assert caught.value.kind == "lease_held"

    def test_extend_moves_the_expiry_and_keeps_the_fence(
        self, catalog: Catalog, clock: ManualClock
    ) -> None:
        lease = catalog.acquire("w", "ann", 100)
        clock.advance(90)
        longer = catalog.extend(lease, 100)
        assert longer == Lease("w", "ann", lease.fence, clock.now_ns() + 100)
        assert catalog.lease("w") == longer
        assert catalog.extend(lease, 500).expires == clock.now_ns() + 500

    def test_extend_after_expiry_succeeds_if_nobody_took_the_lease(
        self, catalog: Catalog, clock: ManualClock
    ) -> None:
        lease = catalog.acquire("w", "ann", 100)
        clock.advance(1000)
        assert catalog.extend(lease, 100).fence == lease.fence
        with pytest.raises(Refused):
            catalog.acquire("w", "bob", 100)

    def test_extend_of_a_lost_lease_is_refused(self, catalog: Catalog, clock: ManualClock) -> None:
        lease = catalog.acquire("w", "ann", 100)
        clock.advance(100)
        taken = catalog.acquire("w", "bob", 100)
        with pytest.raises(Refused) as caught:
            catalog.extend(lease, 100)
        assert caught.value.kind == "lease_lost"
        assert catalog.lease("w") == taken

    @pytest.mark.parametrize("end", ["release", "seize"])
    def test_an_ended_lease_is_free_for_all(self, catalog: Catalog, end: str) -> None:
        lease = catalog.acquire("w", "ann", 100)
        getattr(catalog, end)(lease)
        assert catalog.lease("w") is None
        with pytest.raises(Refused) as caught:
            catalog.extend(lease, 100)
        assert caught.value.kind == "lease_lost"
        self._check_refused(catalog, lease)
        assert catalog.acquire("w", "bob", 100).fence > lease.fence

    @pytest.mark.parametrize("end", ["release", "seize"])
    def test_a_former_owner_gets_a_new_fence(self, catalog: Catalog, end: str) -> None:
        lease = catalog.acquire("w", "ann", 100)
        getattr(catalog, end)(lease)
        assert catalog.acquire("w", "ann", 100).fence > lease.fence

    @pytest.mark.parametrize("end", ["release", "seize"])
    def test_ending_a_lost_lease_does_nothing(
        self, catalog: Catalog, clock: ManualClock, end: str
    ) -> None:
        lease = catalog.acquire("w", "ann", 100)
        clock.advance(100)
        taken = catalog.acquire("w", "bob", 100)
        getattr(catalog, end)(lease)
        assert catalog.lease("w") == taken
        getattr(catalog, end)(taken)
        getattr(catalog, end)(taken)

    def test_a_live_lease_lets_moves_pass(self, catalog: Catalog, clock: ManualClock) -> None:
        lease = catalog.acquire("w", "ann", 100)
        catalog.move([Move("h", None, make_oid(1))], verb="commit", lease=lease)
        catalog.extend(lease, 500)
        clock.advance(499)  # The lease object of the caller has an earlier expiry than the catalog.
        catalog.move([Move("h", make_oid(1), make_oid(2))], verb="commit", lease=lease)

    def test_a_stale_lease_moves_nothing(self, catalog: Catalog, clock: ManualClock) -> None:
        lease = catalog.acquire("w", "ann", 100)
        clock.advance(100)  # expired
        self._check_refused(catalog, lease)
        taken = catalog.acquire("w", "bob", 100)
        self._check_refused(catalog, lease)
        catalog.release(taken)
        self._check_refused(catalog, lease)
        self._check_refused(catalog, Lease("never", "ann", 1, clock.now_ns() + 100))

    def test_a_forged_lease_moves_nothing(self, catalog: Catalog) -> None:
        lease = catalog.acquire("w", "ann", 100)
        self._check_refused(catalog, Lease("w", "bob", lease.fence, lease.expires))
        self._check_refused(catalog, Lease("w", "abe", lease.fence, lease.expires))
        self._check_refused(catalog, Lease("w", "ann", lease.fence + 1, lease.expires))
        self._check_refused(catalog, Lease("w", "ann", lease.fence - 1, lease.expires))

    def test_an_earlier_lease_of_the_same_owner_moves_nothing(self, catalog: Catalog) -> None:
        earlier = catalog.acquire("w", "ann", 100)
        catalog.release(earlier)
        catalog.acquire("w", "ann", 100)
        self._check_refused(catalog, earlier)

    def test_a_lease_may_last_one_nanosecond(self, catalog: Catalog, clock: ManualClock) -> None:
        assert catalog.acquire("w", "ann", 1).expires == clock.now_ns() + 1

    def _check_refused(self, catalog: Catalog, lease: Lease) -> None:
        with pytest.raises(Refused) as caught:
            catalog.move(
                [Move("h", None, make_oid(1))],
                verb="commit",
                lease=lease,
                rows=[RowChange("k", "k", b"")],
            )
        assert caught.value.kind == "lease_lost"
        assert catalog.head("h") is None
        assert catalog.row("k", "k") is None

    @pytest.mark.parametrize("ttl", [0, -1])
    def test_a_ttl_below_one_is_refused(self, catalog: Catalog, ttl: int) -> None:
        lease = catalog.acquire("w", "ann", 100)
        with pytest.raises(Invalid) as caught:
            catalog.acquire("v", "ann", ttl)
        assert caught.value.kind == "bad_ttl"
        with pytest.raises(Invalid) as caught:
            catalog.extend(lease, ttl)
        assert caught.value.kind == "bad_ttl"
        assert catalog.lease("v") is None

    def test_a_very_long_ttl_never_expires(self, catalog: Catalog, clock: ManualClock) -> None:
        lease = catalog.acquire("w", "ann", 2**63)
        clock.advance(10**17)
        assert catalog.lease("w") == lease
        assert lease.expires > clock.now_ns()

    def test_fences_only_grow(self, catalog: Catalog, clock: ManualClock) -> None:
        fences = []
        for n in range(12):
            lease = catalog.acquire("w", f"owner-{n}", 100)
            fences.append(lease.fence)
            if n % 3 == 0:
                clock.advance(100)
            elif n % 3 == 1:
                catalog.release(lease)
            else:
                catalog.seize(lease)
        assert fences == sorted(set(fences))

    def test_threads_get_different_fences(self, catalog: Catalog) -> None:
        def cycle(owner: str) -> list[int]:
            fences: list[int] = []
            while len(fences) < 10:
                try:
                    lease = catalog.acquire("w", owner, 10**12)
                except Refused:
                    continue
                fences.append(lease.fence)
                catalog.release(lease)
            return fences

        found = run_in_threads(cycle, [(f"owner-{n}",) for n in range(4)])
        every = [fence for fences in found for fence in fences]
        assert len(set(every)) == 40
        assert all(fences == sorted(fences) for fences in found)

    def test_one_of_many_processes_acquires_the_lease(
        self, catalog: Catalog, opener: CatalogOpener
    ) -> None:
        owners = [f"owner-{n}" for n in range(4)]
        fences = run_in_processes(try_lease, [(opener, "w", owner) for owner in owners])
        winners = [fence for fence in fences if fence]
        lease = catalog.lease("w")
        assert lease is not None
        assert winners == [lease.fence]
        assert lease.owner == owners[fences.index(lease.fence)]
