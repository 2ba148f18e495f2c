"""A machine's own directory: its record, its lock, its upper directories."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.fixtures.machines import Shop

from ortet.errors import Conflict, Corrupt
from ortet.machines.overlay import home as module
from ortet.machines.overlay.home import Home, Standing, layer_name
from ortet.machines.overlay.layers import Bases, Stack


@pytest.fixture
def home(shop: Shop, place: Path) -> Home:
    (place / "home").mkdir()
    return Home(shop.objects, shop.trees, place / "home")


@pytest.fixture
def stack(shop: Shop, bases: Bases, place: Path) -> Stack:
    tree = place / "tree"
    (tree / "dir").mkdir(parents=True)
    (tree / "dir/one").write_text("linked")
    (tree / "two").hardlink_to(tree / "dir/one")
    (tree / "plain").write_text("plain")
    tree.chmod(0o751)
    os.utime(tree, ns=(1, 123_456_789))
    with bases.using():
        return bases.stack(shop.freeze(tree))[0]


def test_a_second_lock_of_a_machine_home_is_refused(home: Home, shop: Shop) -> None:
    home.lock()
    other = Home(shop.objects, shop.trees, home.place)
    with pytest.raises(Conflict) as caught:
        other.lock()
    assert caught.value.kind == "machine_open"
    home.close()
    other.lock()
    other.close()


def test_the_home_record_reads_back_as_written(home: Home, stack: Stack) -> None:
    assert home.read() is None
    standing = Standing(3, stack, None, True, 2)
    home.write(standing)
    assert home.read() == standing


def test_a_fresh_upper_looks_like_the_root_and_holds_linked_files(
    home: Home, stack: Stack, bases: Bases
) -> None:
    assert home.fresh(1, stack, bases) == []
    upper = home.upper(1)
    assert (upper.stat().st_mode & 0o777, upper.stat().st_mtime_ns) == (0o751, 123_456_789)
    assert sorted(path.name for path in upper.iterdir()) == ["dir", "two"]
    assert (upper / "two").stat().st_nlink == 2


def test_too_many_links_are_a_loss(
    home: Home, stack: Stack, bases: Bases, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CARRY_BYTES", 3)
    assert [loss.what for loss in home.fresh(1, stack, bases)] == ["hardlink"]
    assert list(home.upper(1).iterdir()) == []


class TestRecovery:
    def test_recovery_continues_on_a_layer_adopted_from_the_upper(
        self, home: Home, stack: Stack, bases: Bases
    ) -> None:
        home.fresh(1, stack, bases)
        standing = Standing(1, stack)
        name = layer_name("m", 1)
        adopted = bases.adopt(home.upper(1), name, below=stack, image=stack.image, shared=True)
        found = home.recover(standing, bases, "m")
        assert found == replace(standing, upper=2, stack=adopted) == home.read()
        assert home.upper(2).is_dir()

    def test_recovery_moves_back_an_upper_that_was_not_yet_a_layer(
        self, home: Home, stack: Stack, bases: Bases
    ) -> None:
        home.fresh(1, stack, bases)
        home.upper(1).rename(bases.root / layer_name("m", 1))
        assert home.recover(Standing(1, stack), bases, "m") == Standing(1, stack)
        assert home.upper(1).is_dir()

    def test_recovery_removes_unused_upper_directories(
        self, home: Home, stack: Stack, bases: Bases
    ) -> None:
        standing = Standing(1, stack, outer=4)
        for number in (1, 2):
            home.fresh(number, stack, bases)
        for name in ("work-1", "work-2", "host-3-%2F", "hostwork-3-%2F", "host-4-%2F", "stage"):
            home.empty(name)
        home.recover(standing, bases, "m")
        left = sorted(path.name for path in home.place.iterdir())
        assert left == ["host-4-%2F", "stage", "upper-1", "work-1"]

    def test_recovery_without_an_upper_directory_is_corrupt(
        self, home: Home, stack: Stack, bases: Bases
    ) -> None:
        with pytest.raises(Corrupt) as caught:
            home.recover(Standing(1, stack), bases, "m")
        assert caught.value.kind == "machine_broken"


def test_empty_removes_a_kernel_work_directory_without_permissions(home: Home) -> None:
    (home.place / "work-1/work").mkdir(parents=True)
    (home.place / "work-1/work").chmod(0)
    assert list(home.empty("work-1").iterdir()) == []


def test_the_outer_upper_name_escapes_the_path(home: Home, stack: Stack) -> None:
    assert home.outer(Standing(1, stack, outer=2), "/home/x y") == "host-2-%2Fhome%2Fx%20y"
