"""The loopback device of a machine, and the fallback address on it.

Standard library only: the live supervisor loads this file as a plain module. It is a module of
its own because both the supervisor and the host side (`OUTBOUND_ADDRESS`) use it.
"""

from __future__ import annotations

import ctypes
import fcntl
import socket
import struct

OUTBOUND_ADDRESS = "10.0.2.100"
"""Address of a machine with an outbound network; the same in every copy."""

_ALIAS = b"lo:0"
_NETMASK = "255.255.255.0"
_ANY_ADDRESS = "0.0.0.0"
_SIOCADDRT, _SIOCDELRT = 0x890B, 0x890C
_SIOCSIFFLAGS, _SIOCSIFADDR, _SIOCSIFNETMASK = 0x8914, 0x8916, 0x891C
_UP_AND_RUNNING = 0x41
_ROUTE_UP = 1


def bring_up() -> None:
    """Bring up loopback. All functions here work in the network namespace of this process."""
    with socket.socket() as sock:
        fcntl.ioctl(sock, _SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", _UP_AND_RUNNING))


def add_fallback_address() -> None:
    """Give loopback the outbound address and a default route, while there is no outbound network.

    CRIU can then restore sockets that were bound or connected with this address.
    """
    with socket.socket() as sock:
        fcntl.ioctl(sock, _SIOCSIFADDR, struct.pack("16s16s", _ALIAS, _sockaddr(OUTBOUND_ADDRESS)))
        fcntl.ioctl(sock, _SIOCSIFNETMASK, struct.pack("16s16s", _ALIAS, _sockaddr(_NETMASK)))
        _change_route(sock, _SIOCADDRT)


def remove_fallback_address() -> None:
    """Remove the address and route again: programs that connect outside get an error at once."""
    with socket.socket() as sock:
        _change_route(sock, _SIOCDELRT)
        fcntl.ioctl(sock, _SIOCSIFFLAGS, struct.pack("16sH14x", _ALIAS, 0))


def _sockaddr(text: str) -> bytes:
    return struct.pack("=HH4s8x", socket.AF_INET, 0, socket.inet_aton(text))


def _change_route(sock: socket.socket, request: int) -> None:
    """Add or delete the default route through loopback, with a struct rtentry."""
    any_, device = _sockaddr(_ANY_ADDRESS), ctypes.create_string_buffer(b"lo")
    fields = (0, any_, any_, any_, _ROUTE_UP, 0, 0, 0, 0, ctypes.addressof(device), 0, 0, 0)
    fcntl.ioctl(sock, request, struct.pack("@L16s16s16sHhLPhPLLH", *fields))
