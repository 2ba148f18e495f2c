"""TCP connections between processes of a machine, during a dump or restore.

The kernel keeps sending while the processes are stopped. One end could then be dumped before some
bytes were sent and the other end after, and the two would not match. During a restore, some ends
send before their other ends exist, and the kernel would answer with a reset. So outgoing packets
are blocked during that time, and the kernel sends them again later.

This is a module of its own because dumps and restores ask whether there are connections.
`live_supervisor.set_network_blocked` blocks the packets.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from ortet.machines.live.criu.protobuf import image_entries, parse_message
from ortet.machines.live.open_files import FILES_IMAGE

_SOCKET = 4  # field of an open file: its description as an inet socket
_PROTOCOL, _STATE = 5, 6
_TCP = 6
_CLOSED, _LISTENS = 7, 10


def has_connections(images: Path, *, include_closed: bool = False) -> bool:
    """Return True if a dump has a TCP connection that is open, opening or closing.

    With `include_closed`, unconnected sockets count too: a program that was connecting connects
    again when it continues.
    """
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
