"""A real store and real directories, machines on them, and kernels in these."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.fixtures import forked
from tests.fixtures.kernels import PYTHON, SCOPES
from tests.fixtures.machines import Bench, Outcome, Seen, Shop, make_torture, read_tree
from tests.machines.inits import Init, ordinary

from ortet.history.tree.tree import Trees
from ortet.hub.hub import Hub
from ortet.ids import Oid, SystemClock
from ortet.machines.base import MachineSpec
from ortet.machines.kernels.kernel import Kernel
from ortet.machines.kernels.manager import KernelManager
from ortet.machines.overlay.engine import OverlayEngine
from ortet.machines.overlay.layers.store import LayerStore
from ortet.machines.overlay.machine import OverlayMachine
from ortet.machines.overlay.supervisor_client import Zygote
from ortet.machines.standalone.syscalls import is_privileged
from ortet.workspaces.workspace import Workspace


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory that other users can reach, unlike `tmp_path`."""
    path = Path(tempfile.mkdtemp(prefix="ortet-test-"))
    path.chmod(0o777)
    yield path
    subprocess.run(["rm", "-rf", str(path)], check=True)  # no depth is too deep for it


@pytest.fixture
def shop(place: Path) -> Iterator[Shop]:
    """A store, without a catalog."""
    shop = Shop(place / "store")
    yield shop
    shop.objects.close()


@pytest.fixture
def bench(shop: Shop, place: Path) -> Bench:
    """An empty directory that can be frozen and thawed."""
    (place / "room" / "root").mkdir(parents=True)
    return Bench(shop, place / "room" / "root", place / "home" / "stage")


@pytest.fixture
def mount(place: Path) -> Iterator[Callable[..., Path]]:
    """Mount a file system below `place`, for the length of the test: mount(where, *arguments)."""
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
def worker(shop: Shop) -> Callable[..., Outcome]:
    """Run worker.py: worker("thaw", ..., uid=65534, fault="thaw.placed:kill:2")."""

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
    """Read a tree by path: all that must be equal in an identical tree.

    An entry has its type and mode, owner, mtime, content or target, device, xattrs, allocated
    ranges, and the first path of its hard link group.
    """
    return read_tree


@pytest.fixture
def torture() -> Callable[[Path], None]:
    """Fill a directory with every kind of file, name, mode and attribute."""
    return make_torture


@pytest.fixture
def bases(shop: Shop, place: Path) -> LayerStore:
    """The base layers of the store's overlay machines."""
    return LayerStore(shop.objects, shop.trees, place / "bases")


@pytest.fixture(scope="module")
def zygote() -> Iterator[Zygote]:
    """The process that forks helpers, for all tests of a module."""
    zygote = Zygote(rootless=not is_privileged())
    yield zygote
    zygote.close()


@pytest.fixture
def init(tmp_path: Path) -> Iterator[Init]:
    """The first process of a machine, run as an ordinary process."""
    with ordinary(tmp_path) as init:
        yield init


@pytest.fixture
def engine(shop: Shop) -> OverlayEngine:
    """The overlay engine on the store."""
    return OverlayEngine(shop.objects, Trees(shop.objects), SystemClock(), root=shop.path)


@pytest.fixture
def spec(shop: Shop, place: Path, engine: OverlayEngine) -> Iterator[MachineSpec]:
    """A machine of the overlay engine that is not open yet, with hard links in its files."""
    work = place / "work"
    (work / "dir").mkdir(parents=True)
    (work / "a.txt").write_text("alpha")
    (work / "dir/b.txt").write_text("beta")
    os.link(work / "a.txt", work / "twin")
    home = place / "home"
    home.mkdir()
    image = Oid(bytes.fromhex(shop.put(shop.freeze(work))))
    yield MachineSpec(id="m", home=home, path=work, image=image)
    engine.remove(home)  # as only an engine can


@pytest.fixture(params=SCOPES)
def machine(
    engine: OverlayEngine, spec: MachineSpec, request: pytest.FixtureRequest
) -> Iterator[OverlayMachine]:
    """The machine of `spec`, open, in each scope."""
    made = engine.open(replace(spec, scope=request.param))
    yield made
    made.close()


@pytest.fixture
def kernels(machine: OverlayMachine) -> Iterator[KernelManager]:
    """The kernels of `machine`."""
    made = KernelManager(
        machine.kernel_host(), reading_files=nullcontext, before_replace=lambda _: None
    )
    yield made
    made.close()


@pytest.fixture
def kernel(kernels: KernelManager) -> Kernel:
    """The first kernel of `kernels`."""
    return kernels.get("main", python=PYTHON)[0]


@pytest.fixture
def ws(hub: Hub, work: Path) -> Workspace:
    """A workspace with the process engine, instead of the folder engine."""
    return hub.workspace(work, engine="criu")
