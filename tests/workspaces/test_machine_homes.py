"""Homes of machines: made together, removed together, closed whatever fails."""

from __future__ import annotations

import gc
import os
from pathlib import Path

import pytest
from msgspec.structs import replace

from ortet.errors import Conflict, Unsupported
from ortet.hub.hub import Hub
from ortet.ids import Oid, from_hex
from ortet.machines.base import Capability, Engine, Machine, MachineSpec
from ortet.workspaces.machine_homes import HostEngines, MachineHomes
from ortet.workspaces.table import WorkspaceRow
from ortet.workspaces.workspace import Workspace


class Unable(Engine):
    """An engine this host cannot run."""

    name = "unable"

    def probe(self) -> list[Capability]:
        return [Capability("first", ok=True), Capability("second", False, "no such", "install it")]

    def open(self, spec: MachineSpec) -> Machine:
        raise AssertionError(spec)

    def remove(self, home: Path) -> None:
        raise AssertionError(home)


def test_an_engine_that_cannot_be_used_says_what_to_change(tmp_path: Path) -> None:
    machines = MachineHomes(
        tmp_path, HostEngines(lambda _: Unable(), lambda: "unable", scope="workspace")
    )
    with pytest.raises(Unsupported, match="second: no such; install it"):
        machines.check("unable")


def children(ws: Workspace, count: int) -> tuple[list[WorkspaceRow], Oid]:
    head = from_hex(ws.commit("point").oid)
    rows = [replace(ws.row, name="", machine=f"m{n}", files="private") for n in range(count)]
    return rows, ws.store.image_oid(head)


def test_copied_machines_are_removed_if_the_block_fails(hub: Hub, ws: Workspace) -> None:
    rows, image = children(ws, 3)
    homes = hub.root / "local/machines"
    gc.collect()  # what earlier tests left open
    descriptors = set(os.listdir("/proc/self/fd"))
    with (
        pytest.raises(ZeroDivisionError),
        hub.workspaces.machines.copies(rows, image, None) as lives,
    ):
        assert [(live.machine.path / "a.txt").exists() for live in lives] == [True] * 3
        assert sorted(os.listdir(homes)) == sorted([ws.row.machine, "m0", "m1", "m2"])
        _ = 1 / 0
    assert os.listdir(homes) == [ws.row.machine]
    assert set(os.listdir("/proc/self/fd")) - descriptors == set()


def test_machines_being_copied_are_not_listed_as_leftovers(hub: Hub, ws: Workspace) -> None:
    rows, image = children(ws, 2)
    with hub.workspaces.machines.copies(rows, image, None) as lives:
        assert hub.maintenance.leftovers() == []
        with pytest.raises(Conflict), hub.workspaces.machines.lock_for_removal(rows[0]):
            pass
    for live in lives:
        live.close()
    assert {Path(one.path).name for one in hub.maintenance.leftovers()} == {"m0", "m1"}
    hub.maintenance.tidy()
    assert os.listdir(hub.root / "local/machines") == [ws.row.machine]


def test_temporary_snapshot_machine_leaves_no_home_directory(hub: Hub, ws: Workspace) -> None:
    image = hub.workspaces.machines.capture_directory(ws.row, "camera")
    assert image == hub.store.image_oid(from_hex(ws.commit("same").oid))
    assert os.listdir(hub.root / "local/machines") == [ws.row.machine]
