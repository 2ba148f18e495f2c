"""CRIU image directories made by hand: as small as CRIU's format lets them be."""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from pathlib import Path

PAGE = 4096
MAGIC = struct.pack("<II", 0x54564319, 0x56084025)

Memory = dict[int, bytes]
"""Address of a page -> its bytes."""


def varint(number: int) -> bytes:
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


def message(fields: dict[int, int]) -> bytes:
    data = b"".join(varint(field << 3) + varint(value) for field, value in fields.items())
    return struct.pack("<I", len(data)) + data


def pagemap(number: int, entries: Sequence[dict[int, int]]) -> bytes:
    """A pagemap image about the file of pages `number`."""
    return MAGIC + message({1: number}) + b"".join(message(entry) for entry in entries)


def runs_of(memory: Memory) -> list[tuple[int, int]]:
    """(address, pages) of each stretch without a gap."""
    runs: list[tuple[int, int]] = []
    for address in sorted(memory):
        if runs and runs[-1][0] + runs[-1][1] * PAGE == address:
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        else:
            runs.append((address, 1))
    return runs


def write_images(directory: Path, processes: dict[int, Memory], **more: bytes) -> Path:
    """A directory as `criu dump` leaves it, of processes by pid; `more` are other small images."""
    directory.mkdir(parents=True)
    for number, (pid, memory) in enumerate(processes.items(), 1):
        entries = [{1: at, 2: 0, 4: 4, 5: count} for at, count in runs_of(memory)]
        (directory / f"pagemap-{pid}.img").write_bytes(pagemap(number, entries))
        pages = b"".join(memory[address] for address in sorted(memory))
        (directory / f"pages-{number}.img").write_bytes(pages)
        (directory / f"core-{pid}.img").write_bytes(b"core of %d" % pid)
    (directory / "inventory.img").write_bytes(b"inventory")
    (directory / "empty.img").write_bytes(b"")
    (directory / "dump.log").write_bytes(os.urandom(20))
    (directory / "stats-dump").write_bytes(os.urandom(20))
    for name, data in more.items():
        (directory / f"{name}.img").write_bytes(data)
    return directory


def random_memory(address: int, count: int) -> Memory:
    return {address + number * PAGE: os.urandom(PAGE) for number in range(count)}


def contents(directory: Path) -> dict[str, bytes]:
    """What must come back."""
    return {
        path.name: path.read_bytes()
        for path in directory.iterdir()
        if path.suffix != ".log" and not path.name.startswith("stats-")
    }
