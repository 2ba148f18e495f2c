"""Swarms that this server runs, each in a thread of its own that uses the slot of its session.

When the server stops, it detaches from its swarms. A swarm can be continued by its name.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from threading import Event, Lock, Thread

from ortet.errors import Invalid, OrtetError, Unavailable, Unsupported
from ortet.sessions.swarm_api import ProgressCallback, SwarmResult, SwarmStopSignal

_log = logging.getLogger(__name__)

_RAY = "ray"
MAX_SWARMS = 16
"""Maximum number of swarms of one store at once. Each one has processes."""

SwarmDriver = Callable[[SwarmStopSignal, ProgressCallback], SwarmResult]
"""Runs a swarm to its end and reports its progress."""


class _SwarmJob:
    """One swarm. `is_started` is set when it runs, or when it could not start."""

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
    """The running swarms of one store. Thread-safe.

    `ray_address` is the cluster for swarms, set by the operator of the server. A client must not
    choose it, because the server would connect to any address.
    """

    def __init__(self) -> None:
        self.ray_address = ""
        self._jobs: list[_SwarmJob] = []
        self._lock = Lock()
        self._closed = False

    def start(self, session: str, run: SwarmDriver) -> SwarmResult:
        """Start a swarm and return its state when the first attempts run, or at its end.

        Args:
            session: Id of the swarm's session.
            run: Runs the swarm.

        Raises:
            Unavailable: Too many swarms run, or the server is stopping.
        """
        job = _SwarmJob(session)
        with self._lock:
            full = self._closed or len(self._jobs) >= MAX_SWARMS
            if not full:
                self._jobs.append(job)
        if full:
            raise Unavailable(
                "too_many_swarms",
                f"{MAX_SWARMS} swarms are driven here, or the server stops: try again, or ask "
                "another",
            )
        Thread(target=self._run_job, args=(job, run), name="ortet-swarm", daemon=True).start()
        job.is_started.wait()
        if job.result is not None:
            return job.result
        assert job.error is not None
        raise job.error

    def resolve_target(self, target: str | None) -> str | None:
        """Return the cluster address for the target that a client names, or None for this host."""
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
            is_detached = isinstance(error, OrtetError) and error.kind == "swarm_left"
            if job.is_started.is_set() and not is_detached:
                _log.error("driving swarm %s", job.name, exc_info=error)
        finally:
            with self._lock:
                self._jobs.remove(job)
            job.is_started.set()

    def stop(self, session: str, name: str) -> bool:
        """Ask a swarm to stop. Return False if it does not run in this server."""
        with self._lock:
            jobs = [job for job in self._jobs if (job.session, job.name) == (session, name)]
        for job in jobs:
            job.halt.stop()
        return bool(jobs)

    def close(self) -> None:
        """Detach from all swarms. Their sessions are free soon after."""
        with self._lock:
            self._closed = True
            jobs = list(self._jobs)
        for job in jobs:
            job.halt.detach()
