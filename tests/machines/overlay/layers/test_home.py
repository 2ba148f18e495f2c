"""A machine's own directory: its record, its lock, its upper directories."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.fixtures.machines import Shop

from ortet.errors import Conflict, Corrupt
from ortet.machines.overlay.layers import home as module
from ortet.machines.overlay.layers.home import LayerLayout, MachineHome, layer_name
from ortet.machines.overlay.layers.store import LayerStack, LayerStore


@pytest.fixture
def home(shop: Shop, place: Path) -> MachineHome:
    (place / "home").mkdir()
    return MachineHome(shop.objects, shop.trees, place / "home")


@pytest.fixture
def stack(shop: Shop, bases: LayerStore, place: Path) -> LayerStack:
    tree = place / "tree"
    (tree / "dir").mkdir(parents=True)
    (tree / "dir/one").write_text("linked")
    (tree / "two").hardlink_to(tree / "dir/one")
    (tree / "plain").write_text("plain")
    tree.chmod(0o751)
    os.utime(tree, ns=(1, 123_456_789))
    with bases.prevent_prune():
        return bases.ensure_stack(shop.freeze(tree))[0]


def test_a_second_lock_of_a_machine_home_is_refused(home: MachineHome, shop: Shop) -> None:
    home.lock()
    other = MachineHome(shop.objects, shop.trees, home.path)
    with pytest.raises(Conflict) as caught:
        other.lock()
    assert caught.value.kind == "machine_open"
    home.close()
    other.lock()
    other.close()


def test_the_home_record_reads_back_as_written(home: MachineHome, stack: LayerStack) -> None:
    assert home.read_layout() is None
    standing = LayerLayout(3, stack, None, True, 2)
    home.write_layout(standing)
    assert home.read_layout() == standing


def test_a_fresh_upper_looks_like_the_root_and_holds_linked_files(
    home: MachineHome, stack: LayerStack, bases: LayerStore
) -> None:
    assert home.make_upper(1, stack, bases) == []
    upper = home.upper(1)
    assert (upper.stat().st_mode & 0o777, upper.stat().st_mtime_ns) == (0o751, 123_456_789)
    assert sorted(path.name for path in upper.iterdir()) == ["dir", "two"]
    assert (upper / "two").stat().st_nlink == 2


def test_linked_files_too_large_to_copy_up_are_a_loss(
    home: MachineHome, stack: LayerStack, bases: LayerStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_CARRIED_BYTES", 3)
    assert [loss.what for loss in home.make_upper(1, stack, bases)] == ["hardlink"]
    assert list(home.upper(1).iterdir()) == []


class TestRecovery:
    def test_recovery_continues_on_a_layer_adopted_from_the_upper(
        self, home: MachineHome, stack: LayerStack, bases: LayerStore
    ) -> None:
        home.make_upper(1, stack, bases)
        standing = LayerLayout(1, stack)
        name = layer_name("m", 1)
        adopted = bases.adopt(home.upper(1), name, below=stack, image=stack.image, shared=True)
        found = home.recover_layout(standing, bases, "m")
        assert found == replace(standing, upper=2, stack=adopted) == home.read_layout()
        assert home.upper(2).is_dir()

    def test_recovery_moves_back_an_upper_that_was_not_yet_a_layer(
        self, home: MachineHome, stack: LayerStack, bases: LayerStore
    ) -> None:
        home.make_upper(1, stack, bases)
        home.upper(1).rename(bases.root / layer_name("m", 1))
        assert home.recover_layout(LayerLayout(1, stack), bases, "m") == LayerLayout(1, stack)
        assert home.upper(1).is_dir()

    def test_recovery_removes_unused_upper_directories(
        self, home: MachineHome, stack: LayerStack, bases: LayerStore
    ) -> None:
        standing = LayerLayout(1, stack, outer=4)
        for number in (1, 2):
            home.make_upper(number, stack, bases)
        for name in ("work-1", "work-2", "host-3-%2F", "hostwork-3-%2F", "host-4-%2F", "stage"):
            home.make_empty_dir(name)
        home.recover_layout(standing, bases, "m")
        left = sorted(path.name for path in home.path.iterdir())
        assert left == ["host-4-%2F", "stage", "upper-1", "work-1"]

    def test_recovery_without_an_upper_directory_is_corrupt(
        self, home: MachineHome, stack: LayerStack, bases: LayerStore
    ) -> None:
        with pytest.raises(Corrupt) as caught:
            home.recover_layout(LayerLayout(1, stack), bases, "m")
        assert caught.value.kind == "machine_broken"


def test_empty_removes_a_kernel_work_directory_without_permissions(home: MachineHome) -> None:
    (home.path / "work-1/work").mkdir(parents=True)
    (home.path / "work-1/work").chmod(0)
    assert list(home.make_empty_dir("work-1").iterdir()) == []


def test_the_outer_upper_name_escapes_the_path(home: MachineHome, stack: LayerStack) -> None:
    assert (
        home.host_upper_name(LayerLayout(1, stack, outer=2), "/home/x y")
        == "host-2-%2Fhome%2Fx%20y"
    )
