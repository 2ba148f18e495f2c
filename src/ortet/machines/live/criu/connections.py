"""TCP connections of a machine, during a dump or restore.

Connections between its processes stay open. The kernel keeps sending while the processes are
stopped. One end could then be dumped before some bytes were sent and the other end after, and the
two would not match. During a restore, some ends send before their other ends exist, and the kernel
would answer with a reset. So outgoing packets are blocked during that time, and the kernel sends
them again later. `live_supervisor.set_network_blocked` blocks the packets.

Connections to the outside are closed in the dump. A copy cannot continue such a connection, because
the original does. A restored process finds it closed at once.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from ortet.machines.live.criu.protobuf import (
    encode_fields,
    image_entries,
    iter_fields,
    parse_message,
)
from ortet.machines.live.open_files import FILES_IMAGE
from ortet.machines.services import ExternalConnection
from ortet.machines.standalone.loopback import OUTBOUND_ADDRESS

_TYPE, _INET, _INET_TYPE = 1, 4, 4  # of CRIU's FileEntry: type, inet field, value of type
_INO, _FAMILY, _PROTO, _STATE = 2, 3, 5, 6  # of CRIU's InetSkEntry
_PORT, _PEER_PORT, _ADDRESS, _PEER_ADDRESS = 7, 8, 11, 12
_TCP = 6
_CLOSED, _LISTENS = 7, 10
_STATES_WITH_PEER = frozenset((1, 4, 5))  # established, or waiting for the other end to close
_MAX_COMMAND_BYTES = 200  # of a command line

SocketAddress = tuple[bytes, int]


def has_connections(images: Path, *, include_closed: bool = False) -> bool:
    """Return True if a dump has a TCP connection that is open, opening or closing.

    With `include_closed`, unconnected sockets count too: a program that was connecting connects
    again when it continues.
    """
    without = (_LISTENS,) if include_closed else (_CLOSED, _LISTENS)
    for entry in image_entries(images / FILES_IMAGE):
        for socket_entry in parse_message(entry).get(_INET, ()):
            if isinstance(socket_entry, bytes):
                fields = parse_message(socket_entry)
                tcp = fields.get(_PROTO, [0])[0] == _TCP
                if tcp and fields.get(_STATE, [0])[0] not in without:
                    return True
    return False


def may_have_connections(pid: int) -> bool:
    """Return True if the machine of a process may have TCP connections.

    Listening sockets count too. A real list takes as long as a small dump, because the kernel
    searches all networks for it.
    """
    for name in ("sockstat", "sockstat6"):
        with suppress(OSError), open(f"/proc/{pid}/net/{name}", encoding="ascii") as file:
            for line in file:
                words = line.split()
                if words[0] in ("TCP:", "TCP6:") and words[2] != "0":
                    return True
    return False


class _TcpSocket(NamedTuple):
    entry_index: int  # of the entry in the image
    ino: int
    state: int
    local: SocketAddress
    peer: SocketAddress


def close_external_connections(images: Path, init_pid: int) -> list[ExternalConnection]:
    """Close the connections in a dump, and return them; called while the machine is stopped."""
    files = list(image_entries(images / FILES_IMAGE))
    socks = [sock for sock in map(_parse_tcp_socket, range(len(files)), files) if sock is not None]
    ends = {(sock.local, sock.peer) for sock in socks}
    gone = [
        sock
        for sock in socks
        if (sock.peer, sock.local) not in ends
        and (_is_external(sock) or sock.state in _STATES_WITH_PEER)
    ]
    if not gone:
        return []
    for sock in gone:
        files[sock.entry_index] = _closed_entry(files[sock.entry_index])
        with suppress(FileNotFoundError):  # unsent data belongs to the original
            (images / f"tcp-stream-{sock.ino:x}.img").unlink()
    _rewrite_entries(images / FILES_IMAGE, files)
    holders = _socket_owners(init_pid, {sock.ino for sock in gone})
    return [
        ExternalConnection(
            *holders.get(sock.ino, (0, "")),
            _format_address(sock.local),
            _format_address(sock.peer),
            not _is_external(sock),
        )
        for sock in gone
    ]


def _parse_tcp_socket(index: int, entry: bytes) -> _TcpSocket | None:
    """Return the TCP connection of an entry, or None if it is something else."""
    if entry[:2] != bytes((_TYPE << 3, _INET_TYPE)):
        return None
    (socket_entry,) = parse_message(entry)[_INET]
    assert isinstance(socket_entry, bytes)
    fields = parse_message(socket_entry)
    state, port = fields[_STATE][0], fields[_PEER_PORT][0]
    if fields[_PROTO][0] != _TCP or state in (_CLOSED, _LISTENS) or not port:
        return None
    ends = _address(fields, _ADDRESS, _PORT), _address(fields, _PEER_ADDRESS, _PEER_PORT)
    return _TcpSocket(index, int(fields[_INO][0]), int(state), *ends)


def _address(
    fields: dict[int, list[int | bytes]], address_field: int, port_field: int
) -> SocketAddress:
    """Return address bytes and port; an IPv4 address mapped to IPv6 becomes IPv4."""
    raw = b"".join(struct.pack("=I", int(word)) for word in fields.get(address_field, ()))
    if len(raw) == 16 and raw.startswith(bytes(10) + b"\xff\xff"):
        raw = raw[12:]
    return raw, int(fields[port_field][0])


def _is_external(sock: _TcpSocket) -> bool:
    """Return True if a connection leaves the machine.

    A local one without its other end among the processes belongs to a port forward.
    """
    peer = sock.peer[0]
    return not (_is_loopback(peer) or peer in (sock.local[0], socket.inet_aton(OUTBOUND_ADDRESS)))


def _is_loopback(address: bytes) -> bool:
    return address[:1] == b"\x7f" if len(address) == 4 else address == bytes(15) + b"\x01"


def _format_address(address: SocketAddress) -> str:
    raw, port = address
    if len(raw) == 4:
        return f"{socket.inet_ntop(socket.AF_INET, raw)}:{port}"
    return f"[{socket.inet_ntop(socket.AF_INET6, raw)}]:{port}"


def _closed_entry(entry: bytes) -> bytes:
    """Return the entry with an unconnected, unbound socket."""
    nothing = {_STATE: _CLOSED, _PORT: 0, _PEER_PORT: 0, _ADDRESS: 0, _PEER_ADDRESS: 0}
    fields: list[tuple[int, int | bytes]] = []
    for field, value in iter_fields(entry):
        if field == _INET and isinstance(value, bytes):
            inner = [(number, nothing.get(number, one)) for number, one in iter_fields(value)]
            fields.append((field, encode_fields(inner)))
        else:
            fields.append((field, value))
    return encode_fields(fields)


def _rewrite_entries(path: Path, files: Sequence[bytes]) -> None:
    with path.open("rb+") as file:
        file.seek(8)  # after two magic numbers
        for entry in files:
            file.write(struct.pack("<I", len(entry)) + entry)
        file.truncate()


def _socket_owners(init_pid: int, inodes: set[int]) -> dict[int, tuple[int, str]]:
    """Return the process of each socket: its pid inside the machine, and its command."""
    wanted = {f"socket:[{ino}]": ino for ino in inodes}
    owners: dict[int, tuple[int, str]] = {}
    for pid, place in _processes(f"/proc/{init_pid}/root/proc"):
        with suppress(OSError):
            for name in os.listdir(f"{place}/fd"):
                ino = wanted.get(os.readlink(f"{place}/fd/{name}"))
                if ino is not None and (ino not in owners or pid < owners[ino][0]):
                    line = Path(f"{place}/cmdline").read_bytes()[:_MAX_COMMAND_BYTES]
                    words = line.replace(b"\0", b" ").decode(errors="replace").split()
                    owners[ino] = pid, " ".join(words)
    return owners


def _processes(proc_dir: str) -> Iterator[tuple[int, str]]:
    for name in os.listdir(proc_dir):
        if name.isdigit():
            yield int(name), f"{proc_dir}/{name}"
