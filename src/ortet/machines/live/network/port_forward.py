"""Ports of the host that lead into a machine; they stay when the machine is restored."""

from __future__ import annotations

import os
import signal
import socket
from contextlib import suppress

from ortet.errors import Conflict
from ortet.machines.control.jobs import check_port
from ortet.machines.live.supervisor_client import Keeper


class Doors:
    """Of one machine. A process of the keeper carries the connections of each."""

    def __init__(self, keeper: Keeper) -> None:
        self._keeper = keeper
        self._open: dict[int, tuple[socket.socket, int]] = {}  # by inner port

    def open(self, pid: int, port: int, at: int) -> int:
        """From port `at` of the host, 0: any that is free, to `port` of the machine of this pid 1;
        returns the host's. One that is open already stays as it is."""
        check_port(port)
        if at != 0:
            check_port(at)
        if port in self._open:
            return self._number(port)
        listener = socket.socket()
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(("127.0.0.1", at))
            listener.listen(64)
        except OSError as error:
            listener.close()
            raise Conflict(
                "port_taken",
                f"port {at} of this host cannot be used ({error.strerror}): take "
                "another, or 0 for any",
            ) from error
        try:
            self._open[port] = listener, self._keeper.porter(pid, port, listener)
        except BaseException:
            listener.close()
            raise
        return self._number(port)

    def all(self) -> dict[int, int]:
        """Ports of the host, by those of the machine that they lead to."""
        return {port: self._number(port) for port in list(self._open)}

    def shut(self, port: int) -> None:
        """No connection comes in there any more; those there are end."""
        if port in self._open:
            listener, porter = self._open.pop(port)
            with suppress(OSError):  # at once: the porter has it open until it is gone
                listener.shutdown(socket.SHUT_RDWR)
            _end(porter)
            listener.close()

    def move(self, pid: int) -> None:
        """The machine has another pid 1, and another network."""
        for port, (listener, porter) in self._open.items():
            _end(porter)
            self._open[port] = listener, self._keeper.porter(pid, port, listener)

    def close(self) -> None:
        for listener, porter in self._open.values():
            _end(porter)
            listener.close()
        self._open = {}

    def _number(self, port: int) -> int:
        number: int = self._open[port][0].getsockname()[1]
        return number


def _end(porter: int) -> None:
    with suppress(OSError):
        os.kill(porter, signal.SIGKILL)
