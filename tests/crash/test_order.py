"""kill -9 keeps the page cache, so it proves nothing about fsync: prove the order of writes.

A worker commits under strace. From its system calls we rebuild, for every moment, the store a power
cut would leave: only what was synced by then. Each must open, verify, and hold every
commit that had been acknowledged.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.fixtures import tally

import ortet

WORKER = """
import sys, ortet
from pathlib import Path
base = Path(sys.argv[1])
with ortet.open(base / "store") as hub, hub.workspace(base / "work") as ws:
    for turn in range(4):
        (ws.path / f"file{turn}").write_text(f"turn {turn}")
        sys.stdout.write(ws.commit(f"turn {turn}").oid + "\\n")
        sys.stdout.flush()
"""

CALL = re.compile(r"^\d+ +(\w+)\((.*)\) += (-?\d+)")
STRING = re.compile(r'"((?:\\x[0-9a-f]{2})*)"')


class Disk:
    """Files as programs see them, and as a power cut would leave them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.seen: dict[str, bytearray] = {}
        self.synced: dict[int, bytes] = {}
        self.durable: dict[str, bytearray] = {}

    def file(self, path: str) -> bytearray:
        return self.seen.setdefault(path, bytearray())

    def sync(self, path: str) -> None:
        """Of a file: its content. Of a directory: which names are in it."""
        if path in self.seen:
            self.synced[id(self.seen[path])] = bytes(self.seen[path])
            return
        inside = {p for p in {*self.seen, *self.durable} if str(Path(p).parent) == path}
        for name in inside:
            if name in self.seen:
                self.durable[name] = self.seen[name]
            else:
                self.durable.pop(name, None)

    def after_power_cut(self, target: Path) -> None:
        for path, content in self.durable.items():
            place = target / Path(path).relative_to(self.root)
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(self.synced.get(id(content), b""))


def text(raw: str) -> bytes:
    return bytes.fromhex(raw.replace("\\x", ""))


def replay(log: Path, disk: Disk) -> Iterator[tuple[str, bytes]]:
    """Feed the calls to the disk; yields ("sync", path) and ("ack", line) as they happen."""
    paths: dict[int, str] = {}
    offsets: dict[int, int] = {}
    for line in log.read_text().splitlines():
        match = CALL.match(line)
        if match is None or int(match[3]) < 0:
            continue
        name, arguments, result = match[1], match[2], int(match[3])
        strings = [text(found) for found in STRING.findall(arguments)]
        fd = int(arguments.split(",")[0]) if arguments.split(",")[0].lstrip("-").isdigit() else -1
        if name == "openat":
            path = strings[0].decode("utf-8", "surrogateescape")
            paths[result], offsets[result] = path, 0
            if path.startswith(str(disk.root)) and "O_CREAT" in arguments:
                disk.file(path)
                if "O_TRUNC" in arguments:
                    disk.seen[path][:] = b""
        elif name == "dup" or (name == "fcntl" and "F_DUPFD" in arguments):
            paths[result], offsets[result] = paths.get(fd, ""), offsets.get(fd, 0)
        elif name == "lseek":
            offsets[fd] = result
        elif name in ("write", "pwrite64") and fd == 1 and strings:
            yield "ack", strings[0]
        elif name in ("write", "pwrite64") and paths.get(fd, "") in disk.seen:
            offset = int(arguments.rsplit(",", 1)[1]) if name == "pwrite64" else offsets[fd]
            data = disk.file(paths[fd])
            if len(data) < offset:
                data.extend(bytes(offset - len(data)))
            data[offset : offset + result] = strings[0][:result]
            offsets[fd] = offset + result if name == "write" else offsets[fd]
        elif name == "ftruncate" and paths.get(fd, "") in disk.seen:
            size = int(arguments.rsplit(",", 1)[1])
            data = disk.file(paths[fd])
            data[:] = data[:size].ljust(size, b"\0")
        elif name in ("fsync", "fdatasync"):
            disk.sync(paths.get(fd, ""))
            yield "sync", paths.get(fd, "").encode("utf-8", "surrogateescape")
        elif name in ("rename", "renameat", "renameat2", "link", "linkat"):
            old, new = (found.decode("utf-8", "surrogateescape") for found in strings[:2])
            if old in disk.seen:
                disk.seen[new] = disk.seen[old]
                if name.startswith("rename"):
                    del disk.seen[old]
        elif name in ("unlink", "unlinkat") and strings:
            disk.seen.pop(strings[0].decode("utf-8", "surrogateescape"), None)


def disk_before(base: Path) -> Disk:
    """The disk as it was when the worker started: all that was there is synced."""
    disk = Disk(base / "store")
    for file in (base / "before").rglob("*"):
        if file.is_file():
            path = base / "store" / file.relative_to(base / "before")
            disk.seen[str(path)] = bytearray(file.read_bytes())
            disk.sync(str(path))
            disk.sync(str(path.parent))
    return disk


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("traced")
    (base / "work").mkdir()
    with ortet.open(base / "store"):
        pass
    shutil.copytree(base / "store", base / "before")
    calls = "openat,write,pwrite64,ftruncate,fsync,fdatasync,rename,renameat,renameat2,link,linkat,"
    subprocess.run(
        ["strace", "-f", "-xx", "-s", "10000000", "-o", str(base / "log"), "-e",
         f"trace={calls}unlink,unlinkat,dup,fcntl,lseek",
         sys.executable, "-c", WORKER, str(base)],
        check=True,
        stdin=subprocess.DEVNULL,
        capture_output=True,
    )  # fmt: skip
    return base


def test_the_pack_is_synced_before_the_head_moves(traced: Path) -> None:
    disk = disk_before(traced)
    order = list(replay(traced / "log", disk))
    acks = [at for at, (what, _) in enumerate(order) if what == "ack"]
    assert len(acks) == 4
    for start, end in zip([0, *acks], acks, strict=False):
        synced = [path for what, path in order[start:end] if what == "sync"]
        tail = max(at for at, path in enumerate(synced) if path.endswith(b".tail"))
        head = max(at for at, path in enumerate(synced) if path.endswith(b"catalog.db-wal"))
        assert tail < head


def test_every_power_cut_leaves_a_store_that_verifies(traced: Path, tmp_path: Path) -> None:
    disk = disk_before(traced)
    acknowledged: list[str] = []
    checked = 0
    for moment, (what, data) in enumerate(replay(traced / "log", disk)):
        if what == "ack":
            acknowledged.append(data.decode().strip())
        target = tmp_path / str(moment)
        disk.after_power_cut(target)
        tally.count(tally.CUTS)
        with ortet.open(target) as hub:
            hub.verify()
            for oid in acknowledged:
                assert hub.show(oid).oid == oid
            if acknowledged:
                assert acknowledged[-1] in [info.oid for info in hub.log("work")]
        checked += 1
    assert checked > 8
    assert len(acknowledged) == 4
