"""Who may write to a session: one process at a time, and the next at once when that one is dead."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from threading import Event as Flag
from threading import Lock, Thread

from ortet._util.deadlines import lock_timeout
from ortet.backends.base import Catalog, Lease
from ortet.errors import OrtetError, Refused
from ortet.ids import Clock

LEASE_TTL_NS = 30 * 10**9
_RENEWALS_PER_TTL = 3
"""How often a lease is renewed in its time."""
_RENEW_LOCK_TIMEOUT_SECONDS = 1.0
"""Seconds for which a heart keeps the connection from who uses it."""
_UNKNOWN_START = "alive"
"""The start time of a process that exists and whose start time cannot be read."""


def owner_prefix(host: str) -> str:
    """Names this process so that another on the same host can tell whether it still lives; an
    owner is this, a colon, and which of its holdings."""
    return f"{host}:{os.getpid()}:{_process_start_time(os.getpid())}"


def is_owner_dead(owner: str, host: str) -> bool:
    """True only when it was a process of this host and is no more.

    A start time that either side could not read says nothing: such a lease ends by its time.
    """
    parts = owner.split(":")
    if len(parts) != 4 or parts[0] != host or not parts[1].isdigit():
        return False
    began, now = parts[2], _process_start_time(int(parts[1]))
    return not now or (now != began and _UNKNOWN_START not in (now, began))


def _process_start_time(pid: int) -> str:
    """When a process began, in ticks since boot: with it a number is not taken for another's.

    "" when there is no such process. Without /proc, or when /proc hides other users' processes,
    it is only known that the process exists.
    """
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            state, *told = file.read().rpartition(b")")[2].split()
        if state == b"Z" and int(told[16]) <= 1:  # it has ended; nobody has asked how
            return ""
        return told[18].decode()
    except (OSError, IndexError, ValueError):
        pass
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return ""
    except PermissionError:  # it belongs to another user
        pass
    return _UNKNOWN_START


def acquire_lease(
    catalog: Catalog, name: str, owner: str, host: str, ttl_ns: int = LEASE_TTL_NS
) -> Lease:
    """The lease on `name`; Refused("lease_held") while another process writes."""
    try:
        return catalog.acquire(name, owner, ttl_ns)
    except Refused as error:
        held = catalog.lease(name)
        if error.kind != "lease_held" or held is None or not is_owner_dead(held.owner, host):
            raise
        catalog.seize(held)
        return catalog.acquire(name, owner, ttl_ns)


def is_lease_held(catalog: Catalog, name: str, host: str, now: int) -> bool:
    """Whether a process has it that lives, as far as can be told from here."""
    held = catalog.lease(name)
    return held is not None and held.expires > now and not is_owner_dead(held.owner, host)


def session_in_use(error: Refused, session: str, host: str) -> Refused:
    """A refused lease in words that help its user: who has the session, and what can be done."""
    parts = str(error.details.get("owner", "")).split(":")
    who = "a process of another host"
    if len(parts) == 4 and parts[0] == host:
        who = f"process {parts[1]} of this host"
        if parts[1] == str(os.getpid()):
            return Refused(
                error.kind,
                f"session {session!r} is open in this process: use the one that hub.session gave, "
                "or pause() it first",
                **error.details,
            )
    return Refused(
        error.kind,
        f"session {session!r} is open in {who}: wait until it lets go, or leave it a word with "
        "`ortet comment` or hub.comment",
        **error.details,
    )


class HeldLease:
    """A lease while it is held. `lease` is what a write shows; it is renewed as time goes by."""

    def __init__(
        self, catalog: Catalog, clock: Clock, lease: Lease, ttl_ns: int = LEASE_TTL_NS
    ) -> None:
        self.lease = lease
        self._catalog = catalog
        self._clock = clock
        self._ttl_ns = ttl_ns
        self._lock = Lock()
        self.is_released = False

    def renew_if_due(self) -> None:
        """Renew it when a part of its time is over; Refused("lease_lost") when another took it."""
        with self._lock:
            left = self.lease.expires - self._clock.now_ns()
            # more than all of its time is left when the clock was set back
            fresh = self._ttl_ns - self._ttl_ns // _RENEWALS_PER_TTL <= left <= self._ttl_ns
            if not self.is_released and not fresh:
                self.lease = self._catalog.extend(self.lease, self._ttl_ns)

    def renew(self) -> None:
        """After a write was refused: go on if nobody else came meanwhile, else Refused."""
        with self._lock:
            if self.is_released:
                raise Refused("closed", "the session was closed: open it again with the hub")
            self.lease = self._catalog.extend(self.lease, self._ttl_ns)

    def release(self) -> None:
        with self._lock:
            if not self.is_released:
                self.is_released = True
                self._catalog.release(self.lease)


class NoLease(HeldLease):
    """Of one who only reads: there is no lease, and whatever would show it is refused."""

    def __init__(self, catalog: Catalog, clock: Clock, name: str) -> None:
        super().__init__(catalog, clock, Lease(name, owner="", fence=0, expires=0))

    def renew_if_due(self) -> None: ...

    def renew(self) -> None:
        raise Refused("replaying", "this session is only read: open it without replay= to write")

    def release(self) -> None:
        self.is_released = True


class LeaseRenewer:
    """Renews what is held while its owner is busy elsewhere, in a command that takes an hour."""

    def __init__(self, seconds: float = LEASE_TTL_NS / 1e9 / _RENEWALS_PER_TTL) -> None:
        self._interval_seconds = seconds
        self._leases: list[HeldLease] = []
        self._lock = Lock()
        self._stop: Flag | None = None

    def add(self, lease: HeldLease) -> None:
        with self._lock:
            self._leases.append(lease)
            if self._stop is None:
                self._stop = Flag()
                run: Callable[[Flag], None] = self._run
                Thread(target=run, args=(self._stop,), name="ortet-heart", daemon=True).start()

    def remove(self, lease: HeldLease) -> None:
        with self._lock:
            if lease in self._leases:
                self._leases.remove(lease)

    def close(self) -> None:
        with self._lock:
            if self._stop is not None:
                self._stop.set()
                self._stop = None

    def _run(self, stop: Flag) -> None:
        while not stop.wait(self._interval_seconds):
            with self._lock:
                holdings = list(self._leases)
            for holding in holdings:
                # its next write is told; and nobody takes it from a store that is locked
                with suppress(OrtetError), lock_timeout(_RENEW_LOCK_TIMEOUT_SECONDS):
                    holding.renew_if_due()
