"""The contract of Engine and Machine as tests.

    class TestMine(EngineTests):
        @pytest.fixture
        def engine(self, objects: LocalObjectStore, trees: Trees) -> Engine:
            return MyEngine(objects, trees)

Machines are opened from an image with private files. Use `InPlaceTests` for an engine that can also
work in place. The tests change files by running commands and read them at `path`.
"""

from __future__ import annotations

import pytest

from ortet.errors import NotFound
from ortet.history.records import Image
from ortet.ids import Oid
from ortet.machines.base import Engine, Machine
from ortet.testing.engine_forks import ForkTests
from ortet.testing.engine_parts import EngineFixtures, EngineHarness
from ortet.testing.engine_run import RunTests
from ortet.testing.engine_thaw import RestoreTests

TOUCH_FIXED_TIME = "touch -d @1000000000"
"""Sets a fixed time on files, so that two machines can have equal snapshots."""


class EngineTests(EngineFixtures, RunTests, RestoreTests, ForkTests):
    """Tests of an engine. Supply the fixture `engine`; see the module."""

    def test_probe_reports_every_capability_as_available(self, engine: Engine) -> None:
        assert engine.name
        assert [capability for capability in engine.probe() if not capability.ok] == []

    def test_opens_with_the_files_of_its_image(
        self, bench: EngineHarness, machine: Machine
    ) -> None:
        assert machine.engine == bench.engine.name
        assert (machine.path / "docs" / "deep" / "two.md").read_text() == "two\n"
        assert (machine.path / "link").readlink().name == "a.txt"
        assert list((machine.path / "empty").iterdir()) == []

    def test_a_machine_opened_from_an_image_snapshots_to_that_image(
        self, bench: EngineHarness, machine: Machine, first: Oid
    ) -> None:
        assert _workspace_image(bench, machine.snapshot()) == _workspace_image(bench, first)
        assert machine.losses == []

    def test_two_snapshots_without_a_change_have_the_same_id(
        self, bench: EngineHarness, machine: Machine
    ) -> None:
        machine.run("echo more >> a.txt; mkdir new; ln a.txt new/hard")
        assert machine.snapshot() == machine.snapshot()
        assert bench.commit(machine) == machine.snapshot()

    def test_the_same_state_has_the_same_id(self, bench: EngineHarness, first: Oid) -> None:
        one, two = bench.open(bench.spec(first)), bench.open(bench.spec(first))
        one.run(f"echo x > x; echo gone > y; rm y; {TOUCH_FIXED_TIME} x .")
        assert one.snapshot() != two.snapshot()
        two.run(f"echo wrong > x; echo x > x; {TOUCH_FIXED_TIME} x .")
        assert _workspace_image(bench, one.snapshot()) == _workspace_image(bench, two.snapshot())

    def test_an_undone_change_is_no_change(
        self, bench: EngineHarness, machine: Machine, first: Oid
    ) -> None:
        machine.run("mv a.txt b.txt; mv b.txt a.txt; chmod 700 run.sh; chmod 755 run.sh")
        before = bench.image(first).root
        machine.run(["touch", "-d", f"@{before.mtime // 10**9}.{before.mtime % 10**9:09}", "."])
        assert _workspace_image(bench, machine.snapshot()) == _workspace_image(bench, first)

    @pytest.mark.parametrize(
        ("script", "there", "gone"),
        [
            ("echo beta > b.txt", {"b.txt"}, set()),
            ("rm a.txt", set(), {"a.txt"}),
            ("rm -r docs", set(), {"docs", "docs/one.md", "docs/deep", "docs/deep/two.md"}),
            ("mv docs papers", {"papers/deep/two.md"}, {"docs", "docs/one.md"}),
            ("mv docs/deep deep", {"deep/two.md", "docs/one.md"}, {"docs/deep"}),
            ("rm -r docs; mkdir docs; echo n > docs/new", {"docs/new"}, {"docs/one.md"}),
            ("rm -r docs; echo file > docs", {"docs"}, {"docs/one.md"}),
            ("rm a.txt; mkdir a.txt; echo in > a.txt/in", {"a.txt/in"}, set()),
            ("rm link; ln -s nowhere link", {"link"}, set()),
            ("mkfifo pipe", {"pipe"}, set()),
            ("mkdir -p p/q/r; mv p/q s; echo t > s/r/t", {"p", "s/r/t"}, {"p/q"}),
        ],
    )
    def test_every_kind_of_change_is_seen(
        self,
        bench: EngineHarness,
        machine: Machine,
        first: Oid,
        *,
        script: str,
        there: set[str],
        gone: set[str],
    ) -> None:
        before = machine.snapshot()
        assert machine.run(f"set -e; {script}").exit_code == 0
        after = machine.snapshot()
        assert after != before
        assert there <= bench.paths(after)
        assert not gone & bench.paths(after)
        assert bench.paths(before) == bench.paths(first)

    def test_a_snapshot_keeps_the_contents_of_its_moment(
        self, bench: EngineHarness, machine: Machine
    ) -> None:
        images = []
        for number in range(5):
            machine.run(f"echo {number} > a.txt; echo {number} > docs/deep/two.md")
            images.append(bench.commit(machine))
        for number, image in enumerate(images):
            assert bench.content(image, "a.txt") == b"%d\n" % number
            assert bench.content(image, "docs/deep/two.md") == b"%d\n" % number

    def test_metadata_alone_is_a_change(self, bench: EngineHarness, machine: Machine) -> None:
        before = machine.snapshot()
        machine.run("chmod 4750 run.sh; touch -d @5.000000007 docs/one.md; chmod 700 empty")
        after = machine.snapshot()
        run, one, empty = (bench.entry(after, p) for p in ("run.sh", "docs/one.md", "empty"))
        assert run is not None and one is not None and empty is not None
        assert (run.mode & 0o7777, empty.mode & 0o7777) == (0o4750, 0o700)
        assert one.mtime == 5_000_000_007
        assert bench.content(before, "run.sh") == bench.content(after, "run.sh")

    def test_a_snapshot_records_hardlink_groups(
        self, bench: EngineHarness, machine: Machine
    ) -> None:
        machine.run("ln a.txt docs/b; ln docs/one.md c")
        assert bench.links(machine.snapshot()) == [[b"a.txt", b"docs/b"], [b"c", b"docs/one.md"]]
        machine.run("rm c; echo through >> docs/b")
        image = machine.snapshot()
        assert bench.links(image) == [[b"a.txt", b"docs/b"]]
        assert (
            bench.content(image, "a.txt") == bench.content(image, "docs/b") == b"alpha\nthrough\n"
        )

    def test_ignored_files_are_not_part_of_a_snapshot(
        self, bench: EngineHarness, machine: Machine
    ) -> None:
        machine.run("printf '*.log\\n!keep.log\\n/build/\\nsize > 1KB *.bin\\n' > .ortetignore")
        machine.run("mkdir build docs/build; touch build/x docs/build/x a.log keep.log")
        machine.run("head -c 2000 /dev/zero > big.bin; head -c 2000 /dev/zero > big.txt")
        paths = bench.paths(bench.commit(machine))
        assert {"keep.log", "docs/build/x", "big.txt", ".ortetignore"} <= paths
        assert not {"a.log", "build", "build/x", "big.bin"} & paths
        assert [(loss.path, loss.what) for loss in machine.losses] == [("big.bin", "size")]

    def test_an_unknown_image_is_refused(self, bench: EngineHarness) -> None:
        spec = bench.spec(Oid(b"\x01" * 32))
        with pytest.raises(NotFound) as caught:
            bench.open(spec)
        assert caught.value.kind == "no_object"

    def test_files_stay_when_it_is_closed(self, bench: EngineHarness, first: Oid) -> None:
        spec = bench.spec(first)
        machine = bench.engine.open(spec)
        machine.run("echo kept > kept")
        image = bench.commit(machine)
        machine.run("echo later > later")
        machine.close()
        again = bench.open(spec)
        assert (again.path / "kept").read_text() == "kept\n"
        assert (again.path / "later").read_text() == "later\n"
        again.run("rm later")
        assert bench.content(again.snapshot(), "kept") == bench.content(image, "kept")

    def test_remove_takes_all_and_may_be_repeated(self, bench: EngineHarness, first: Oid) -> None:
        spec = bench.spec(first)
        machine = bench.engine.open(spec)
        machine.run("mkdir -p closed/door; chmod 000 closed; echo x > x")
        machine.close()
        bench.engine.remove(spec.home)
        assert not spec.home.exists()
        bench.engine.remove(spec.home)


def _workspace_image(bench: EngineHarness, oid: Oid) -> Image:
    """Return only the files of an image: an engine may capture more than files."""
    image = bench.image(oid)
    return Image(root=image.root, links=image.links)
