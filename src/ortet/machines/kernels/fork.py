"""A kernel fork in progress: its process is created while its files are prepared."""

from __future__ import annotations

import os
from contextlib import suppress

from ortet.errors import Conflict, OrtetError, Unavailable
from ortet.machines.kernel_host import KernelHost, KernelLayer, KernelProcess
from ortet.machines.kernels.kernel import Kernel
from ortet.machines.kernels.link import KernelGone, KernelLink, readable
from ortet.machines.kernels.local_host import close_channel, open_channel

_FORK_TIMEOUT_SECONDS = 30.0  # a fork takes a millisecond


class PendingKernelFork:
    """A fork that the kernel has been asked for; the caller holds the kernel exclusively.

    With `check_first` the kernel first reports what prevents a fork, and forks only if nothing
    does.
    """

    def __init__(self, kernel: Kernel, mark: str, *, check_first: bool, force: bool) -> None:
        self._kernel = kernel
        self._mark = mark
        self._force = force
        self._is_check_due = check_first
        self._replies_due = 0  # number of outstanding replies
        self._link: KernelLink | None = None
        self._channel = open_channel()
        out, err, sock = self._channel.theirs
        try:
            message = {"do": "fork", "mark": mark, "look": check_first, "force": force}
            kernel.send(message, [sock, out, err])
            self._replies_due = 1 + check_first
        except BaseException:
            close_channel(self._channel)
            raise
        finally:
            for fd in self._channel.theirs:
                os.close(fd)

    def _read_check(self) -> None:
        self._is_check_due = False
        self._replies_due -= 1
        reply = self._kernel.receive().reply
        kernel, stuck, threads = self._kernel, reply.get("stuck"), reply.get("threads")
        if stuck or "failed" in reply or (threads and not self._force):
            self._replies_due = 0
            if "failed" in reply:
                raise self._fork_failed(reply["failed"])
            kernel.raise_obstacles(reply, force=self._force)

    def wait_process(self, host: KernelHost) -> KernelLink:
        """Wait until the process exists and waits for its files.

        Raises Conflict if threads or open files prevent the fork.
        """
        if self._link is not None:
            return self._link
        if self._is_check_due:
            self._read_check()
        self._replies_due -= 1
        reply = self._kernel.receive()
        if not isinstance(reply.reply.get("pid"), int) or len(reply.fds) != 1:
            for fd in reply.fds:
                os.close(fd)
            raise self._fork_failed(reply.reply.get("failed", "?"))
        pid = host.host_pid(reply.reply["pid"], reply.fds[0])
        entered = KernelProcess(self._channel._replace(theirs=[]), pid, reply.fds[0])
        self._link = KernelLink(entered, self._mark)
        return self._link

    def abandon(self) -> None:
        """Abandon the fork, and wait for the end of its process.

        The process ends when the connection closes. A process that still uses the files would block
        the next fork.
        """
        if self._is_check_due:
            with suppress(OrtetError):
                self._read_check()
        pidfds: list[int] = []
        while self._replies_due > 0:
            self._replies_due -= 1
            with suppress(OrtetError):
                pidfds += self._kernel.receive(_FORK_TIMEOUT_SECONDS).fds
        if self._link is None:
            close_channel(self._channel)
        else:
            self._link.hang_up_and_wait(_FORK_TIMEOUT_SECONDS)
        for pidfd in pidfds:
            readable(pidfd, _FORK_TIMEOUT_SECONDS)
            os.close(pidfd)

    def _fork_failed(self, why: object) -> OrtetError:
        return Unavailable(
            "no_fork",
            f"kernel {self._kernel.name!r} could not fork ({why}): close other forks, or raise the "
            "limits of processes and memory",
        )


def send_layer(fork: Kernel, layer: KernelLayer) -> None:
    """Send a new fork its files; `wait_ready` waits for the reply."""
    try:
        fork.link.send({"do": "files"}, [layer.root, layer.namespace])
    except KernelGone as error:
        raise _fork_ended(fork, "") from error


def wait_ready(fork: Kernel) -> None:
    """Wait until a fork answers and uses its own files."""
    try:
        lost = fork.link.request(None, timeout=_FORK_TIMEOUT_SECONDS).reply.get("lost")
    except KernelGone as error:
        raise _fork_ended(fork, error.stderr) from error
    if lost:
        raise Conflict(
            "files_stuck", f"files could not be opened again in a fork: {', '.join(lost[:5])}"
        )


def _fork_ended(fork: Kernel, stderr: str) -> OrtetError:
    reason = stderr.strip()[-500:] or "try again"
    return Unavailable("no_fork", f"fork {fork.name!r} ended at its start: {reason}")
