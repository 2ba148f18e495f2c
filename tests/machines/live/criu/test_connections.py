"""Which connections of a dump leave the machine, from what CRIU writes down of them."""

from __future__ import annotations

import os
import socket
import struct
from pathlib import Path

from ortet.machines.live.criu.connections import close_external_connections
from ortet.machines.live.criu.protobuf import (
    encode_fields,
    image_entries,
    iter_fields,
    parse_message,
)
from ortet.machines.services import ExternalConnection, closed_connection_losses

_ESTABLISHED, _CLOSE_WAIT, _CLOSED, _LISTENS = 1, 8, 7, 10
_TCP, _UDP = 6, 17


def sock(
    local: tuple[str, int], peer: tuple[str, int], state: int = _ESTABLISHED, proto: int = _TCP
) -> bytes:
    """An open file as CRIU writes it down."""
    family = socket.AF_INET6 if ":" in local[0] else socket.AF_INET
    fields: list[tuple[int, int | bytes]] = [(1, 5), (2, 77), (3, int(family)), (4, 1)]
    fields += [(5, proto), (6, state), (7, local[1]), (8, peer[1]), (9, 2), (10, 0)]
    for number, (at, _) in ((11, local), (12, peer)):
        raw = socket.inet_pton(family, at)
        fields += [(number, word) for word in struct.unpack(f"={len(raw) // 4}I", raw)]
    fields += [(13, b"own"), (14, b"opts")]
    return encode_fields([(1, 4), (2, 5), (4, encode_fields(fields))])


def put(place: Path, *files: bytes) -> None:
    data = b"".join(struct.pack("<I", len(one)) + one for one in files)
    (place / "files.img").write_bytes(b"magic!!!" + data)


def closed(place: Path) -> list[bool]:
    """Which of the sockets are in no state, bound to nothing."""
    found = []
    for one in image_entries(place / "files.img"):
        (told,) = parse_message(one)[4]
        assert isinstance(told, bytes)
        fields = parse_message(told)
        ends = [*fields[7], *fields[8], *fields[11], *fields[12]]
        found.append(fields[6] == [_CLOSED] and not any(ends))
    return found


def test_only_connections_that_leave_the_machine_are_closed_in_the_dump(tmp_path: Path) -> None:
    files = [
        sock(("10.0.2.100", 5000), ("192.0.2.1", 443)),
        sock(("::ffff:10.0.2.100", 5001), ("::ffff:192.0.2.1", 80), _CLOSE_WAIT),
        sock(("fe80::1", 5002), ("2001:db8::1", 22)),
        sock(("127.0.0.1", 6000), ("127.0.0.1", 6001)),
        sock(("::ffff:127.0.0.1", 6001), ("::ffff:127.0.0.1", 6000)),
        sock(("::1", 6002), ("::1", 6003), _CLOSE_WAIT),  # whose other end has ended
        sock(("0.0.0.0", 80), ("0.0.0.0", 0), _LISTENS),
        sock(("10.0.2.100", 53), ("192.0.2.1", 53), proto=_UDP),
    ]
    put(tmp_path, *files)
    found = close_external_connections(tmp_path, os.getpid())
    assert [one.peer for one in found] == ["192.0.2.1:443", "192.0.2.1:80", "[2001:db8::1]:22"]
    assert [one.door for one in found] == [False] * 3
    assert closed(tmp_path) == [True] * 3 + [False] * 5
    assert list(image_entries(tmp_path / "files.img"))[3:] == files[3:]
    (told,) = parse_message(next(iter(image_entries(tmp_path / "files.img"))))[4]
    assert isinstance(told, bytes)
    assert [number for number, _ in iter_fields(told)][-2:] == [13, 14]  # the rest is as it was


def test_a_connection_through_a_port_forward_is_not_external(tmp_path: Path) -> None:
    put(tmp_path, sock(("127.0.0.1", 3000), ("127.0.0.1", 40000)))
    (one,) = close_external_connections(tmp_path, os.getpid())
    assert (one.local, one.door) == ("127.0.0.1:3000", True)
    assert closed(tmp_path) == [True]


def test_a_dump_without_outside_connections_is_not_rewritten(tmp_path: Path) -> None:
    put(tmp_path, sock(("127.0.0.1", 1), ("127.0.0.1", 1)))
    os.chmod(tmp_path / "files.img", 0o444)
    before = (tmp_path / "files.img").stat().st_mtime_ns
    assert close_external_connections(tmp_path, os.getpid()) == []
    assert (tmp_path / "files.img").stat().st_mtime_ns == before


def test_each_ended_connection_becomes_a_loss_with_its_process() -> None:
    one, two = closed_connection_losses(
        [
            ExternalConnection(7, "curl x", "10.0.2.100:5000", "192.0.2.1:443"),
            ExternalConnection(0, "", "127.0.0.1:3000", "127.0.0.1:5", True),
        ]
    )
    assert (one.path, one.pid, one.command) == ("192.0.2.1:443", 7, "curl x")
    assert "process 7 (curl x) was connected to it from 10.0.2.100:5000" in one.why
    assert two.path == "127.0.0.1:3000" and "exposed" in two.why
