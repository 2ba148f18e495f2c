"""Tests of Machine.fork and of machines that work in place."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ortet.errors import Conflict, NotFound
from ortet.ids import Oid
from ortet.machines.base import Machine
from ortet.testing.engine_parts import EngineFixtures, EngineHarness


class ForkTests:
    """Tests of Machine.fork; part of EngineTests."""

    def test_forks_have_the_files_of_the_committed_snapshot(
        self, bench: EngineHarness, machine: Machine
    ) -> None:
        machine.run("echo point > point; ln point docs/point")
        image = bench.commit(machine)
        forks = bench.adopt(machine.fork([bench.spec(image) for _ in range(3)]))
        assert len(forks) == 3
        for fork in forks:
            assert fork.run("cat point docs/deep/two.md").stdout == "point\ntwo\n"
            assert fork.snapshot() == image

    def test_later_changes_are_not_in_a_fork(self, bench: EngineHarness, machine: Machine) -> None:
        image = bench.commit(machine)
        machine.run("echo later > a.txt; rm docs/one.md; echo later > later")
        (fork,) = bench.adopt(machine.fork([bench.spec(image)]))
        assert fork.run("cat a.txt docs/one.md").stdout == "alpha\none\n"
        assert fork.snapshot() == image

    def test_forks_and_original_change_independently(
        self, bench: EngineHarness, machine: Machine
    ) -> None:
        image = bench.commit(machine)
        one, two = bench.adopt(machine.fork([bench.spec(image), bench.spec(image)]))
        machine.run("echo original >> a.txt")
        one.run("echo one >> a.txt; rm -r docs")
        two.run("echo two > only-two")
        assert machine.run("cat a.txt; ls").stdout == (
            "alpha\noriginal\na.txt\ndocs\nempty\nlink\nrun.sh\n"
        )
        assert one.run("cat a.txt; ls").stdout == "alpha\none\na.txt\nempty\nlink\nrun.sh\n"
        assert two.run("cat a.txt docs/one.md only-two").stdout == "alpha\none\ntwo\n"
        assert len({machine.snapshot(), one.snapshot(), two.snapshot()}) == 3

    def test_a_fork_of_a_fork_has_all_earlier_changes(
        self, bench: EngineHarness, machine: Machine
    ) -> None:
        current = machine
        for generation in range(4):
            current.run(f"echo {generation} >> trail; echo {generation} > docs/at")
            image = bench.commit(current)
            (current,) = bench.adopt(current.fork([bench.spec(image)]))
        assert current.run("cat trail docs/at").stdout == "0\n1\n2\n3\n3\n"

    def test_a_fork_lives_on_without_its_original(self, bench: EngineHarness, first: Oid) -> None:
        spec = bench.spec(first)
        machine = bench.engine.open(spec)
        machine.run("echo here > here")
        image = bench.commit(machine)
        (fork,) = bench.adopt(machine.fork([bench.spec(image)]))
        machine.close()
        bench.engine.remove(spec.home)
        assert fork.run("cat here a.txt").stdout == "here\nalpha\n"
        fork.run("echo more > more")
        assert bench.content(bench.commit(fork), "more") == b"more\n"

    def test_a_failed_fork_leaves_no_machine_behind(
        self, bench: EngineHarness, machine: Machine
    ) -> None:
        image = bench.commit(machine)
        good, bad = bench.spec(image), bench.spec(image)
        bad.home.rmdir()
        bad.home.write_text("a file is in the way")
        with pytest.raises(Exception):  # noqa: B017 - any refusal will do
            machine.fork([good, bad])
        assert not (good.home.exists() and list(good.home.iterdir()))
        assert machine.snapshot() == image


class InPlaceTests(EngineFixtures):
    """Tests of engines that can work in a given directory. Supply the fixture `engine`."""

    @pytest.fixture
    def place(self, bench: EngineHarness) -> Path:
        place = bench.root / "proj"
        (place / "sub").mkdir()
        (place / "a.txt").write_text("alpha\n")
        (place / "sub" / "b.txt").write_text("beta\n")
        return place

    @pytest.fixture
    def here(self, bench: EngineHarness, place: Path) -> Machine:
        return bench.open(bench.spec(None, place))

    def test_the_directory_itself_is_snapshotted_and_restored(
        self, bench: EngineHarness, here: Machine, place: Path
    ) -> None:
        assert here.path == place
        before = bench.commit(here)
        (place / "sub" / "b.txt").write_text("changed by an editor\n")
        after = bench.commit(here)
        assert bench.content(after, "sub/b.txt") == b"changed by an editor\n"
        here.restore(before)
        assert (place / "sub" / "b.txt").read_text() == "beta\n"

    def test_a_commit_writes_nothing_into_the_directory(
        self, bench: EngineHarness, here: Machine, place: Path
    ) -> None:
        moved = place.stat().st_mtime_ns
        bench.commit(here)
        here.close()
        assert sorted(path.name for path in place.iterdir()) == ["a.txt", "sub"]
        assert place.stat().st_mtime_ns == moved

    def test_a_fork_leaves_the_directory_alone(
        self, bench: EngineHarness, here: Machine, place: Path
    ) -> None:
        image = bench.commit(here)
        (fork,) = bench.adopt(here.fork([bench.spec(image, place)]))
        assert fork.path != place
        fork.run("echo private > a.txt; rm -r sub")
        assert (place / "a.txt").read_text() == "alpha\n"
        assert here.snapshot() == image

    def test_a_fork_needs_a_commit(self, bench: EngineHarness, here: Machine, place: Path) -> None:
        here.snapshot()
        with pytest.raises(Conflict) as caught:
            here.fork([bench.spec(None, place)])
        assert caught.value.kind == "not_settled"

    def test_the_pointer_file_is_no_state(
        self, bench: EngineHarness, here: Machine, place: Path
    ) -> None:
        times = place.stat()
        image = bench.commit(here)
        (place / ".ortet").write_text("somewhere\n")
        os.utime(place, ns=(times.st_mtime_ns, times.st_mtime_ns))
        assert here.snapshot() == image
        (place / "sub" / ".ortet").write_text("deeper it is a file like any other\n")
        assert "sub/.ortet" in bench.paths(here.snapshot())

    def test_opening_a_missing_directory_is_refused(self, bench: EngineHarness) -> None:
        with pytest.raises(NotFound) as caught:
            bench.open(bench.spec(None, bench.root / "nowhere"))
        assert caught.value.kind == "no_directory"
