"""Ports of the host that lead into a machine; they stay when the machine is restored."""

from __future__ import annotations

import os
import signal
import socket
from contextlib import suppress

from ortet.errors import Conflict
from ortet.machines.control.jobs import check_port
from ortet.machines.live.supervisor_client import SupervisorClient


class PortForwards:
    """Of one machine. A process of the keeper carries the connections of each."""

    def __init__(self, supervisor: SupervisorClient) -> None:
        self._supervisor = supervisor
        self._forwards: dict[int, tuple[socket.socket, int]] = {}  # by inner port

    def open(self, init_pid: int, port: int, host_port: int) -> int:
        """From port `at` of the host, 0: any that is free, to `port` of the machine of this pid 1;
        returns the host's. One that is open already stays as it is."""
        check_port(port)
        if host_port != 0:
            check_port(host_port)
        if port in self._forwards:
            return self._host_port(port)
        listener = socket.socket()
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(("127.0.0.1", host_port))
            listener.listen(64)
        except OSError as error:
            listener.close()
            raise Conflict(
                "port_taken",
                f"port {host_port} of this host cannot be used ({error.strerror}): take "
                "another, or 0 for any",
            ) from error
        try:
            self._forwards[port] = (
                listener,
                self._supervisor.start_port_forwarder(init_pid, port, listener),
            )
        except BaseException:
            listener.close()
            raise
        return self._host_port(port)

    def host_ports(self) -> dict[int, int]:
        """Ports of the host, by those of the machine that they lead to."""
        return {port: self._host_port(port) for port in list(self._forwards)}

    def close_port(self, port: int) -> None:
        """No connection comes in there any more; those there are end."""
        if port in self._forwards:
            listener, porter = self._forwards.pop(port)
            with suppress(OSError):  # at once: the porter has it open until it is gone
                listener.shutdown(socket.SHUT_RDWR)
            _kill_forwarder(porter)
            listener.close()

    def reattach(self, init_pid: int) -> None:
        """The machine has another pid 1, and another network."""
        for port, (listener, porter) in self._forwards.items():
            _kill_forwarder(porter)
            self._forwards[port] = (
                listener,
                self._supervisor.start_port_forwarder(init_pid, port, listener),
            )

    def close(self) -> None:
        for listener, porter in self._forwards.values():
            _kill_forwarder(porter)
            listener.close()
        self._forwards = {}

    def _host_port(self, port: int) -> int:
        number: int = self._forwards[port][0].getsockname()[1]
        return number


def _kill_forwarder(forwarder_pid: int) -> None:
    with suppress(OSError):
        os.kill(forwarder_pid, signal.SIGKILL)
