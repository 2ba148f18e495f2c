"""Ports of the host that are forwarded into a machine. They stay open across a restore."""

from __future__ import annotations

import os
import signal
import socket
from contextlib import suppress

from ortet.errors import Conflict
from ortet.machines.jobs import check_port
from ortet.machines.live.supervisor_client import SupervisorClient


class PortForwards:
    """The port forwards of one machine. A process of the supervisor serves each of them."""

    def __init__(self, supervisor: SupervisorClient) -> None:
        self._supervisor = supervisor
        self._forwards: dict[int, tuple[socket.socket, int]] = {}  # by port inside the machine

    def open(self, init_pid: int, port: int, host_port: int) -> int:
        """Forward a port of the host to `port` of the machine, and return the host's port.

        A `host_port` of 0 takes any free port. A port that is already forwarded stays as it is.
        """
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
        """Return the forwarded ports: port of the machine -> port of the host."""
        return {port: self._host_port(port) for port in list(self._forwards)}

    def close_port(self, port: int) -> None:
        """Stop forwarding a port, and end its connections."""
        if port in self._forwards:
            listener, porter = self._forwards.pop(port)
            # at once: the forwarder has the listener open until it has ended
            with suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            _kill_forwarder(porter)
            listener.close()

    def reattach(self, init_pid: int) -> None:
        """Forward all ports to a restarted machine, which has another pid 1 and network."""
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
