"""Session leases: one process writes at a time. The lease of a dead local process is taken over."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable
from threading import Event as Flag
from threading import Lock, Thread

from ortet._util.lock_timeout import lock_timeout
from ortet._util.log import get_logger
from ortet.backends.base import Catalog, Lease
from ortet.errors import OrtetError, Refused
from ortet.ids import Clock

LEASE_TTL_NS = 30 * 10**9
_RENEWALS_PER_TTL = 3
"""The number of renewals within one lease lifetime."""
_RENEW_LOCK_TIMEOUT_SECONDS = 1.0
"""Seconds for which the renewal thread may wait for, and thus block, the catalog connection."""
_UNKNOWN_START = "alive"
"""Stands for the start time of a process that exists but whose start time cannot be read."""


def owner_prefix(host: str) -> str:
    """Return HOST:PID:START, which identifies this process.

    Another process of the host can tell from it whether this process is alive. A lease owner is
    this prefix, a colon and an id of the holding.
    """
    return f"{host}:{os.getpid()}:{_process_start_time(os.getpid())}"


def is_owner_dead(owner: str, host: str) -> bool:
    """Return True only if the owner was a process of this host and has ended.

    If either start time is unknown, return False; the lease then ends when it expires.
    """
    parts = owner.split(":")
    if len(parts) != 4 or parts[0] != host or not parts[1].isdigit():
        return False
    began, now = parts[2], _process_start_time(int(parts[1]))
    return not now or (now != began and _UNKNOWN_START not in (now, began))


def _process_start_time(pid: int) -> str:
    """Return the start time of a process in ticks since boot, or "" if there is no such process.

    The start time distinguishes a process from a later one with the same pid. Return
    `_UNKNOWN_START` if /proc is missing or hides the process.
    """
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            state, *told = file.read().rpartition(b")")[2].split()
        # a zombie with no other thread: it has ended but was not reaped
        if state == b"Z" and int(told[16]) <= 1:
            return ""
        return told[18].decode()
    except (OSError, IndexError, ValueError):
        pass
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return ""
    except PermissionError:  # the process belongs to another user
        pass
    return _UNKNOWN_START


def acquire_lease(
    catalog: Catalog, name: str, owner: str, host: str, ttl_ns: int = LEASE_TTL_NS
) -> Lease:
    """Acquire the lease on `name`, taking it over from a dead process of this host.

    Raise Refused("lease_held") while another process holds it.
    """
    try:
        return catalog.acquire(name, owner, ttl_ns)
    except Refused as error:
        held = catalog.lease(name)
        if error.kind != "lease_held" or held is None or not is_owner_dead(held.owner, host):
            get_logger(__name__).debug("the lease on %s is refused: %s", name, error.kind)
            raise
        get_logger(__name__).info("took the lease on %s over from a process that ended", name)
        catalog.seize(held)
        return catalog.acquire(name, owner, ttl_ns)


def is_lease_held(catalog: Catalog, name: str, host: str, now: int) -> bool:
    """Return True if the lease is live and its owner is not known to be dead."""
    held = catalog.lease(name)
    return held is not None and held.expires > now and not is_owner_dead(held.owner, host)


def session_in_use(error: Refused, session: str, host: str) -> Refused:
    """Return the Refused error with a message that says which process has the session open."""
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


class WriterLease(ABC):
    """The lease of an open session. Writes pass its `lease`."""

    lease: Lease
    is_released: bool

    @abstractmethod
    def renew_if_due(self) -> None:
        """Renew the lease if a third of its lifetime is over.

        Raise Refused("lease_lost") if another process has acquired it.
        """

    @abstractmethod
    def renew(self) -> None:
        """Renew the lease after a write was refused.

        Raise Refused if another process has acquired it.
        """

    @abstractmethod
    def release(self) -> None:
        """Release the lease. A second call does nothing."""


class HeldLease(WriterLease):
    """A lease that this process holds and renews."""

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
        with self._lock:
            left = self.lease.expires - self._clock.now_ns()
            # more time than the whole lifetime is left if the clock was set back
            fresh = self._ttl_ns - self._ttl_ns // _RENEWALS_PER_TTL <= left <= self._ttl_ns
            if not self.is_released and not fresh:
                self.lease = self._catalog.extend(self.lease, self._ttl_ns)

    def renew(self) -> None:
        with self._lock:
            if self.is_released:
                raise Refused("closed", "the session was closed: open it again with the hub")
            self.lease = self._catalog.extend(self.lease, self._ttl_ns)

    def release(self) -> None:
        with self._lock:
            if not self.is_released:
                self.is_released = True
                self._catalog.release(self.lease)


class NoLease(WriterLease):
    """Stands in for a lease in a read-only session. Every write that needs the lease is refused."""

    def __init__(self, name: str) -> None:
        self.lease = Lease(name, owner="", fence=0, expires=0)
        self.is_released = False

    def renew_if_due(self) -> None: ...

    def renew(self) -> None:
        raise Refused("replaying", "this session is only read: open it without replay= to write")

    def release(self) -> None:
        self.is_released = True


class LeaseRenewer:
    """Renews leases from a background thread while their owner is busy, e.g. in a long command."""

    def __init__(self, seconds: float = LEASE_TTL_NS / 1e9 / _RENEWALS_PER_TTL) -> None:
        self._interval_seconds = seconds
        self._leases: list[WriterLease] = []
        self._lock = Lock()
        self._stop: Flag | None = None

    def add(self, lease: WriterLease) -> None:
        """Renew `lease` from now on. The first call starts the thread."""
        with self._lock:
            self._leases.append(lease)
            if self._stop is None:
                self._stop = Flag()
                run: Callable[[Flag], None] = self._run
                Thread(target=run, args=(self._stop,), name="ortet-heart", daemon=True).start()

    def remove(self, lease: WriterLease) -> None:
        """Stop renewing `lease`."""
        with self._lock:
            if lease in self._leases:
                self._leases.remove(lease)

    def close(self) -> None:
        """Stop the thread."""
        with self._lock:
            if self._stop is not None:
                self._stop.set()
                self._stop = None

    def _run(self, stop: Flag) -> None:
        while not stop.wait(self._interval_seconds):
            with self._lock:
                holdings = list(self._leases)
            for holding in holdings:
                # A lost lease is reported by the session's next write. While the store is locked,
                # no other process can take the lease.
                try:
                    with lock_timeout(_RENEW_LOCK_TIMEOUT_SECONDS):
                        holding.renew_if_due()
                except OrtetError as error:
                    get_logger(__name__).warning(
                        "the lease on %s was not renewed: %s", holding.lease.name, error.kind
                    )
