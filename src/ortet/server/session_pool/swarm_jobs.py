"""Swarms that this server drives: each in a thread of its own, which has the room of its session.

A driver that is told to let go leaves the swarm as it is: whoever asks for it by name goes on.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Event, Lock, Thread

from ortet.errors import Invalid, OrtetError, Unavailable, Unsupported
from ortet.sessions.swarm_api import ProgressCallback, SwarmResult, SwarmStopSignal

_RAY = "ray"
MAX_SWARMS = 16
"""Swarms of one store at once: each has processes of its own."""

SwarmDriver = Callable[[SwarmStopSignal, ProgressCallback], SwarmResult]
"""Drives a swarm to its end, and tells how far it is."""
ErrorReporter = Callable[[str, BaseException], None]


class _SwarmJob:
    """One, from the moment it was asked for. `settled`: it is under way, or could not begin."""

    def __init__(self, session: str) -> None:
        self.session = session
        self.halt = SwarmStopSignal()
        self.is_started = Event()
        self.result: SwarmResult | None = None
        self.error: BaseException | None = None

    @property
    def name(self) -> str:
        return self.result.name if self.result is not None else ""

    def on_progress(self, result: SwarmResult) -> None:
        self.result = result
        self.is_started.set()


class SwarmJobs:
    """Those of one store. Any thread may ask. `ray` is the cluster that they may run on, chosen by
    who starts the server: a client that could give an address would have us connect anywhere."""

    def __init__(self, report_error: ErrorReporter) -> None:
        self.ray_address = ""
        self._report_error = report_error
        self._jobs: list[_SwarmJob] = []
        self._lock = Lock()
        self._closed = False

    def start(self, session: str, run: SwarmDriver) -> SwarmResult:
        """As it is when its first attempts run, or it has ended; what kept it from that is raised.
        `session` is the id of its session."""
        drive = _SwarmJob(session)
        with self._lock:
            full = self._closed or len(self._jobs) >= MAX_SWARMS
            if not full:
                self._jobs.append(drive)
        if full:
            raise Unavailable(
                "too_many_swarms",
                f"{MAX_SWARMS} swarms are driven here, or the server stops: try again, or ask "
                "another",
            )
        Thread(target=self._run_job, args=(drive, run), name="ortet-swarm", daemon=True).start()
        drive.is_started.wait()
        if drive.result is not None:
            return drive.result
        assert drive.error is not None
        raise drive.error

    def resolve_target(self, target: str | None) -> str | None:
        """Where a swarm is to run, of what a client may say; None: on this host."""
        if target is None:
            return None
        if target != _RAY:
            raise Invalid(
                "bad_place",
                f"on={target[:100]!r}: say 'ray' for the cluster of this server, or nothing for "
                "its "
                "host; an address is for who starts it to give (--ray)",
            )
        if not self.ray_address:
            raise Unsupported(
                "no_cluster_here",
                "this server has no Ray cluster: leave on out, or start it with --ray ADDRESS",
            )
        return self.ray_address

    def _run_job(self, job: _SwarmJob, run: SwarmDriver) -> None:
        try:
            with job.halt:
                job.on_progress(run(job.halt, job.on_progress))
        except BaseException as error:
            job.error = error
            left = isinstance(error, OrtetError) and error.kind == "swarm_left"
            if job.is_started.is_set() and not left:
                self._report_error(f"driving swarm {job.name}", error)
        finally:
            with self._lock:
                self._jobs.remove(job)
            job.is_started.set()

    def stop(self, session: str, name: str) -> bool:
        """Tell a swarm that it is enough; False when it is not driven here."""
        with self._lock:
            found = [one for one in self._jobs if (one.session, one.name) == (session, name)]
        for one in found:
            one.halt.stop()
        return bool(found)

    def close(self) -> None:
        """Have all let go; their sessions are free soon after."""
        with self._lock:
            self._closed = True
            found = list(self._jobs)
        for one in found:
            one.halt.detach()
