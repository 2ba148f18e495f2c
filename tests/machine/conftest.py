"""A real store, real directories, and an eye that reads them without any of our code."""

from __future__ import annotations

import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.fixtures import forked

from ortet.backend.files import FileBucket
from ortet.codec import Hasher, decode, encode
from ortet.graph.records import Image
from ortet.graph.tree import Trees
from ortet.ids import Oid, SystemClock, to_hex
from ortet.machine.abc import Report
from ortet.machine.rules import Rules
from ortet.machine.scan import scan
from ortet.machine.statindex import StatIndex
from ortet.machine.thaw import thaw
from ortet.store import faults
from ortet.store.abc import Kind
from ortet.store.objects import LocalObjects

Seen = dict[bytes, tuple[Any, ...]]


class Shop:
    """A store with verbs that tests need again and again."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.objects = LocalObjects(
            path, FileBucket(path / "bucket"), hasher=Hasher(), clock=SystemClock()
        )
        self.trees = Trees(self.objects)

    def index(self) -> StatIndex:
        return StatIndex(self.trees)

    def freeze(
        self, root: Path, index: StatIndex | None = None, rules: Rules | None = None
    ) -> Image:
        found = scan(
            self.objects,
            self.trees,
            root=root,
            index=index or self.index(),
            rules=rules or Rules(),
            losses=[],
        )
        return Image(found.root, found.links)

    def put(self, image: Image) -> str:
        """Flushed, so that another process can read it."""
        oid = to_hex(self.objects.put(Kind.IMAGE, encode(image)))
        self.objects.flush()
        return oid

    def image(self, oid: str) -> Image:
        return decode(Image, self.objects.get(Oid(bytes.fromhex(oid))))


class Bench:
    """A workspace with a memory: freeze it, change it, thaw it."""

    def __init__(self, shop: Shop, root: Path, stage: Path) -> None:
        self.shop = shop
        self.root = root
        self.stage = stage
        self.index = shop.index()
        self.rules = Rules()

    def freeze(self) -> Image:
        return self.shop.freeze(self.root, self.index, self.rules)

    def thaw(self, target: Image, *, current: Image | None = None, **more: Any) -> Report:
        return thaw(
            self.shop.objects,
            self.shop.trees,
            self.root,
            current or self.freeze(),
            target,
            index=self.index,
            stage=self.stage,
            rules=self.rules,
            **more,
        )

    def shell(self, script: str, cwd: Path | None = None) -> None:
        subprocess.run(["sh", "-ec", script], cwd=cwd or self.root, check=True)

    def disturb(self) -> None:
        disturb(self.root)

    @staticmethod
    def survives(text: str, call: Callable[[], object]) -> bool:
        """Run `call` in a child in which this fault kills; False when it was killed."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # threads and fork do not go well
            child = os.fork()
        if child == 0:
            try:
                armed = faults.parse(text)
                faults._armed = lambda: armed  # type: ignore[assignment]
                call()
                os._exit(0)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
        _, status = os.waitpid(child, 0)
        if os.WIFSIGNALED(status):
            assert os.WTERMSIG(status) == signal.SIGKILL
            return False
        assert os.WEXITSTATUS(status) == 0
        return True

    def check(self, target: Image) -> None:
        """The files are the target's, whoever looks, and nothing of ours is left."""
        assert self.freeze() == target
        assert self.shop.freeze(self.root, None, self.rules) == target
        self.check_clean()

    def check_clean(self) -> None:
        assert not self.stage.exists() or os.listdir(self.stage) == []
        for place in (self.root, self.root.parent):
            assert not [n for n in os.listdir(place) if n.startswith(".ortet.stage.")]


class Outcome:
    def __init__(self, done: subprocess.CompletedProcess[str]) -> None:
        self.code = done.returncode
        self.text = done.stdout + done.stderr
        self.value: Any = json.loads(done.stdout) if done.stdout else None


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory that other users can reach, unlike pytest's own."""
    path = Path(tempfile.mkdtemp(prefix="ortet-test-"))
    path.chmod(0o777)
    yield path
    subprocess.run(["rm", "-rf", str(path)], check=True)  # no depth is too deep for it


@pytest.fixture
def shop(place: Path) -> Iterator[Shop]:
    shop = Shop(place / "store")
    yield shop
    shop.objects.close()


@pytest.fixture
def bench(shop: Shop, place: Path) -> Bench:
    (place / "room" / "root").mkdir(parents=True)
    return Bench(shop, place / "room" / "root", place / "home" / "stage")


@pytest.fixture
def mount(place: Path) -> Iterator[Callable[..., Path]]:
    """mount(where, *arguments): for the length of the test, below its directory."""
    mounted: list[Path] = []

    def run(where: str | Path, *arguments: str) -> Path:
        point = place / where
        point.mkdir(exist_ok=True)
        subprocess.run(["mount", *arguments, str(point)], check=True)
        mounted.append(point)
        return point

    yield run
    for point in reversed(mounted):
        subprocess.run(["umount", str(point)], check=True)


@pytest.fixture
def work(shop: Shop) -> Callable[..., Outcome]:
    """Run worker.py: work("thaw", ..., uid=65534, fault="thaw.placed:kill:2")."""

    def run(verb: str, *args: object, uid: int | None = None, fault: str = "") -> Outcome:
        if uid is not None:
            for path in [shop.path, *shop.path.rglob("*")]:
                os.chown(path, uid, uid)
        done = forked.run(
            [
                sys.executable,
                str(Path(__file__).with_name("worker.py")),
                "-" if uid is None else str(uid),
                str(shop.path),
                verb,
                *map(str, args),
            ],
            capture_output=True,
            text=True,
            check=False,
            cwd="/",
            env={**os.environ, "ORTET_FAULT": fault},
        )
        return Outcome(done)

    return run


@pytest.fixture
def see() -> Callable[[Path], Seen]:
    """All that makes a tree identical, by path: type and mode, owner, mtime, content or target,
    device, xattrs, what is allocated, and the first path of its hardlink group."""
    return read_tree


@pytest.fixture
def torture() -> Callable[[Path], None]:
    """Fill a directory with everything part 7 of the issue names."""
    return make_torture


def make_torture(root: Path) -> None:
    root.mkdir(exist_ok=True)
    raw = os.fsencode(root)
    for name in (b"plain", b"empty", b"latin-\xe9", b"new\nline", b" blank ", b"-dash", b"x" * 255):
        Path(os.fsdecode(raw + b"/" + name)).write_bytes(b"" if name == b"empty" else name * 3)
    (root / "big").write_bytes(os.urandom(700_001))
    (root / "exact").write_bytes(b"e" * 131072)
    for mode in (0o4755, 0o2755, 0o6711, 0o400, 0o000):
        (root / f"mode-{mode:o}").write_text("m")
        (root / f"mode-{mode:o}").chmod(mode)
    for word, mode in {"sticky": 0o1777, "setgid": 0o2775, "closed": 0o500}.items():
        (root / word).mkdir()
        (root / word / "inner").write_text(word)
        (root / word).chmod(mode)
    (root / "hollow").mkdir()
    for name, target in (
        (b"dangling", b"no/where"),
        (b"loop", b"loop"),
        (b"odd", b"\xff\xfe"),
        (b"up", b"../.."),
        (b"abs", b"/etc/passwd"),
    ):
        os.symlink(target, raw + b"/link-" + name)  # noqa: PTH211
    (root / "a").mkdir()
    (root / "a" / "one").write_text("linked")
    os.link(root / "a" / "one", root / "two")
    os.link(root / "a" / "one", root / "a" / "three")
    os.link(raw + b"/link-loop", raw + b"/link-loop-too", follow_symlinks=False)
    os.mkfifo(root / "fifo", 0o640)
    os.mknod(root / "socket", stat.S_IFSOCK | 0o755)
    os.mknod(root / "null", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    os.mknod(root / "block", stat.S_IFBLK | 0o600, os.makedev(7, 200))
    _sparse(root / "sparse", 5 << 20, [(1 << 20, b"middle"), (3 << 20, b"later")])
    _sparse(root / "all-hole", 1 << 20, [])
    _sparse(root / "small-hole", 65536, [(40960, b"s" * 100)])
    (root / "owned").write_text("o")
    os.chown(root / "owned", 1234, 4321)
    os.lchown(root / "link-odd", 1234, 4321)
    _xattrs(root)
    _deep(root)
    (root / ".git").mkdir()
    (root / ".git" / "HEAD").write_text("ref: refs/heads/main\n")
    _times(root)


def _sparse(path: Path, size: int, pieces: list[tuple[int, bytes]]) -> None:
    with path.open("wb") as file:
        file.truncate(size)
        for at, data in pieces:
            file.seek(at)
            file.write(data)


def _xattrs(root: Path) -> None:
    (root / "attributes").write_text("x")
    os.setxattr(root / "attributes", "user.raw", bytes(range(256)))
    os.setxattr(root / "attributes", "user.empty", b"")
    (root / "attributes").chmod(0o444)
    os.setxattr(root / "link-up", "trusted.link", b"on the link", follow_symlinks=False)
    os.setxattr(root / "hollow", "user.dir", b"d")
    for name in ("acl", "cap"):
        (root / name).write_text(name)
    subprocess.run(["setfacl", "-m", "u:1234:rw,g:4321:r", str(root / "acl")], check=True)
    subprocess.run(["setfacl", "-d", "-m", "u:1234:rwx", str(root / "setgid")], check=True)
    os.chown(root / "cap", 1234, 0)
    subprocess.run(["setcap", "cap_net_raw+ep", str(root / "cap")], check=True)


def _deep(root: Path) -> None:
    """A path of some 6 000 bytes."""
    fd = os.open(root, os.O_RDONLY)
    for _ in range(25):
        name = b"d" * 240
        os.mkdir(name, dir_fd=fd)
        inner = os.open(name, os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = inner
    leaf = os.open(b"leaf", os.O_WRONLY | os.O_CREAT, 0o644, dir_fd=fd)
    os.write(leaf, b"down here")
    os.close(leaf)
    os.utime(fd, ns=(0, 1_000_000_123))
    os.close(fd)


def _times(root: Path) -> None:
    for number, (name, moment) in enumerate(
        (
            ("plain", -1_000_000_001),  # 1969, with a fraction
            ("empty", 0),
            ("big", 15_000_000_000_123_456_789),  # 2445
            ("link-dangling", 123_456_789),
            ("fifo", 1_600_000_000_999_999_999),
            ("null", 1),
            ("a", -1),
            ("sticky", 1_700_000_000_000_000_001),
        )
    ):
        os.utime(root / name, ns=(number, moment), follow_symlinks=False)
    os.utime(root, ns=(0, 987_654_321_000_000_007))


def disturb(root: Path) -> None:
    """Change, remove, add and replace something of everything in the torture tree."""
    (root / "plain").write_text("changed")
    (root / "empty").unlink()
    (root / "big").chmod(0o600)
    os.utime(root / "exact", ns=(1, 2))
    os.setxattr(root / "exact", "user.more", b"1")
    os.removexattr(root / "attributes", "user.raw")
    (root / "cap").write_text("other")
    os.chown(root / "acl", 7, 7)
    (root / "sparse").write_bytes(b"dense")
    (root / "new").write_text("new")
    (root / "newdir" / "deep").mkdir(parents=True)
    (root / "newdir" / "deep" / "f").write_text("f")
    (root / "fifo").unlink()
    (root / "fifo").mkdir()
    (root / "fifo" / "was-a-fifo").write_text("")
    shutil.rmtree(root / "sticky")
    (root / "sticky").write_text("was a directory")
    shutil.rmtree(root / "closed")
    (root / "closed").symlink_to("a")
    (root / "link-loop").unlink()
    (root / "link-dangling").unlink()
    (root / "link-dangling").mkdir()
    (root / "a" / "three").unlink()  # leaves its group
    (root / "a" / "three").write_text("linked")
    os.link(root / "plain", root / "joined")  # a new group
    (root / "null").unlink()
    os.mknod(root / "null", stat.S_IFCHR | 0o600, os.makedev(1, 5))
    (root / "setgid" / "inner").unlink()
    (root / "hollow").chmod(0o700)
    os.utime(root / "hollow", ns=(5, 5))
    subprocess.run(["rm", "-rf", str(root / ("d" * 240))], check=True)
    root.chmod(0o711)


def read_tree(root: Path) -> Seen:
    found: Seen = {}
    groups: dict[tuple[int, int], bytes] = {}
    fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    found[b""] = _describe(os.fstat(fd), fd, b"", groups)
    stack = [(b"", fd)]
    while stack:
        above, fd = stack.pop()
        for text in sorted(os.listdir(fd)):
            name = os.fsencode(text)
            path = above + b"/" + name if above else name
            now = os.stat(name, dir_fd=fd, follow_symlinks=False)
            if stat.S_ISDIR(now.st_mode):
                inner = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=fd)
                found[path] = _describe(now, inner, path, {})
                stack.append((path, inner))
            elif stat.S_ISREG(now.st_mode):
                inner = os.open(name, os.O_RDONLY | os.O_NOFOLLOW, dir_fd=fd)
                found[path] = _describe(now, inner, path, groups)
                os.close(inner)
            else:
                found[path] = _describe(now, fd, path, groups, name)
        os.close(fd)
    return found


def _describe(
    now: os.stat_result,
    fd: int,
    path: bytes,
    groups: dict[tuple[int, int], bytes],
    name: bytes = b"",
) -> tuple[Any, ...]:
    content: object = None
    if stat.S_ISREG(now.st_mode):
        content = (os.pread(fd, min(now.st_size, 1 << 26), 0), now.st_size, _data(fd, now.st_size))
    elif stat.S_ISLNK(now.st_mode):
        content = os.readlink(name, dir_fd=fd)
    at: int | bytes = b"/proc/self/fd/%d/%s" % (fd, name) if name else fd
    xattrs = {n: os.getxattr(at, n, follow_symlinks=not name) for n in _names(at)}
    return (
        now.st_mode,
        (now.st_uid, now.st_gid),
        now.st_mtime_ns,
        content,
        now.st_rdev,
        xattrs,
        groups.setdefault((now.st_dev, now.st_ino), path),
    )


def _names(at: int | bytes) -> list[str]:
    try:
        return os.listxattr(at, follow_symlinks=isinstance(at, int))
    except OSError:
        return []


def _data(fd: int, size: int) -> list[tuple[int, int]]:
    """The stretches that are allocated."""
    found, at = [], 0
    while at < size:
        try:
            start = os.lseek(fd, at, os.SEEK_DATA)
        except OSError:
            break
        at = os.lseek(fd, start, os.SEEK_HOLE)
        found.append((start, at))
    return found
