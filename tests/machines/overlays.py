"""Real overlay mounts for tests: a lower directory, an upper one, and the merged view."""

from __future__ import annotations

import os
import random
import shutil
import stat
from collections.abc import Callable
from pathlib import Path

from ortet.machines.overlay.supervisor_client import OverlayMachineProcess, Zygote
from ortet.machines.standalone.syscalls import is_privileged, overlay_options

NAMES = [b"a", b"b", b"c", b"\xff\xfe"]


class Overlay:
    """A mounted overlay in a namespace of its own; `view` is where its merged files are."""

    def __init__(self, zygote: Zygote, base: Path, lowers: list[str]) -> None:
        self.base = base
        for name in ("upper", "work", "place", "root"):
            (base / name).mkdir()
        _dress(base / lowers[0], base / "upper")
        extra = ["redirect_dir=on", "metacopy=on"] if is_privileged() else ["userxattr"]
        options = overlay_options(
            [f"t/{name}" for name in lowers], "t/upper", "t/work", extra=[*extra, "volatile"]
        )
        self.machine: OverlayMachineProcess = zygote.start(
            {
                "root": str(base / "root"),
                "held": {"t": str(base)},
                "steps": [
                    {"do": "bind", "at": "/", "source": "/", "recursive": True},
                    {"do": "hold", "at": "/proc"},
                    {"do": "proc", "at": "/proc"},
                ],
                "place": str(base / "place"),
                "workspace": options,
            }
        )
        self.machine.ready()
        self.view = Path(f"/proc/{self.machine.pid}/root{base}/place")

    @property
    def upper(self) -> Path:
        return self.base / "upper"

    def freeze_upper(self, name: str) -> None:
        """End the mount and make its upper directory a layer."""
        self.machine.close()
        self.upper.rename(self.base / name)
        for left in ("work", "place", "root"):
            remove_tree(self.base / left)


def _dress(like: Path, upper: Path) -> None:
    now = like.stat()
    upper.chmod(stat.S_IMODE(now.st_mode))
    for name in os.listxattr(like):
        if ".overlay." not in name:
            os.setxattr(upper, name, os.getxattr(like, name))
    os.utime(upper, ns=(now.st_mtime_ns, now.st_mtime_ns))


def remove_tree(path: Path) -> None:
    for inner, _, _ in os.walk(path):
        os.chmod(inner, 0o700)
    shutil.rmtree(path)


def disturb(top: Path, dice: random.Random, count: int) -> None:
    """Random changes below a directory; what cannot be done at this moment is left out."""
    for _ in range(count):
        verb = dice.choice(VERBS)
        directories = [Path(os.fsdecode(path)) for path, _, _ in os.walk(top)]
        here = dice.choice(directories)
        try:
            verb(dice, top, here, directories)
        except OSError:
            continue


Verb = Callable[[random.Random, Path, Path, list[Path]], None]


def _name(dice: random.Random) -> str:
    return os.fsdecode(dice.choice(NAMES))


def _file(path: Path) -> bool:
    return not path.exists() or path.is_file()


def _write(dice: random.Random, _top: Path, here: Path, _all: list[Path]) -> None:
    path = here / _name(dice)
    if _file(path):
        path.write_bytes(dice.randbytes(dice.choice([0, 5, 200_000])))


def _append(dice: random.Random, _top: Path, here: Path, _all: list[Path]) -> None:
    path = here / _name(dice)
    if _file(path):
        with path.open("ab") as file:
            file.write(b"more")


def _shorten(dice: random.Random, _top: Path, here: Path, _all: list[Path]) -> None:
    path = here / _name(dice)
    if path.is_file():
        os.truncate(path, 3)


def _sparse(dice: random.Random, _top: Path, here: Path, _all: list[Path]) -> None:
    path = here / _name(dice)
    if _file(path):
        with path.open("wb") as file:
            file.truncate(1 << 20)
            file.seek(300_000)
            file.write(b"middle")


def _remove(dice: random.Random, _top: Path, here: Path, _all: list[Path]) -> None:
    (here / _name(dice)).unlink()


def _remove_tree(_dice: random.Random, top: Path, here: Path, _all: list[Path]) -> None:
    if here != top:
        shutil.rmtree(here)


def _remake(_dice: random.Random, top: Path, here: Path, _all: list[Path]) -> None:
    if here != top:
        shutil.rmtree(here)
        here.mkdir()
        (here / "n").write_text("x")


def _mkdir(dice: random.Random, _top: Path, here: Path, _all: list[Path]) -> None:
    (here / _name(dice)).mkdir()


def _move_directory(dice: random.Random, top: Path, here: Path, every: list[Path]) -> None:
    source = dice.choice(every)
    if source != top:
        source.rename(here / _name(dice))


def _move(dice: random.Random, _top: Path, here: Path, every: list[Path]) -> None:
    (dice.choice(every) / _name(dice)).rename(here / _name(dice))


def _chmod(dice: random.Random, _top: Path, here: Path, _all: list[Path]) -> None:
    (here / _name(dice)).chmod(dice.choice([0o700, 0o755, 0o4755]))


def _chown(dice: random.Random, _top: Path, here: Path, _all: list[Path]) -> None:
    os.chown(here / _name(dice), dice.choice([0, 1000]), 0, follow_symlinks=False)


def _touch(dice: random.Random, _top: Path, here: Path, _all: list[Path]) -> None:
    when = dice.choice([-(10**9), 5, 4 * 10**18])
    os.utime(here / _name(dice), ns=(1, when), follow_symlinks=False)


def _xattr(dice: random.Random, _top: Path, here: Path, _all: list[Path]) -> None:
    os.setxattr(dice.choice([here, here / _name(dice)]), "user.x", dice.randbytes(3))


def _symlink(dice: random.Random, _top: Path, here: Path, _all: list[Path]) -> None:
    (here / _name(dice)).symlink_to(os.fsdecode(b"\xfftarget"))


def _link(dice: random.Random, _top: Path, here: Path, every: list[Path]) -> None:
    os.link(dice.choice(every) / _name(dice), here / _name(dice), follow_symlinks=False)


def _fifo(dice: random.Random, _top: Path, here: Path, _all: list[Path]) -> None:
    os.mkfifo(here / _name(dice))


VERBS: list[Verb] = [
    _write,
    _append,
    _shorten,
    _sparse,
    _remove,
    _remove_tree,
    _remake,
    _mkdir,
    _move_directory,
    _move,
    _chmod,
    _chown,
    _touch,
    _xattr,
    _symlink,
    _link,
    _fifo,
]
