"""Messages between a hub, its zygote, supervisors and kernels: length, JSON, open descriptors.

Standard library only: the zygote loads this file as a plain module. The format is JSON, because a
message from a machine must not be able to run code in the hub.
"""

from __future__ import annotations

import array
import json
import os
import socket
import struct
from collections.abc import Sequence
from typing import Any

_LENGTH = struct.Struct("!I")
_MAX_FDS = 8
_MAX_MESSAGE_BYTES = 64 << 20
MAX_REQUEST_BYTES = 8 << 20
"""Largest request to pid 1 of a machine, in bytes."""

NETWORK_FD = 100
"""Descriptor number under which a restoring CRIU finds the network namespace of the new machine."""


class ConnectionClosed(Exception):
    """The other end has closed the connection."""


def pack(message: dict[str, Any]) -> bytes:
    """Encode a message with its length."""
    body = json.dumps(message).encode()
    return _LENGTH.pack(len(body)) + body


def pop_message(buffer: bytearray, max_bytes: int = _MAX_MESSAGE_BYTES) -> dict[str, Any] | None:
    """Remove and return the first message of a buffer; None while it is incomplete.

    Raises ConnectionClosed for invalid data: nothing after it could be parsed.
    """
    if len(buffer) < _LENGTH.size:
        return None
    (size,) = _LENGTH.unpack_from(buffer)
    if size > max_bytes:
        raise ConnectionClosed
    end = _LENGTH.size + size
    if len(buffer) < end:
        return None
    try:
        message = json.loads(bytes(buffer[_LENGTH.size : end]))
    except (ValueError, RecursionError) as error:
        raise ConnectionClosed from error
    if not isinstance(message, dict):
        raise ConnectionClosed
    del buffer[:end]
    return message


def send(sock: socket.socket, message: dict[str, Any], fds: Sequence[int] = ()) -> None:
    """Send a whole message. The descriptors are attached to its first byte."""
    data = pack(message)
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
    try:
        sent = sock.sendmsg([data], rights)
        if sent < len(data):
            sock.sendall(data[sent:])
    except (BrokenPipeError, ConnectionResetError) as error:
        raise ConnectionClosed from error


def receive(sock: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Return the next message and its descriptors, which are close-on-exec."""
    fds: list[int] = []
    head = _receive_exactly(sock, _LENGTH.size, fds)
    (size,) = _LENGTH.unpack(head)
    if size > _MAX_MESSAGE_BYTES:
        raise ConnectionClosed
    message: dict[str, Any] = json.loads(_receive_exactly(sock, size, fds))
    return message, fds


def _receive_exactly(sock: socket.socket, size: int, fds: list[int]) -> bytes:
    data = b""
    while len(data) < size:
        space = socket.CMSG_SPACE(_MAX_FDS * 4)
        try:
            part, rights, _, _ = sock.recvmsg(size - len(data), space, socket.MSG_CMSG_CLOEXEC)
        except ConnectionResetError as error:
            raise ConnectionClosed from error
        for _, _, raw in rights:
            numbers = array.array("i")
            numbers.frombytes(raw[: len(raw) - len(raw) % numbers.itemsize])
            fds += numbers
        if not part:
            for fd in fds:
                os.close(fd)
            raise ConnectionClosed
        data += part
    return data
