"""Swarms that this server drives: each in a thread of its own, which has the room of its session.

A driver that is told to let go leaves the swarm as it is: whoever asks for it by name goes on.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Event, Lock, Thread

from ortet.errors import Invalid, OrtetError, Unavailable, Unsupported
from ortet.sessions.swarm_api import Halt, SwarmResult, Watcher

_RAY = "ray"
MOST = 16
"""Swarms of one store at once: each has processes of its own."""

Run = Callable[[Halt, Watcher], SwarmResult]
"""Drives a swarm to its end, and tells how far it is."""
Told = Callable[[str, BaseException], None]


class _Drive:
    """One, from the moment it was asked for. `settled`: it is under way, or could not begin."""

    def __init__(self, session: str) -> None:
        self.session = session
        self.halt = Halt()
        self.settled = Event()
        self.result: SwarmResult | None = None
        self.error: BaseException | None = None

    @property
    def name(self) -> str:
        return self.result.name if self.result is not None else ""

    def hear(self, result: SwarmResult) -> None:
        self.result = result
        self.settled.set()


class Drives:
    """Those of one store. Any thread may ask. `ray` is the cluster that they may run on, chosen by
    who starts the server: a client that could give an address would have us connect anywhere."""

    def __init__(self, told: Told) -> None:
        self.ray = ""
        self._told = told
        self._open: list[_Drive] = []
        self._lock = Lock()
        self._closed = False

    def begin(self, session: str, run: Run) -> SwarmResult:
        """As it is when its first attempts run, or it has ended; what kept it from that is raised.
        `session` is the id of its session."""
        drive = _Drive(session)
        with self._lock:
            full = self._closed or len(self._open) >= MOST
            if not full:
                self._open.append(drive)
        if full:
            raise Unavailable(
                "too_many_swarms",
                f"{MOST} swarms are driven here, or the server stops: try again, or ask another",
            )
        Thread(target=self._drive, args=(drive, run), name="ortet-swarm", daemon=True).start()
        drive.settled.wait()
        if drive.result is not None:
            return drive.result
        assert drive.error is not None
        raise drive.error

    def place(self, on: str | None) -> str | None:
        """Where a swarm is to run, of what a client may say; None: on this host."""
        if on is None:
            return None
        if on != _RAY:
            raise Invalid(
                "bad_place",
                f"on={on[:100]!r}: say 'ray' for the cluster of this server, or nothing for its "
                "host; an address is for who starts it to give (--ray)",
            )
        if not self.ray:
            raise Unsupported(
                "no_cluster_here",
                "this server has no Ray cluster: leave on out, or start it with --ray ADDRESS",
            )
        return self.ray

    def _drive(self, drive: _Drive, run: Run) -> None:
        try:
            with drive.halt:
                drive.hear(run(drive.halt, drive.hear))
        except BaseException as error:
            drive.error = error
            left = isinstance(error, OrtetError) and error.kind == "swarm_left"
            if drive.settled.is_set() and not left:
                self._told(f"driving swarm {drive.name}", error)
        finally:
            with self._lock:
                self._open.remove(drive)
            drive.settled.set()

    def stop(self, session: str, name: str) -> bool:
        """Tell a swarm that it is enough; False when it is not driven here."""
        with self._lock:
            found = [one for one in self._open if (one.session, one.name) == (session, name)]
        for one in found:
            one.halt.stop()
        return bool(found)

    def close(self) -> None:
        """Have all let go; their sessions are free soon after."""
        with self._lock:
            self._closed = True
            found = list(self._open)
        for one in found:
            one.halt.leave()
