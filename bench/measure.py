"""What every side of the benchmark shares: samples, timing, disk use, and the changes made."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

PAGE = 4096
PATIENCE = 60.0
LAUNCH = Path(__file__).with_name("launch.py")


class Sample(msgspec.Struct, frozen=True):
    """Measured values of one row for one system, in the row's unit."""

    row: str
    system: str
    values: list[float]
    note: str = ""

    def at(self, quantile: float) -> float:
        """Nearest rank."""
        ordered = sorted(self.values)
        return ordered[min(len(ordered) - 1, int(quantile * len(ordered)))]

    @property
    def p50(self) -> float:
        return self.at(0.5)

    @property
    def p95(self) -> float:
        return self.at(0.95)


def number(value: float) -> str:
    """Three figures: more would not come out the same the next time."""
    if abs(value) >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


class Spent(msgspec.Struct, frozen=True):
    """A command's wall time and the largest resident size of it and its children."""

    seconds: float
    rss_bytes: int


class Scene(msgspec.Struct, frozen=True):
    """A workspace built once and copied for each system."""

    root: Path
    files: int
    directories: int
    bytes: int
    database_pages: int
    packages: list[str]


class Counts(msgspec.Struct, frozen=True):
    """How often each thing is repeated; the slow peers are given fewer turns."""

    fast: int
    slow: int
    heavy: int
    forks: int
    chain: int


class Plan(msgspec.Struct, frozen=True):
    """One run: what is measured, where, how often, and which rows."""

    scene: Scene
    place: Path
    counts: Counts
    only: frozenset[str] = frozenset()

    def wants(self, *rows: str) -> bool:
        return not self.only or not self.only.isdisjoint(rows)


FULL = Counts(fast=200, slow=15, heavy=3, forks=30, chain=10_000)
QUICK = Counts(fast=30, slow=3, heavy=1, forks=5, chain=300)


def ordinary_environment() -> dict[str, str]:
    """Ours, but Python may keep what it compiled: every installed program can."""
    return {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}


def command(
    words: Sequence[str], *, cwd: Path | None = None, env: Mapping[str, str] | None = None
) -> Spent:
    """Run to its end; CalledProcessError with its output when it fails."""
    answer, report = os.pipe()
    try:
        process = subprocess.Popen(
            [sys.executable, "-S", "-E", str(LAUNCH), str(report), *words],
            cwd=cwd,
            env={**ordinary_environment(), **(env or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=[report],
            start_new_session=True,
        )
        output = _output(process)
        os.close(report)
        code, seconds, rss = os.read(answer, 200).split() or (b"127", b"0", b"0")
    finally:
        os.close(answer)
    if int(code):
        raise subprocess.CalledProcessError(int(code), words, output)
    return Spent(float(seconds), int(rss) * 1024)


def _output(process: subprocess.Popen[bytes]) -> bytes:
    """All it prints; whatever interrupts us ends it with its children, so that mounts come free."""
    try:
        return process.communicate()[0]
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        raise


def milliseconds(deed: Callable[[], object]) -> float:
    begin = time.perf_counter()
    deed()
    return (time.perf_counter() - begin) * 1000


def repeated(
    count: int, change: Callable[[int], object], deed: Callable[[], object]
) -> list[float]:
    """Milliseconds of `deed` after each change; the change itself is not timed."""
    values = []
    for number in range(count):
        change(number)
        values.append(milliseconds(deed))
    return values


def now() -> float:
    return time.perf_counter()


def rounds(count: int) -> Iterator[int]:
    """0, 1, ... below `count`; after PATIENCE seconds three are enough of what is that slow."""
    begin = time.monotonic()
    for number in range(count):
        if number >= 3 and time.monotonic() - begin > PATIENCE:
            return
        yield number


def settle_disk() -> None:
    """Let no one pay for what the one before left in the page cache."""
    os.sync()


def disk_bytes(*roots: Path) -> int:
    """Blocks in use, each inode once."""
    seen: set[tuple[int, int]] = set()
    total = 0
    for root in roots:
        for stat in _stats(root):
            if (stat.st_dev, stat.st_ino) not in seen:
                seen.add((stat.st_dev, stat.st_ino))
                total += stat.st_blocks * 512
    return total


def _stats(root: Path) -> Iterator[os.stat_result]:
    """Everything below root on its own file system; a mount is counted where it lies."""
    device = root.stat().st_dev
    for directory, below, names in os.walk(root):
        stat = os.lstat(directory)
        if stat.st_dev != device:
            below.clear()
            continue
        yield stat
        for name in names:
            try:
                yield os.lstat(os.path.join(directory, name))
            except FileNotFoundError:
                continue


def inventory(root: Path) -> dict[str, tuple[int, int, int]]:
    """Mode, size and mtime of every file: enough to see that a restore brought all of them back."""
    found = {}
    for directory, _, names in os.walk(root):
        for name in names:
            path = os.path.join(directory, name)
            stat = os.lstat(path)
            key = os.path.relpath(path, root)
            found[key] = (stat.st_mode, stat.st_size, stat.st_mtime_ns)
    return found


class Changes:
    """The same edits for every system, as shell commands to be run in the workspace."""

    def __init__(self, scene: Scene) -> None:
        root = scene.root
        sources = sorted(
            str(path.relative_to(root))
            for path in (root / "node_modules").rglob("*.js")
            if path.is_file() and not path.is_symlink() and path.stat().st_size < 64 * 1024
        )
        self._files = random.Random(7).sample(sources, min(100, len(sources)))
        self._pages = scene.database_pages

    def warm(self) -> str:
        """Touch all the files once: then up to 100 of them lie in an overlay's upper."""
        return "; ".join(_append(name, "warm") for name in self._files)

    def one(self, number: int) -> str:
        return _append(self._files[number % len(self._files)], f"change {number}")

    def forty(self, number: int) -> str:
        return "; ".join(_append(name, f"round {number}") for name in self._files[:40])

    def page(self, number: int) -> str:
        """One page of the database file, each time another."""
        place = 100 + number * 997 % (self._pages - 100)
        return (
            f"dd if=/dev/urandom of=data.db bs={PAGE} seek={place} count=1 conv=notrunc status=none"
        )


def _append(name: str, text: str) -> str:
    return f"echo '// {text}' >> '{name}'"
