"""Connections of a dump whose other end is not in the machine. A copy cannot go on with them, for
the original does: they are closed in the dump, so that a restored process is told at once.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from ortet.machines.live.criu.rpc import entries, fields_of, join_fields, parse
from ortet.machines.live.open_files import FILES
from ortet.machines.services import Connection
from ortet.machines.standalone.loopback import ADDRESS

_TYPE, _INET, _INET_TYPE = 1, 4, 4  # of CRIU's FileEntry: its type, the field, that type
_INO, _FAMILY, _PROTO, _STATE = 2, 3, 5, 6  # of its InetSkEntry
_PORT, _PEER_PORT, _AT, _PEER_AT = 7, 8, 11, 12
_TCP = 6
_CLOSED, _LISTENS = 7, 10
_NEEDS_PEER = frozenset((1, 4, 5))  # established, or only waiting for the other end to finish
_COMMAND = 200  # bytes of a command line

Address = tuple[bytes, int]


class _Sock(NamedTuple):
    number: int  # of the entry
    ino: int
    state: int
    local: Address
    peer: Address


def close_outside(images: Path, init: int) -> list[Connection]:
    """Close them in the dump of the machine with this pid 1; to be called while it stands still."""
    files = list(entries(images / FILES))
    socks = [sock for sock in map(_sock, range(len(files)), files) if sock is not None]
    ends = {(sock.local, sock.peer) for sock in socks}
    gone = [
        sock
        for sock in socks
        if (sock.peer, sock.local) not in ends and (_is_outside(sock) or sock.state in _NEEDS_PEER)
    ]
    if not gone:
        return []
    for sock in gone:
        files[sock.number] = _closed(files[sock.number])
        with suppress(FileNotFoundError):  # what was on its way belongs to the original
            (images / f"tcp-stream-{sock.ino:x}.img").unlink()
    _write(images / FILES, files)
    holders = _holders(init, {sock.ino for sock in gone})
    return [
        Connection(
            *holders.get(sock.ino, (0, "")),
            _text(sock.local),
            _text(sock.peer),
            not _is_outside(sock),
        )
        for sock in gone
    ]


def _sock(number: int, entry: bytes) -> _Sock | None:
    """A TCP connection."""
    if entry[:2] != bytes((_TYPE << 3, _INET_TYPE)):
        return None
    (told,) = parse(entry)[_INET]
    assert isinstance(told, bytes)
    fields = parse(told)
    state, port = fields[_STATE][0], fields[_PEER_PORT][0]
    if fields[_PROTO][0] != _TCP or state in (_CLOSED, _LISTENS) or not port:
        return None
    ends = _address(fields, _AT, _PORT), _address(fields, _PEER_AT, _PEER_PORT)
    return _Sock(number, int(fields[_INO][0]), int(state), *ends)


def _address(fields: dict[int, list[int | bytes]], at: int, port: int) -> Address:
    """The bytes of an address of 4 or 16; one of 4 that is written as 16 is one of 4."""
    raw = b"".join(struct.pack("=I", int(word)) for word in fields.get(at, ()))
    if len(raw) == 16 and raw.startswith(bytes(10) + b"\xff\xff"):
        raw = raw[12:]
    return raw, int(fields[port][0])


def _is_outside(sock: _Sock) -> bool:
    """Does it leave the machine? One that does not, and has no other end among its processes, is
    with a guest in its network: whoever carries connections in through a door."""
    at = sock.peer[0]
    return not (_is_loopback(at) or at in (sock.local[0], socket.inet_aton(ADDRESS)))


def _is_loopback(at: bytes) -> bool:
    return at[:1] == b"\x7f" if len(at) == 4 else at == bytes(15) + b"\x01"


def _text(address: Address) -> str:
    raw, port = address
    if len(raw) == 4:
        return f"{socket.inet_ntop(socket.AF_INET, raw)}:{port}"
    return f"[{socket.inet_ntop(socket.AF_INET6, raw)}]:{port}"


def _closed(entry: bytes) -> bytes:
    """The same open file, but of a socket that is not connected, and bound to nothing."""
    nothing = {_STATE: _CLOSED, _PORT: 0, _PEER_PORT: 0, _AT: 0, _PEER_AT: 0}
    found: list[tuple[int, int | bytes]] = []
    for field, value in fields_of(entry):
        if field == _INET and isinstance(value, bytes):
            inner = [(number, nothing.get(number, one)) for number, one in fields_of(value)]
            found.append((field, join_fields(inner)))
        else:
            found.append((field, value))
    return join_fields(found)


def _write(path: Path, files: Sequence[bytes]) -> None:
    with path.open("rb+") as file:
        file.seek(8)  # behind two magic numbers
        for entry in files:
            file.write(struct.pack("<I", len(entry)) + entry)
        file.truncate()


def _holders(init: int, inodes: set[int]) -> dict[int, tuple[int, str]]:
    """Which process has which of these sockets: its number inside, and its command."""
    wanted = {f"socket:[{ino}]": ino for ino in inodes}
    found: dict[int, tuple[int, str]] = {}
    for pid, place in _processes(f"/proc/{init}/root/proc"):
        with suppress(OSError):
            for name in os.listdir(f"{place}/fd"):
                ino = wanted.get(os.readlink(f"{place}/fd/{name}"))
                if ino is not None and (ino not in found or pid < found[ino][0]):
                    line = Path(f"{place}/cmdline").read_bytes()[:_COMMAND]
                    words = line.replace(b"\0", b" ").decode(errors="replace").split()
                    found[ino] = pid, " ".join(words)
    return found


def _processes(place: str) -> Iterator[tuple[int, str]]:
    for name in os.listdir(place):
        if name.isdigit():
            yield int(name), f"{place}/{name}"
