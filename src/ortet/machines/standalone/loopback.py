"""A machine's loopback device, and what it stands in for while processes are restored without a way
out.

Standard library only: the keeper loads this file by itself.
"""

from __future__ import annotations

import ctypes
import fcntl
import socket
import struct

OUTBOUND_ADDRESS = "10.0.2.100"
"""Of a machine that has a way out, beside loopback; the same in every copy."""

_ALIAS = b"lo:0"
_NETMASK = "255.255.255.0"
_ANY_ADDRESS = "0.0.0.0"
_SIOCADDRT, _SIOCDELRT = 0x890B, 0x890C
_SIOCSIFFLAGS, _SIOCSIFADDR, _SIOCSIFNETMASK = 0x8914, 0x8916, 0x891C
_UP_AND_RUNNING = 0x41
_ROUTE_UP = 1


def bring_up() -> None:
    """In the network namespace of this process, as all of these."""
    with socket.socket() as sock:
        fcntl.ioctl(sock, _SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", _UP_AND_RUNNING))


def add_fallback_address() -> None:
    """Have the address and a route of a way out that is not there: sockets that were bound or
    connected by it can then be made again."""
    with socket.socket() as sock:
        fcntl.ioctl(sock, _SIOCSIFADDR, struct.pack("16s16s", _ALIAS, _sockaddr(OUTBOUND_ADDRESS)))
        fcntl.ioctl(sock, _SIOCSIFNETMASK, struct.pack("16s16s", _ALIAS, _sockaddr(_NETMASK)))
        _change_route(sock, _SIOCADDRT)


def remove_fallback_address() -> None:
    """Nothing leads outside again, and programs that try are told so at once."""
    with socket.socket() as sock:
        _change_route(sock, _SIOCDELRT)
        fcntl.ioctl(sock, _SIOCSIFFLAGS, struct.pack("16sH14x", _ALIAS, 0))


def _sockaddr(text: str) -> bytes:
    return struct.pack("=HH4s8x", socket.AF_INET, 0, socket.inet_aton(text))


def _change_route(sock: socket.socket, request: int) -> None:
    """Of every address, by loopback; a struct rtentry."""
    any_, device = _sockaddr(_ANY_ADDRESS), ctypes.create_string_buffer(b"lo")
    fields = (0, any_, any_, any_, _ROUTE_UP, 0, 0, 0, 0, ctypes.addressof(device), 0, 0, 0)
    fcntl.ioctl(sock, request, struct.pack("@L16s16s16sHhLPhPLLH", *fields))
