"""Somebody else writes at the same time: no fresh save is lost."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ortet.errors import Conflict
from ortet.history.records import Image
from ortet.machines.restore.checkout import checkout_image
from ortet.machines.restore.steps import apply_steps as act_
from ortet.machines.restore.write_tree import write_tree as build_

Eye = Callable[[Path], Any]
Torture = Callable[[Path], None]


CHANGES = {
    "content": "printf SAVED > f",
    "same size and time": "printf NOW > f; touch -d @0.000000009 f",
    "saved by rename": "printf now > t; mv t f",
    "removed": "rm f",
    "mode": "chmod 600 f",
    "now a directory": "rm f; mkdir f",
    "in a directory that goes": "printf fresh > goes/fresh",
    "changed in one that goes": "printf fresh > goes/g",
    "removed from one that goes": "rm goes/g",
    "one that goes is a file": "rm -r goes; printf x > goes",
    "in the place of one that comes": "printf mine > comes",
    "a parent is a link": "mv p ../p; ln -s ../p p",
    "a parent is gone": "rm -r p",
    "metadata only": "printf SAVED > meta",
}


def _two_states(bench: Any) -> tuple[Image, Image]:
    root = bench.root
    for name, text in {"f": "was", "comes": "c", "p/f": "was", "meta": "m"}.items():
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text(text)
        os.utime(root / name, ns=(9, 9))
    target = bench.freeze()
    (root / "f").write_text("now")
    os.utime(root / "f", ns=(9, 9))
    (root / "p" / "f").write_text("now")
    (root / "comes").unlink()
    (root / "meta").chmod(0o600)
    (root / "goes").mkdir()
    (root / "goes" / "g").write_text("g")
    return target, bench.freeze()


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_since_the_snapshot_makes_restore_conflict_and_touch_nothing(
    bench: Any, see: Eye, name: str
) -> None:
    target, current = _two_states(bench)
    bench.shell(CHANGES[name])
    before = see(bench.root)
    with pytest.raises(Conflict) as error:
        bench.thaw(target, current=current)
    assert error.value.kind == "changed_meanwhile"
    assert see(bench.root) == before
    bench.check_clean()


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_while_the_new_files_are_written_is_a_conflict_too(
    bench: Any, see: Eye, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    target, current = _two_states(bench)
    real, before = build_, {}

    def build(*args: Any, **more: Any) -> Any:
        made = real(*args, **more)
        bench.shell(CHANGES[name])
        before.update(see(bench.root))
        return made

    monkeypatch.setattr("ortet.machines.restore.restore.write_tree", build)
    with pytest.raises(Conflict):
        bench.thaw(target, current=current)
    assert see(bench.root) == before
    bench.check_clean()


@pytest.mark.parametrize("name", ["content", "saved by rename"])
def test_a_save_in_the_last_moment_is_not_lost(
    bench: Any, see: Eye, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    target, current = _two_states(bench)
    real, before = act_, {}

    def act(*args: Any) -> None:
        bench.shell(CHANGES[name])
        before.update(see(bench.root))
        real(*args)

    monkeypatch.setattr("ortet.machines.restore.restore.apply_steps", act)
    with pytest.raises(Conflict):
        bench.thaw(target, current=current)
    after = see(bench.root)
    assert {p: after[p][3] for p in after} == {p: before[p][3] for p in before}
    bench.check_clean()


def test_a_file_just_written_is_not_taken_for_changed(bench: Any) -> None:
    # racy: written in the same moment as it was frozen, so the index cannot vouch for it
    (bench.root / "f").write_text("one")
    target = bench.freeze()
    (bench.root / "f").write_text("two")
    bench.index.horizon = 0
    current = bench.freeze()
    bench.thaw(target, current=current)
    bench.check(target)


@pytest.mark.root
def test_an_entry_that_could_not_be_created_on_disk_is_no_conflict(
    bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("gone", "stays"):
        (bench.root / name).mkdir()
        (bench.root / name / "f").write_text("f")
        os.mknod(bench.root / name / "device", stat.S_IFCHR | 0o600, os.makedev(1, 3))
    target = bench.freeze()
    shutil.rmtree(bench.root)
    real = os.mknod

    def mknod(*args: Any, **more: Any) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "mknod", mknod)
    bench.index = bench.shop.index()
    report = checkout_image(
        bench.shop.objects, bench.shop.trees, target, bench.root, index=bench.index
    )
    assert [loss.what for loss in report.losses] == ["device", "device"]
    current = bench.freeze()
    assert current == target
    (bench.root / "stays" / "f").write_text("changed")
    changed = bench.freeze()
    gone = bench.shop.trees.patch_paths(changed.root, {b"gone": None, b"stays/device": None})
    monkeypatch.setattr(os, "mknod", real)
    bench.thaw(Image(gone))
    assert sorted(os.listdir(bench.root)) == ["stays"]
    assert os.listdir(bench.root / "stays") == ["f"]
    assert bench.freeze() == Image(gone)


@pytest.mark.root
def test_a_file_that_cannot_be_read_is_not_replaced_unseen(
    shop: Any, bench: Any, worker: Callable[..., Any]
) -> None:
    (bench.root / "f").write_text("target")
    target = shop.put(bench.freeze())
    (bench.root / "f").write_text("current")
    for path in (bench.root.parent, bench.root, bench.root / "f"):
        os.chown(path, 65534, 65534)
    index = bench.index
    image = bench.freeze()
    shop.put(image)
    index.save(bench.root.with_name("index"), image.root.data)
    os.chown(bench.root.with_name("index"), 65534, 65534)
    (bench.root / "f").chmod(0)  # since the freeze, by its owner
    shop.objects.close()
    done = worker("thaw", target, bench.root, bench.root.with_name("stage"), uid=65534)
    assert done.value["kind"] == "unreadable", done.text
    assert (bench.root / "f").read_text() == "current"
