"""Changes outside of the workspace: captured against this host, laid over it again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.fixtures.machines import Shop

from ortet._util.codec import encode
from ortet.errors import Conflict
from ortet.history.records import Flag, Image
from ortet.ids import Oid, SystemClock, from_hex
from ortet.machines.base import Machine, MachineSpec
from ortet.machines.overlay.engine import OverlayEngine
from ortet.machines.overlay.layers.system_diff import host_fingerprint
from ortet.objects.base import Kind

pytestmark = pytest.mark.overlay

INSTALL = (
    "mkdir -p /opt/tool/bin && echo run > /opt/tool/bin/tool && ln /opt/tool/bin/tool /opt/tool/t;"
    "echo configured >> /etc/hosts; rm -r /usr/share/doc; mkdir /usr/share/doc;"
    "echo own > /usr/share/doc/own; rm /etc/os-release; chmod 700 /opt"
)


class Machines:
    def __init__(self, shop: Shop, place: Path) -> None:
        self.shop = shop
        self.work = place / "work"
        self.work.mkdir()
        (self.work / "file").write_text("file")
        self.engine = OverlayEngine(shop.objects, shop.trees, SystemClock(), root=shop.path)
        self.first = from_hex(shop.put(shop.freeze(self.work)))
        self.opened: list[Machine] = []

    def spec(self, name: str, image: Oid, scope: str = "host") -> MachineSpec:
        home = self.shop.path / "local/machines" / name
        home.mkdir(parents=True, exist_ok=True)
        return MachineSpec(
            id=name,
            home=home,
            path=self.work,
            image=image,
            scope="host" if scope == "host" else "workspace",
            hide=(self.shop.path,),
        )

    def open(self, name: str, image: Oid | None = None, scope: str = "host") -> Machine:
        machine = self.engine.open(self.spec(name, image or self.first, scope))
        self.opened.append(machine)
        return machine

    def commit(self, machine: Machine) -> Oid:
        with self.shop.objects.writing():
            image = machine.snapshot()
            self.shop.objects.flush()
            machine.mark_committed(image)
        return image

    def image(self, oid: Oid) -> Image:
        return self.shop.image(oid.hex())

    def flags(self, oid: Oid) -> dict[str, int]:
        system = self.image(oid).system
        assert system is not None
        assert [layer.mount for layer in system.layers] == [b"/"]
        return {
            path.decode(): entry.flags
            for path, entry in self.shop.trees.walk(system.layers[0].root)
        }


@pytest.fixture
def machines(shop: Shop, place: Path) -> Iterator[Machines]:
    machines = Machines(shop, place)
    yield machines
    for machine in machines.opened:
        machine.close()


def looks(machine: Machine) -> str:
    script = (
        "cat /opt/tool/bin/tool; tail -n 1 /etc/hosts; ls /usr/share/doc; test -e /etc/os-release;"
        "echo $?; stat -c %a /opt; stat -c %h /opt/tool/t"
    )
    return machine.run(script).stdout


INSTALLED = "run\nconfigured\nown\n1\n700\n2\n"


def test_a_command_that_changes_nothing_leaves_nothing(machines: Machines) -> None:
    machine = machines.open("m")
    machine.run("true; cat /etc/passwd > /dev/null; ls -R /usr/share > /dev/null; echo $HOME")
    machine.run("echo t > /tmp/scratch; echo v > /var/tmp/x; mkdir -p ~/.cache/x; touch /run/y")
    machine.run("touch /usr/share/new; rm /usr/share/new")  # only a directory's time moved
    machine.run(
        "a=$(mktemp) && cp -p /etc/hostname $a; cat $a > /etc/hostname; touch -r $a /etc/hostname"
    )
    assert machines.image(machine.snapshot()).system is None


def test_system_changes_are_captured_with_opaque_and_whiteout_flags(machines: Machines) -> None:
    machine = machines.open("m")
    assert machine.run(INSTALL).exit_code == 0
    image = machines.commit(machine)
    flags = machines.flags(image)
    assert flags["usr/share/doc"] == Flag.OPAQUE
    assert flags["etc/os-release"] == Flag.WHITEOUT
    assert {"opt/tool/bin/tool", "opt/tool/t", "etc/hosts", "usr/share/doc/own"} <= flags.keys()
    assert not [path for path in flags if path.startswith(("tmp", "proc", "dev"))]
    system = machines.image(image).system
    assert system is not None and system.base == host_fingerprint()
    assert machine.snapshot() == image


def test_system_changes_are_restored_in_forks_and_later_opens(machines: Machines) -> None:
    machine = machines.open("m")
    machine.run(INSTALL)
    image = machines.commit(machine)
    (child,) = machine.fork([machines.spec("c", image)])
    machines.opened.append(child)
    other = machines.open("o", image)
    for one in (child, other):
        assert looks(one) == looks(machine) == INSTALLED
        assert one.snapshot() == image


def test_differences_add_up_and_cancel_out(machines: Machines) -> None:
    machine = machines.open("m")
    machine.run(INSTALL)
    image = machines.commit(machine)
    child = machines.open("c", image)
    child.run("echo more >> /opt/tool/bin/tool; rm /usr/share/doc/own; echo back > /etc/os-release")
    after = machines.commit(child)
    flags = machines.flags(after)
    assert "usr/share/doc/own" not in flags and flags["etc/os-release"] == 0
    assert flags["usr/share/doc"] == Flag.OPAQUE
    grandchild = machines.open("g", after)
    script = "cat /opt/tool/bin/tool /etc/os-release; ls /usr/share/doc"
    assert grandchild.run(script).stdout == "run\nmore\nback\n"
    assert grandchild.snapshot() == after
    fresh = machines.open("f")
    fresh.run("mkdir /opt/x")
    fresh.run("rmdir /opt/x")
    assert machines.image(fresh.snapshot()).system is None


def test_restore_to_an_earlier_commit_removes_system_changes(machines: Machines) -> None:
    machine = machines.open("m")
    before = machines.commit(machine)
    machine.run(INSTALL + "; echo changed > file")
    after = machines.commit(machine)
    assert machine.restore(before).losses == []
    assert machine.snapshot() == before
    assert machine.run("ls -d /opt/tool; cat file").stdout == "file"
    machine.restore(after)
    assert machine.snapshot() == after
    assert looks(machine) == INSTALLED


def test_restore_of_system_changes_is_refused_while_processes_run(machines: Machines) -> None:
    machine = machines.open("m")
    before = machines.commit(machine)
    machine.run("echo x > /opt/x; sleep 1000 &")
    machines.commit(machine)
    with pytest.raises(Conflict) as caught:
        machine.restore(before)
    assert caught.value.kind == "busy"
    assert machine.run("cat /opt/x").stdout == "x\n"


def test_another_host_gets_the_workspace_and_a_loss(machines: Machines, shop: Shop) -> None:
    machine = machines.open("m")
    machine.run("echo x > /opt/x; echo changed > file")
    image = machines.image(machines.commit(machine))
    assert image.system is not None
    foreign = replace(image, system=replace(image.system, base="another host"))
    oid = shop.objects.put(Kind.IMAGE, encode(foreign))
    other = machines.open("o", oid)
    assert [loss.what for loss in other.losses] == ["system"]
    assert other.run("cat file; ls /opt/x").stdout == "changed\n"
    narrow = machines.open("n", Oid(machines.commit(machine)), scope="workspace")
    assert [loss.what for loss in narrow.losses] == ["system"]


def test_restore_removes_the_old_numbered_host_uppers(machines: Machines) -> None:
    """Uppers over the host are numbered: the old ones stay until the record names the new."""
    machine = machines.open("m")
    before = machines.commit(machine)
    machine.run(INSTALL)
    machines.commit(machine)
    machine.restore(before)
    machine.close()
    home = machines.spec("m", before).home
    numbers = {path.name.split("-")[1] for path in home.iterdir() if path.name.startswith("host-")}
    assert len(numbers) == 1  # one for each mount of the host
    assert machines.open("m").run("ls -d /opt/tool").exit_code != 0
