"""Connections between processes of a machine, when it is written down or brought back.

The kernel goes on sending between processes that stand still. Then one end may be written down
before some bytes were sent and the other after, and no copy could go on with that. When they are
brought back, CRIU has some ends send before their other ends are there: the kernel would answer
with a reset. So nothing may be sent meanwhile; the kernel then tries again by itself.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from ortet.machines.live.criu.rpc import image_entries, parse_message
from ortet.machines.live.open_files import FILES_IMAGE

_SOCKET = 4  # of an open file: what it says of itself when it is one of the network
_PROTOCOL, _STATE = 5, 6
_TCP = 6
_CLOSED, _LISTENS = 7, 10


def has_connections(images: Path, *, include_closed: bool = False) -> bool:
    """In a dump: any that is made, being made or being closed? With `closed` also sockets without a
    connection: a program that is just asking for one asks again when it goes on."""
    without = (_LISTENS,) if include_closed else (_CLOSED, _LISTENS)
    for entry in image_entries(images / FILES_IMAGE):
        for told in parse_message(entry).get(_SOCKET, ()):
            if isinstance(told, bytes):
                fields = parse_message(told)
                tcp = fields.get(_PROTOCOL, [0])[0] == _TCP
                if tcp and fields.get(_STATE, [0])[0] not in without:
                    return True
    return False


def may_have_connections(pid: int) -> bool:
    """Whether the machine that a process is in may have some now; a socket that only listens counts
    too. To list them takes as long as a small dump: the kernel looks for them in all networks."""
    for name in ("sockstat", "sockstat6"):
        with suppress(OSError), open(f"/proc/{pid}/net/{name}", encoding="ascii") as file:
            for line in file:
                words = line.split()
                if words[0] in ("TCP:", "TCP6:") and words[2] != "0":
                    return True
    return False
