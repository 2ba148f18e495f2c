"""An overlay machine killed while it changes its layers: it is then the one or the other."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import pytest
from tests.fixtures import forked
from tests.fixtures.machines import Shop

from ortet.ids import SystemClock, from_hex
from ortet.machines.base import MachineSpec
from ortet.machines.overlay.engine import OverlayEngine
from ortet.machines.overlay.mount_plan import MachinePath

pytestmark = pytest.mark.overlay

HUB = """
import json, sys
from pathlib import Path
from ortet.backends.local.bucket import FileBucket
from ortet._util.codec import Hasher
from ortet.history.tree.tree import Trees
from ortet.ids import SystemClock, from_hex
from ortet.machines.base import MachineSpec
from ortet.machines.overlay.engine import OverlayEngine
from ortet.objects.store import PackedObjectStore
store, work, verb = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
bucket = FileBucket(store / "bucket")
objects = PackedObjectStore(store, bucket, hasher=Hasher(), clock=SystemClock())
engine = OverlayEngine(objects, Trees(objects), SystemClock(), root=store)

def spec(name):
    home = store / "local/machines" / name
    home.mkdir(parents=True, exist_ok=True)
    return MachineSpec(id=name, home=home, path=work, image=from_hex(sys.argv[4]), hide=(store,))

def commit():
    image = machine.snapshot()
    objects.flush()
    print(json.dumps(image.hex()), flush=True)
    machine.mark_committed(image)
    return image

machine = engine.open(spec("m"))
first = commit()
machine.run("for i in $(seq 300); do echo $i > $i; done; rm file; mv dir moved; ln 1 twin")
if verb == "fork":
    commit()
    machine.fork([spec("c")])
elif verb == "rebase":
    machine.run("for i in $(seq 1000); do echo $i > more$i; done")
    commit()
else:
    commit()
    machine.restore(first)
print(json.dumps("done"), flush=True)
"""


@pytest.mark.parametrize("verb", ["fork", "rebase", "thaw"])
@pytest.mark.parametrize(
    "point", ["bases.adopted", "overlay.frozen", "overlay.switched", "overlay.mounted", "none"]
)
def test_a_machine_killed_while_it_changes_layers_has_the_old_or_new_image(
    shop: Shop, place: Path, verb: str, point: str
) -> None:
    work = place / "work"
    (work / "dir").mkdir(parents=True)
    (work / "dir/one").write_text("one")
    (work / "file").write_text("file")
    first = shop.put(shop.freeze(work))
    done = forked.run(
        [sys.executable, "-c", HUB, str(shop.path), str(work), verb, first],
        env={**os.environ, "ORTET_FAULT": f"{point}:kill"},
        capture_output=True,
        text=True,
        check=False,
    )
    said = [json.loads(line) for line in done.stdout.splitlines()]
    reached = (verb == "thaw") == (point == "overlay.switched") or point == "overlay.mounted"
    assert done.returncode == (-signal.SIGKILL if reached and point != "none" else 0), done.stderr
    legal = {said[1]} if verb != "thaw" else {said[0], said[1]}
    engine = OverlayEngine(shop.objects, shop.trees, SystemClock(), root=shop.path)
    home = shop.path / "local/machines/m"
    spec = MachineSpec(id="m", home=home, path=work, image=from_hex(first), hide=(shop.path,))
    for _ in range(2):
        machine = engine.open(spec)
        assert machine.snapshot().hex() in legal
        assert len([path for path in home.iterdir() if path.name.startswith("upper-")]) == 1
        machine.close()


def test_a_view_does_not_resolve_to_the_host() -> None:
    path = MachinePath(f"/proc/{os.getpid()}/root/etc")
    assert path.resolve() == path
    assert (path / "passwd").resolve() == path / "passwd"
    assert isinstance(path / "passwd", MachinePath)
