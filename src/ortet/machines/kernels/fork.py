"""The fork of a kernel while it is made: its process comes to be beside its files."""

from __future__ import annotations

import os
from contextlib import suppress

from ortet.errors import Conflict, OrtetError, Unavailable
from ortet.machines.kernels.host import Branch, Entered, Seat, close_ends, open_ends
from ortet.machines.kernels.kernel import Kernel
from ortet.machines.kernels.link import Gone, Link, readable

_START = 30.0  # seconds; it takes a millisecond


class Sprout:
    """From the moment a kernel is told to fork; within its turn. `look`: it says first whether
    something is in the way, and only then forks."""

    def __init__(self, kernel: Kernel, mark: str, *, look: bool, force: bool) -> None:
        self._kernel = kernel
        self._mark = mark
        self._force = force
        self._looks = look
        self._due = 0  # answers to come
        self._link: Link | None = None
        self._ends = open_ends()
        out, err, sock = self._ends.theirs
        try:
            message = {"do": "fork", "mark": mark, "look": look, "force": force}
            kernel.say(message, [sock, out, err])
            self._due = 1 + look
        except BaseException:
            close_ends(self._ends)
            raise
        finally:
            for fd in self._ends.theirs:
                os.close(fd)

    def _look(self) -> None:
        self._looks = False
        self._due -= 1
        reply = self._kernel.hear().reply
        kernel, stuck, threads = self._kernel, reply.get("stuck"), reply.get("threads")
        if stuck or "failed" in reply or (threads and not self._force):
            self._due = 0
            if "failed" in reply:
                raise self._failed(reply["failed"])
            kernel.check(reply, force=self._force)

    def come(self, seat: Seat) -> Link:
        """The process is there, and waits for its files. Conflict when something is in the way."""
        if self._link is not None:
            return self._link
        if self._looks:
            self._look()
        self._due -= 1
        said = self._kernel.hear()
        if not isinstance(said.reply.get("pid"), int) or len(said.fds) != 1:
            for fd in said.fds:
                os.close(fd)
            raise self._failed(said.reply.get("failed", "?"))
        pid = seat.number(said.reply["pid"], said.fds[0])
        entered = Entered(self._ends._replace(theirs=[]), pid, said.fds[0])
        self._link = Link(entered, self._mark)
        return self._link

    def wither(self) -> None:
        """Abandon the fork. Its process ends when the connection closes; wait for that, because a
        process that still works in the files is in the way of the next fork."""
        if self._looks:
            with suppress(OrtetError):
                self._look()
        pidfds: list[int] = []
        while self._due > 0:
            self._due -= 1
            with suppress(OrtetError):
                pidfds += self._kernel.hear(_START).fds
        if self._link is None:
            close_ends(self._ends)
        else:
            self._link.hang_up_and_wait(_START)
        for pidfd in pidfds:
            readable(pidfd, _START)
            os.close(pidfd)

    def _failed(self, why: object) -> OrtetError:
        return Unavailable(
            "no_fork",
            f"kernel {self._kernel.name!r} could not fork ({why}): close other forks, or raise the "
            "limits of processes and memory",
        )


def settle(fork: Kernel, branch: Branch) -> None:
    """Give a new fork its files; `listen` waits for its answer."""
    try:
        fork.link.say({"do": "files"}, [branch.root, branch.namespace])
    except Gone as error:
        raise _ended(fork, "") from error


def listen(fork: Kernel) -> None:
    """Until it answers, in files of its own."""
    try:
        lost = fork.link.converse(None, timeout=_START).reply.get("lost")
    except Gone as error:
        raise _ended(fork, error.words) from error
    if lost:
        raise Conflict(
            "files_stuck", f"files could not be opened again in a fork: {', '.join(lost[:5])}"
        )


def _ended(fork: Kernel, words: str) -> OrtetError:
    said = words.strip()[-500:] or "try again"
    return Unavailable("no_fork", f"fork {fork.name!r} ended at its start: {said}")
