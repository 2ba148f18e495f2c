"""The scheduler's connection to a worker process that starts, awaits and stops attempts."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Callable
from typing import Any, Literal

import msgspec

from ortet._util.structs import thread_safe_struct
from ortet.errors import Invalid, OrtetError, Refused, Unavailable, Unsupported
from ortet.machines.poll import poll_readable
from ortet.machines.standalone import ipc
from ortet.sessions.swarm_api import SwarmStopSignal
from ortet.swarm.attempt import AttemptJob
from ortet.swarm.task_transport import TaskPayload, import_environment

_LOCAL_START_SECONDS, _RAY_START_SECONDS = 120.0, 300.0
"""Time limits for loading the modules of a task and for reaching a cluster.

The Ray server has its own limit for each step and reports which one was exceeded.
"""
_EXIT_SECONDS = 30.0
"""Seconds for the Ray server to disconnect from the cluster. Ray may block it."""

FORK_SERVER, RAY_SERVER = "ortet.swarm.workers.fork_server", "ortet.swarm.workers.ray_server"
"""Programs that start attempts: `python -m PROGRAM FD`.

The client sends the configuration. The program answers {"ready": pid} or an error. The client then
sends {"job": AttemptJob} and {"stop": i}, and the program reports how each attempt ended. When FD
is closed, the program ends with everything that it has started.
"""

_ERRORS: dict[str, type[OrtetError]] = {
    cls.name: cls for cls in (Invalid, Refused, Unavailable, Unsupported)
}


class AttemptExit(msgspec.Struct, frozen=True):
    """The end of an attempt as seen from outside.

    "lost" means that the node or its worker process died, which says nothing about the task.
    """

    i: int
    code: int = 0
    why: Literal["", "error", "lost", "timeout"] = ""
    error: str = ""


class SwarmWorkerClient:
    """A worker process for one swarm. It loads the task in the background; see `wait_ready`.

    Closing it ends every running attempt. If `has_own_timeout`, the worker process enforces the
    timeout, because only it knows when an attempt started.
    """

    def __init__(self, program: str, config: dict[str, Any]) -> None:
        ours, theirs = socket.socketpair()
        self.has_own_timeout = program == RAY_SERVER
        output = subprocess.DEVNULL if program == RAY_SERVER else None  # Ray writes much output
        with theirs:
            number = theirs.fileno()
            self._process = subprocess.Popen(
                [sys.executable, "-m", program, str(number)],
                pass_fds=[number],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        self._sock = ours
        self._is_ready = False
        try:
            self._send(config)
        except BaseException:
            self.close()
            raise

    def wait_ready(self) -> None:
        """Wait until the task is loaded. Raise Invalid("bad_task") if it cannot be."""
        if self._is_ready:
            return
        self._sock.settimeout(_RAY_START_SECONDS if self.has_own_timeout else _LOCAL_START_SECONDS)
        try:
            reply, _ = ipc.receive(self._sock)
        except (ipc.ConnectionClosed, TimeoutError) as error:
            raise (_no_cluster() if self.has_own_timeout else _worker_gone()) from error
        self._sock.settimeout(None)
        self._is_ready = True
        _raise_error(reply)
        if "error" in reply:
            raise Invalid(
                "bad_task",
                f"another process cannot load the task ({reply['error']}): it must be possible to "
                "import its module there; what a script does by itself goes below "
                "`if __name__ == '__main__':`",
            )

    def start(self, job: AttemptJob) -> None:
        """Start an attempt."""
        self._send({"job": msgspec.to_builtins(job)})

    def stop(self, i: int) -> None:
        """Stop an attempt and everything it has started; `wait` reports its end."""
        self._send({"stop": i})

    def wait(
        self, seconds: float | None, halt: SwarmStopSignal | None = None
    ) -> AttemptExit | None:
        """Return the next attempt that has ended; None on timeout or if `halt` is signalled."""
        sources = [self._sock] if halt is None else [self._sock, halt]
        if self._sock.fileno() not in poll_readable(*sources, seconds=seconds):
            return None
        try:
            message, _ = ipc.receive(self._sock)
        except ipc.ConnectionClosed as error:
            raise self._gone_error() from error
        _raise_error(message)
        return msgspec.convert(message, thread_safe_struct(AttemptExit))

    def close(self) -> None:
        """End all attempts and the worker process."""
        self._sock.close()
        try:
            self._process.wait(_EXIT_SECONDS if self.has_own_timeout else None)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _send(self, message: dict[str, Any]) -> None:
        try:
            ipc.send(self._sock, message)
        except (ipc.ConnectionClosed, OSError) as error:
            raise self._gone_error() from error

    def _gone_error(self) -> Unavailable:
        return cluster_gone() if self.has_own_timeout else _worker_gone()


def _raise_error(message: dict[str, Any]) -> None:
    """Raise the error that the worker process reported, if any."""
    if "kind" in message:
        raise _ERRORS.get(message["error"], Unavailable)(message["kind"], message["message"])


def worker_config(
    opener: Callable[..., Any], task: TaskPayload, score: TaskPayload | None
) -> dict[str, Any]:
    """Return the configuration common to all worker programs. `opener` opens the store."""
    return {
        "opener": f"{opener.__module__}:{opener.__qualname__}",
        "task": msgspec.to_builtins(task),
        "score": msgspec.to_builtins(score),
        "around": import_environment(task, score),
    }


def _no_cluster() -> Unavailable:
    """Return the error for a cluster that was not found. Ray ends the process in that case."""
    return Unavailable(
        "no_cluster",
        "no Ray cluster answers: is RAY_ADDRESS that of one that runs? `ray status` tells",
    )


def cluster_gone(why: str = "") -> Unavailable:
    """Return the error for a lost cluster. Ray then ends the process without a message."""
    return Unavailable(
        "no_cluster",
        f"the Ray cluster does not answer any more{why}: see `ray status`, then call the swarm "
        "again with its name to go on, there or without on=",
    )


def _worker_gone() -> Unavailable:
    return Unavailable(
        "no_server",
        "the process that starts attempts has ended: call the swarm again with its name to go on",
    )
