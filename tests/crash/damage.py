"""A store with every kind of file, random damage to one of them, and what a user then sees.

`build` makes the store and ends without closing it, as a killed process does: the log of the
catalog, a tail without an owner and the homes of machines stay behind. `observe` opens the store,
verifies it and reads everything that a user can read.
"""

from __future__ import annotations

import os
import random
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ortet.config.environment import open_hub
from ortet.hub.hub import Hub
from ortet.ids import from_hex

KINDS: dict[str, tuple[str, ...]] = {
    "catalog": ("store/catalog.db",),
    "catalog log": ("store/catalog.db-wal",),
    "catalog log index": ("store/catalog.db-shm",),
    "catalog mark": ("store/local/catalog.mark",),
    "recovery log": ("store/local/catalog.log",),
    "pack": ("store/bucket/packs/*.pack",),
    "tail": ("store/local/tails/*.tail",),
    "pack index": ("store/local/index/*",),
    "archive": ("store/bucket/archives/*/*.bundle",),
    "bundle": ("out.bundle",),
    "format": ("store/FORMAT",),
    "sweep lock": ("store/local/gc.*",),
    "memory index": ("store/local/memory/*",),
    "machine home": ("store/local/machines/*/*",),
}
"""Kind of file -> where files of this kind are."""


def environ(base: Path) -> dict[str, str]:
    return {"HOME": str(base / "nobody"), "PATH": os.environ["PATH"]}


def build(base: Path, *, killed: bool) -> None:
    """Make the store and end this process, with the store open if it is `killed`."""
    work = base / "work"
    (work / "d").mkdir(parents=True)
    (work / "a.txt").write_text("one")
    (work / "d" / "b.txt").write_bytes(random.Random(1).randbytes(200_000))
    with open_hub(base / "store", environ=environ(base)) as hub:
        s = hub.session("sealed")
        s.say("user", "sealed into a pack")
        s.commit("sealed")
        hub.store.objects.writer.seal_now()
    hub = open_hub(base / "store", environ=environ(base))
    s = hub.session("talk", workspace=work, engine="folder")
    s.say("user", "hello")
    s.learn("the sky is blue above the harbour", about="sky")
    s.act(pay, 5, key="inv-7", replay="once")
    s.artifact("report.txt", data=b"report " * 1000)
    s.commit("one")
    fork = s.fork(1)[0]
    fork.say("user", "in the fork")
    fork.commit("fork")
    old = hub.session("old")
    old.say("user", "archived words " * 100)
    old.commit("old")
    old.pause()
    hub.archive(old.id)
    s.recall("sky")
    (work / "a.txt").write_text("uno")
    s.say("user", "again")
    c = s.commit("two")
    hub.store.refs.create("v1", from_hex(c.oid), kind="tag")
    hub.export([c.oid], base / "out.bundle")
    s.say("user", "said and not committed")
    s.recall("sky")
    if not killed:
        hub.close()  # writes the log into the catalog
    os._exit(0)


def pay(amount: int) -> str:
    return f"paid {amount}"


def observe(base: Path) -> dict[str, Any]:
    """Return everything that a user can read. Raises what a user would get."""
    with open_hub(base / "store", environ=environ(base)) as hub:
        hub.verify()
        seen: dict[str, Any] = {"refs": refs(hub), "sessions": sessions(hub)}
        seen["files"] = {
            oid: tree(hub, oid, base / "restored") for oid in sorted({*seen["refs"].values()})
        }
        seen["log"] = [info.oid for name in seen["refs"] for info in hub.log(name)]
        for old in [row for row in hub.sessions() if row.name == "old"]:
            hub.unarchive(old.id)
            seen["old"] = said(hub, old.id)[:3]  # it has an event more each time
        with hub.session("talk", workspace=base / "work") as s:
            seen["recall"] = [(hit.text, hit.source) for hit in s.recall("sky", k=3)]
            seen["paid"] = s.act(again, 5, key="inv-7", replay="once", name="pay")
            seen["status"] = s.goal
        with hub.session("talk/1") as s:
            seen["fork files"] = {
                str(p.relative_to(s.path)): p.read_bytes()
                for p in sorted(Path(s.path).rglob("*"))
                if p.is_file()
            }
    with open_hub(base / "other", environ=environ(base)) as other:
        seen["bundle"] = sorted(other.import_(base / "out.bundle").values())
        other.verify()
    return seen


def again(amount: int) -> str:
    return f"paid {amount} a second time"


def refs(hub: Hub) -> dict[str, str]:
    return {ref.name: ref.oid.hex() for ref in (*hub.store.refs.branches(), *hub.store.refs.tags())}


def sessions(hub: Hub) -> dict[str, Any]:
    return {
        f"{row.agent}/{row.name}": (row.status, said(hub, row.id))
        for row in hub.sessions()
        if row.name != "old"
    }


def said(hub: Hub, id_: str) -> Any:
    reader = hub.get(id_)
    return (
        [(m.role, m.content) for m in reader.messages()],
        [f.text for f in reader.facts()],
        [(e.key, e.state) for e in reader.effects()],
        [e.hash.hex() for e in reader.events()],
    )


def tree(hub: Hub, oid: str, place: Path) -> dict[str, bytes]:
    shutil.rmtree(place, ignore_errors=True)
    if not hub.store.history.state(hub.store.refs.resolve(oid)).machine:
        return {}
    hub.restore(oid, to=place)
    return {
        str(p.relative_to(place)): p.read_bytes() for p in sorted(place.rglob("*")) if p.is_file()
    }


# damage


Damage = Callable[[Path, Path, random.Random], str]


def flip(file: Path, base: Path, rng: random.Random) -> str:
    del base
    data = bytearray(file.read_bytes())
    if not data:
        file.write_bytes(b"\1")
        return "one byte in an empty file"
    at = rng.randrange(len(data) * 8)
    data[at // 8] ^= 1 << at % 8
    keep_times(file, bytes(data))
    return f"bit {at} of {len(data) * 8}"


def zero(file: Path, base: Path, rng: random.Random) -> str:
    del base
    data = bytearray(file.read_bytes())
    start = rng.randrange(len(data)) if data else 0
    size = min(rng.choice((1, 64, 512, 4096)), len(data) - start)
    data[start : start + size] = bytes(size)
    keep_times(file, bytes(data))
    return f"zeros at {start}, {size} bytes"


def cut(file: Path, base: Path, rng: random.Random) -> str:
    del base
    size = file.stat().st_size
    left = rng.randrange(size) if size else 0
    os.truncate(file, left)
    return f"{left} of {size} bytes left"


def swap(file: Path, base: Path, rng: random.Random) -> str:
    """Put other bytes in the place of the file: those of another file of the store.

    A bundle outside of a store has no name to compare with: another whole bundle is no damage.
    """
    others = sorted(p for p in (base / "store").rglob("*") if p.is_file() and p != file)
    if base / "store" not in file.parents:
        others = [p for p in others if p.suffix != file.suffix]
    other = rng.choice(others)
    file.write_bytes(other.read_bytes())
    return f"now {other.relative_to(base)}"


def delete(file: Path, base: Path, rng: random.Random) -> str:
    del base, rng
    file.unlink()
    return "deleted"


def keep_times(file: Path, data: bytes) -> None:
    """Write as a failing disk does: without a trace in the times."""
    status = file.stat()
    file.write_bytes(data)
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))


DAMAGES: tuple[Damage, ...] = (flip, flip, flip, zero, cut, swap, delete)


def files_of(base: Path, kind: str) -> Iterator[Path]:
    for pattern in KINDS[kind]:
        yield from (p for p in sorted(base.glob(pattern)) if p.is_file())


if __name__ == "__main__":
    build(Path(sys.argv[1]), killed=sys.argv[2] == "killed")
