"""What a thaw has to do, from trees alone; and what it does when only some paths are asked for."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ortet.errors import Corrupt, Invalid, NotFound
from ortet.machines.restore.compare_images import ImageFiles, RestorePlan, make_plan

Eye = Callable[[Path], Any]
Torture = Callable[[Path], None]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ([], ["ab"]),
        (["ab"], []),
        (["ab"], ["abc"]),
        (["abc"], ["ab"]),
        (["ab", "cd"], ["ac", "bd"]),
        (["abcd"], ["ab", "cd"]),
        (["ab"], ["ab"]),
    ],
)
def test_hardlinks_are_regrouped(bench: Any, see: Eye, old: list[str], new: list[str]) -> None:
    def lay(groups: list[str]) -> None:
        shutil.rmtree(bench.root)
        for name in "abcd":
            (bench.root / name).mkdir(parents=True)
            (bench.root / name / "f").write_text("same in all")
            os.utime(bench.root / name / "f", ns=(0, 0))
        for group in groups:
            for name in group[1:]:
                (bench.root / name / "f").unlink()
                os.link(bench.root / group[0] / "f", bench.root / name / "f")
        for path in (*(bench.root / name for name in "abcd"), bench.root):
            os.utime(path, ns=(0, 0))

    lay(new)
    wanted, target = see(bench.root), bench.freeze()
    lay(old)
    bench.thaw(target)
    assert see(bench.root) == wanted
    bench.check(target)


def test_a_linked_file_that_changes_changes_under_all_its_names(bench: Any, see: Eye) -> None:
    (bench.root / "d").mkdir()
    (bench.root / "a").write_text("one")
    os.link(bench.root / "a", bench.root / "d" / "b")
    wanted, target = see(bench.root), bench.freeze()
    (bench.root / "a").write_text("two")
    bench.thaw(target)
    assert see(bench.root) == wanted
    bench.check(target)
    (bench.root / "a").chmod(0o600)
    bench.thaw(target)
    assert see(bench.root) == wanted
    bench.check(target)


def test_a_restore_of_paths_changes_only_these_paths(bench: Any) -> None:
    for name in ("x/one", "x/two", "y/deep/three", "z"):
        (bench.root / name).parent.mkdir(parents=True, exist_ok=True)
        (bench.root / name).write_text("old")
    target = bench.freeze()
    for name in ("x/one", "x/two", "z"):
        (bench.root / name).write_text("new")
    shutil.rmtree(bench.root / "y")
    (bench.root / "x" / "added").write_text("new")
    times = {name: os.stat(bench.root / name).st_mtime_ns for name in ("x", ".")}
    bench.thaw(target, paths=[b"x/one", b"y/deep", b"x/added"])
    assert (bench.root / "x" / "one").read_text() == "old"
    assert (bench.root / "x" / "two").read_text() == "new"
    assert (bench.root / "z").read_text() == "new"
    assert (bench.root / "y" / "deep" / "three").read_text() == "old"
    assert not (bench.root / "x" / "added").exists()
    assert {name: os.stat(bench.root / name).st_mtime_ns for name in ("x", ".")} == times
    bench.check_clean()
    assert bench.freeze() == bench.shop.freeze(bench.root)
    bench.thaw(target, paths=[b"x/", b"./z"])
    bench.thaw(target, paths=[b""])
    bench.check(target)


def test_paths_to_restore_that_are_missing_or_outside_are_refused(bench: Any) -> None:
    target = bench.freeze()
    with pytest.raises(NotFound) as missing:
        bench.thaw(target, paths=[b"none"])
    assert missing.value.kind == "no_path"
    for path in (b"../x", b"/etc", b"a/../../x"):
        with pytest.raises(Invalid):
            bench.thaw(target, paths=[path])


def test_restore_of_a_path_replaces_a_file_where_its_parent_directory_belongs(bench: Any) -> None:
    (bench.root / "d" / "e").mkdir(parents=True)
    (bench.root / "d" / "e" / "f").write_text("f")
    (bench.root / "d" / "other").write_text("not asked for")
    (bench.root / "d").chmod(0o750)
    target = bench.freeze()
    shutil.rmtree(bench.root / "d")
    (bench.root / "d").write_text("in the way")
    bench.thaw(target, paths=[b"d/e/f"])
    assert (bench.root / "d" / "e" / "f").read_text() == "f"
    assert os.listdir(bench.root / "d") == ["e"]
    assert stat.S_IMODE(os.stat(bench.root / "d").st_mode) == 0o750
    assert bench.freeze() == bench.shop.freeze(bench.root)


def test_links_across_the_chosen_paths_are_cut_and_others_kept(bench: Any) -> None:
    (bench.root / "a").write_text("one")
    os.link(bench.root / "a", bench.root / "b")
    os.link(bench.root / "a", bench.root / "c")
    target = bench.freeze()
    bench.thaw(target, paths=[b"a"])  # nothing differs: nothing is cut
    assert os.stat(bench.root / "a").st_nlink == 3
    (bench.root / "a").write_text("two")
    bench.thaw(target, paths=[b"a"])
    assert (bench.root / "a").read_text() == "one"
    assert (bench.root / "b").read_text() == (bench.root / "c").read_text() == "two"
    assert os.stat(bench.root / "b").st_nlink == 2
    assert bench.freeze() == bench.shop.freeze(bench.root)


def test_the_plan_lists_only_the_topmost_differing_paths(bench: Any) -> None:
    bench.shell(
        "mkdir -p same/x goes/deep d; echo 1 > d/meta; echo 1 > d/text; echo 1 > goes/deep/f"
    )
    before = bench.freeze()
    bench.shell(
        "rm -r goes; mkdir -p comes/deep; chmod 600 d/meta; echo 22 > d/text; touch comes/f"
    )
    after = bench.freeze()
    plan = make_plan(bench.shop.trees, ImageFiles(before.root, []), ImageFiles(after.root, []))
    assert {c.path for c in plan.swaps} == {b"goes", b"comes", b"d/text"}
    assert [c.path for c in plan.altered] == [b"d/meta"]
    assert [c.path for c in plan.dirs] == [b"", b"d"]
    assert plan.touched == {b"", b"d"}
    nothing = make_plan(bench.shop.trees, ImageFiles(after.root, []), ImageFiles(after.root, []))
    assert nothing == RestorePlan([], [], [], set())


def test_an_equal_file_in_another_hardlink_group_is_replaced(bench: Any) -> None:
    bench.shell("mkdir d e; echo 1 > d/a; cp -p d/a e/b; touch -d @1 d/a e/b")
    root = bench.freeze().root
    plan = make_plan(bench.shop.trees, ImageFiles(root, []), ImageFiles(root, [[b"d/a", b"e/b"]]))
    assert {c.path for c in plan.swaps} == {b"d/a", b"e/b"}
    assert [c.path for c in plan.dirs] == [b"d", b"e"]
    with pytest.raises(Corrupt):
        make_plan(
            bench.shop.trees, ImageFiles(root, []), ImageFiles(root, [[b"d/a", b"../outside"]])
        )
