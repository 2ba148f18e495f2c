"""Session leases: one process writes at a time. The lease of a dead local process is taken over.

A process is identified by host, boot, PID namespace, pid and start time. If the holder cannot be
looked up from here, its lease ends only when it expires.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import ContextDecorator
from threading import Event as Flag
from threading import Lock, Thread, get_ident
from typing import NamedTuple
from weakref import WeakSet

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


class _OwnerProcess(NamedTuple):
    """A process as a lease owner names it.

    A pid means something only inside its PID namespace and until the next boot. `boot` and
    `namespace` are "" if /proc does not show them, and in owners of earlier versions.
    """

    host: str
    pid: str
    start: str
    boot: str = ""
    namespace: str = ""

    def is_visible_from(self, host: str) -> bool:
        """Return True if this process can look the other one up by its pid.

        A container or a sandbox may have the same host name and another PID namespace. After a
        reboot a pid names another process. An owner of an earlier version names neither, and counts
        as visible.
        """
        if self.host != host:
            return False
        boot, namespace = _boot_id(), _pid_namespace()
        return self.boot in ("", boot) and self.namespace in ("", namespace)


def owner_prefix(host: str) -> str:
    """Return HOST:PID:START:BOOT:NAMESPACE, which identifies this process.

    Another process of the host can tell from it whether this process is alive. BOOT is the id of
    the boot and NAMESPACE the inode of the PID namespace. A lease owner is this prefix, a colon and
    an id of the holding. Earlier versions left BOOT and NAMESPACE out.
    """
    pid = os.getpid()
    return f"{host}:{pid}:{_process_start_time(pid)}:{_boot_id()}:{_pid_namespace()}"


def is_owner_dead(owner: str, host: str) -> bool:
    """Return True only if the owner was a process that this process can see, and has ended.

    A process of another host, another PID namespace or another boot cannot be seen. Return False
    for it, and if either start time is unknown; the lease then ends when it expires.
    """
    process = _parse_owner(owner)
    if process is None or not process.is_visible_from(host):
        return False
    began, now = process.start, _process_start_time(int(process.pid))
    return not now or (now != began and _UNKNOWN_START not in (now, began))


def is_owner_visible(owner: str, host: str) -> bool:
    """Return True if this process can tell whether the owner is alive."""
    process = _parse_owner(owner)
    return process is not None and process.is_visible_from(host)


def live_owner_pid(owner: str, host: str) -> int | None:
    """Return the pid of a living owner that this process can see, otherwise None."""
    process = _parse_owner(owner)
    if process is None or not process.is_visible_from(host) or is_owner_dead(owner, host):
        return None
    return int(process.pid)


def _parse_owner(owner: str) -> _OwnerProcess | None:
    """Return the process of a lease owner, or None if the owner has another form."""
    *identity, _ = owner.split(":")
    if len(identity) not in (3, 5) or not identity[1].isdigit():
        return None
    return _OwnerProcess(*identity)


def _boot_id() -> str:
    """Return the id of the present boot, or "" if /proc does not show it."""
    try:
        with open("/proc/sys/kernel/random/boot_id", "rb") as file:
            return file.read().decode().strip()
    except (OSError, ValueError):
        return ""


def _pid_namespace() -> str:
    """Return the inode of the PID namespace of this process, or "" if /proc does not show it."""
    try:
        return str(os.stat("/proc/self/ns/pid").st_ino)
    except OSError:
        return ""


def _shows_own_namespace() -> bool:
    """Return True if /proc lists the processes of the PID namespace of this process.

    A new namespace without a /proc of its own still sees that of its parent, with other pids.
    """
    try:
        return os.readlink("/proc/self") == str(os.getpid())
    except OSError:
        return False


def _process_start_time(pid: int) -> str:
    """Return the start time of a process in ticks since boot, or "" if there is no such process.

    The start time distinguishes a process from a later one with the same pid. Return
    `_UNKNOWN_START` if /proc is missing, hides the process, or is of another PID namespace.
    """
    try:
        if _shows_own_namespace():
            with open(f"/proc/{pid}/stat", "rb") as file:
                state, *fields = file.read().rpartition(b")")[2].split()
            # a zombie with no other thread: it has ended but was not reaped
            if state == b"Z" and int(fields[16]) <= 1:
                return ""
            return fields[18].decode()
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
    process = _parse_owner(str(error.details.get("owner", "")))
    who = "a process of another host"
    if process is not None and process.is_visible_from(host):
        who = f"process {process.pid} of this host"
        if process.pid == str(os.getpid()):
            return Refused(
                error.kind,
                f"session {session!r} is open in this process: use the one that hub.session gave, "
                "pause() it first, or pause all with hub.pause_open_sessions()",
                **error.details,
            )
    elif process is not None and process.host == host:
        who = f"process {process.pid} of another container or boot of this host"
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


_HELD: WeakSet[HeldLease] = WeakSet()
"""The leases that handles of this process hold, in all hubs. Released ones are removed."""
_CLAIMS: dict[int, int] = {}
"""Thread -> how many blocks of `claiming_lease` it is in."""


class ClaimingLease(ContextDecorator):
    """A block in which a thread acquires a lease and makes its handle.

    Without it another thread could take the new lease for one that nobody holds.
    """

    def __enter__(self) -> None:
        me = get_ident()
        _CLAIMS[me] = _CLAIMS.get(me, 0) + 1

    def __exit__(self, *_: object) -> None:
        me = get_ident()
        _CLAIMS[me] -= 1
        if not _CLAIMS[me]:
            del _CLAIMS[me]


def is_orphaned(lease: Lease, prefix: str) -> bool:
    """Return True if this process acquired a lease that no handle of it holds any more.

    That is so if the release failed, for example on a full disk, or if the opening was interrupted.

    Args:
        lease: the lease as the catalog has it.
        prefix: the `owner_prefix` of this process.
    """
    if not lease.owner.startswith(f"{prefix}:"):
        return False
    if any(thread != get_ident() for thread in list(_CLAIMS)):
        return False
    return all(one.is_released or one.lease.owner != lease.owner for one in list(_HELD))


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
        _HELD.add(self)

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
                _HELD.discard(self)
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
