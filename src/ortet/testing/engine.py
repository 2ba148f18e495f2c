"""The contract of Engine and Machine as tests.

    class TestMine(EngineTests):
        @pytest.fixture
        def engine(self, objects: PackedObjectStore, trees: Trees) -> Engine:
            return MyEngine(objects, trees)

Machines are opened from an image with private files. Use `InPlaceTests` for an engine that can also
work in place. The tests change files by running commands and read them at `path`.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from ortet._util.codec import Hasher, decode, encode
from ortet.backends.local.bucket import FileBucket
from ortet.errors import Conflict, Invalid, NotFound
from ortet.history.records import Image, TreeEntry
from ortet.history.tree.tree import Trees
from ortet.ids import Oid, SystemClock
from ortet.machines.base import Engine, Machine, MachineSpec
from ortet.machines.capture.ignore_rules import IgnoreRules
from ortet.machines.capture.scanner import scan
from ortet.machines.capture.stat_index import StatIndex
from ortet.objects.base import Kind
from ortet.objects.blobs import read_file
from ortet.objects.store import PackedObjectStore

# Fixtures of the engine suites: an object store, a first image, and a harness for machines.


class EngineHarness:
    """Opens machines from the first image and reads images back."""

    def __init__(
        self, engine: Engine, objects: PackedObjectStore, trees: Trees, *, root: Path
    ) -> None:
        self.engine = engine
        self.objects = objects
        self.trees = trees
        self.root = root
        self._opened: list[Machine] = []
        self._count = 0

    def spec(self, image: Oid | None, path: Path | None = None) -> MachineSpec:
        """Return the spec of a new machine and create its home."""
        self._count += 1
        home = self.root / "machines" / f"m{self._count}"
        home.mkdir(parents=True)
        return MachineSpec(id=home.name, home=home, path=path or self.root / "proj", image=image)

    def open(self, spec: MachineSpec) -> Machine:
        machine = self.engine.open(spec)
        self._opened.append(machine)
        return machine

    def adopt(self, machines: list[Machine]) -> list[Machine]:
        """Close these machines at the end of the test."""
        self._opened += machines
        return machines

    def commit(self, machine: Machine) -> Oid:
        """Commit as a workspace does: snapshot, flush, mark as committed."""
        with self.objects.writing():
            image = machine.snapshot()
            self.objects.flush()
            machine.mark_committed(image)
        return image

    def image(self, oid: Oid) -> Image:
        return decode(Image, self.objects.get(oid))

    def entry(self, oid: Oid, path: str) -> TreeEntry | None:
        return self.trees.resolve(self.image(oid).root, path.encode())

    def content(self, oid: Oid, path: str) -> bytes | None:
        entry = self.entry(oid, path)
        return None if entry is None else b"".join(read_file(self.objects, entry))

    def paths(self, oid: Oid) -> set[str]:
        return {path.decode() for path, _ in self.trees.walk(self.image(oid).root)}

    def links(self, oid: Oid) -> list[list[bytes]]:
        links = self.image(oid).links
        return decode(list[list[bytes]], self.objects.get(Oid(links))) if links else []

    def close(self) -> None:
        for machine in self._opened:
            machine.close()


class EngineFixtures:
    """All fixtures of a suite except `engine`."""

    @pytest.fixture
    def objects(self, tmp_path: Path) -> Iterator[PackedObjectStore]:
        store = tmp_path / "store"
        objects = PackedObjectStore(
            store, FileBucket(store / "bucket"), hasher=Hasher(), clock=SystemClock()
        )
        yield objects
        objects.close()

    @pytest.fixture
    def trees(self, objects: PackedObjectStore) -> Trees:
        return Trees(objects)

    @pytest.fixture
    def bench(
        self, engine: Engine, objects: PackedObjectStore, trees: Trees, tmp_path: Path
    ) -> Iterator[EngineHarness]:
        (tmp_path / "proj").mkdir()
        bench = EngineHarness(engine, objects, trees, root=tmp_path)
        yield bench
        bench.close()

    @pytest.fixture
    def first(self, objects: PackedObjectStore, trees: Trees, tmp_path: Path) -> Oid:
        """Store the first image and return its id.

        It has a.txt, run.sh (executable), docs/one.md, docs/deep/two.md, empty/, link -> a.txt.
        """
        root = tmp_path / "seed"
        (root / "docs" / "deep").mkdir(parents=True)
        (root / "empty").mkdir()
        (root / "a.txt").write_text("alpha\n")
        (root / "run.sh").write_text("#!/bin/sh\necho ran\n")
        (root / "run.sh").chmod(0o755)
        (root / "docs" / "one.md").write_text("one\n")
        (root / "docs" / "deep" / "two.md").write_text("two\n")
        (root / "link").symlink_to("a.txt")
        scanned = scan(
            objects, trees, root=root, index=StatIndex(trees), rules=IgnoreRules(), losses=[]
        )
        image = objects.put(Kind.IMAGE, encode(Image(root=scanned.root, links=scanned.links)))
        objects.flush()
        return image

    @pytest.fixture
    def machine(self, bench: EngineHarness, first: Oid) -> Machine:
        """A private machine, newly opened from `first`."""
        return bench.open(bench.spec(first))


# Tests of Machine.fork and of machines that work in place.


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


# Tests of Machine.run.


class RunTests:
    """Tests of Machine.run; part of EngineTests."""

    def test_a_string_goes_to_the_shell(self, machine: Machine) -> None:
        result = machine.run("cat a.txt; echo oops >&2; exit 3")
        assert (result.exit_code, result.stdout, result.stderr) == (3, "alpha\n", "oops\n")
        assert not result.timed_out

    def test_a_list_is_executed(self, machine: Machine) -> None:
        assert machine.run(["printf", "%s", "$HOME *"]).stdout == "$HOME *"

    def test_the_workspace_is_the_working_directory(self, machine: Machine) -> None:
        assert machine.run("./run.sh").stdout == "ran\n"

    def test_cwd_is_relative_to_the_workspace(self, machine: Machine) -> None:
        assert machine.run("cat two.md", cwd="docs/deep").stdout == "two\n"

    @pytest.mark.parametrize("cwd", ["/", "..", "docs/../..", "../proj"])
    def test_cwd_stays_in_the_workspace(self, machine: Machine, cwd: str) -> None:
        with pytest.raises(Invalid) as caught:
            machine.run("true", cwd=cwd)
        assert caught.value.kind == "bad_cwd"

    def test_cwd_must_be_there(self, machine: Machine) -> None:
        with pytest.raises(NotFound) as caught:
            machine.run("true", cwd="nowhere")
        assert caught.value.kind == "no_directory"

    def test_a_missing_command_returns_127(self, machine: Machine) -> None:
        assert machine.run(["no-such-program-here"]).exit_code == 127

    def test_an_empty_command_is_refused(self, machine: Machine) -> None:
        with pytest.raises(Invalid) as caught:
            machine.run([])
        assert caught.value.kind == "bad_command"

    def test_run_adds_and_removes_environment_variables(self, machine: Machine) -> None:
        env = {"ORTET_TEST_ONE": "1", "ORTET_TEST_TWO": "2"}
        script = "echo ${ORTET_TEST_ONE-unset} ${ORTET_TEST_TWO-unset} ${PATH:+path}"
        assert machine.run(script, env=env).stdout == "1 2 path\n"
        inner = {"ORTET_TEST_ONE": None}
        assert machine.run(script, env=inner).stdout == "unset unset path\n"

    def test_run_passes_stdin_or_an_empty_one(self, machine: Machine) -> None:
        data = bytes(range(256)) * 4096
        result = machine.run("wc -c", stdin=data)
        assert result.stdout.strip() == str(len(data))
        assert machine.run("cat").stdout == ""

    def test_output_comes_as_it_is_made(self, machine: Machine) -> None:
        chunks: list[tuple[str, bytes]] = []
        machine.run(
            "echo one; echo two >&2", output=lambda which, data: chunks.append((which, data))
        )
        assert sorted(chunks) == [("stderr", b"two\n"), ("stdout", b"one\n")]

    def test_a_signal_is_128_and_its_number(self, machine: Machine) -> None:
        assert machine.run("kill -TERM $$").exit_code == 128 + signal.SIGTERM

    def test_a_timeout_kills_all_descendants(self, machine: Machine) -> None:
        # The grandchild would write the file if it survived its parents.
        script = "(trap '' TERM; (read line < fifo; echo alive > alive) & wait) & wait"
        machine.run("mkfifo fifo")
        result = machine.run(script, timeout=0.3)
        assert (result.exit_code, result.timed_out) == (124, True)
        # Writing to the fifo blocks if no reader is left; exit code 124 of timeout shows that.
        assert machine.run("timeout 0.3 sh -c 'echo go > fifo'").exit_code == 124
        assert machine.run("test -e alive").exit_code == 1


# Tests of Machine.restore.


class RestoreTests:
    """Tests of Machine.restore; part of EngineTests."""

    def test_restore_moves_back_and_forth_between_two_snapshots(
        self, bench: EngineHarness, machine: Machine
    ) -> None:
        before = bench.commit(machine)
        machine.run("echo new > new; rm a.txt; mv docs papers; chmod 700 run.sh; ln run.sh again")
        after = bench.commit(machine)
        machine.restore(before)
        assert machine.snapshot() == before
        assert (machine.path / "docs" / "deep" / "two.md").read_text() == "two\n"
        machine.restore(after)
        assert machine.snapshot() == after
        assert (machine.path / "new").read_text() == "new\n"
        assert not (machine.path / "docs").exists()

    def test_restore_removes_files_that_were_never_committed(
        self, bench: EngineHarness, machine: Machine
    ) -> None:
        image = bench.commit(machine)
        machine.run("echo changed > a.txt; mkdir -p x/y; echo z > x/y/z; rm link")
        report = machine.restore(image)
        assert report.losses == []
        assert machine.run("cat a.txt; cat link; ls").stdout == (
            "alpha\nalpha\na.txt\ndocs\nempty\nlink\nrun.sh\n"
        )
        assert machine.snapshot() == image

    def test_restore_touches_only_differing_files(
        self, bench: EngineHarness, machine: Machine
    ) -> None:
        image = bench.commit(machine)
        machine.run("echo changed > docs/one.md")
        inodes = "stat -c %i a.txt run.sh docs docs/deep/two.md"
        before = machine.run(inodes).stdout
        report = machine.restore(image)
        assert machine.run(inodes).stdout == before
        assert report.written >= 1
        assert machine.run("cat docs/one.md").stdout == "one\n"

    def test_restore_of_the_current_snapshot_does_nothing(
        self, bench: EngineHarness, machine: Machine
    ) -> None:
        image = bench.commit(machine)
        report = machine.restore(image)
        assert (report.written, report.removed, report.losses) == (0, 0, [])

    def test_restore_of_some_paths_changes_only_those_paths(
        self, bench: EngineHarness, machine: Machine
    ) -> None:
        image = bench.commit(machine)
        machine.run(
            "echo 1 > a.txt; echo 1 > docs/one.md; echo 1 > docs/deep/two.md; echo 1 > docs/n"
        )
        machine.restore(image, [b"docs/deep", b"a.txt"])
        contents = machine.run("cat a.txt docs/one.md docs/deep/two.md docs/n").stdout
        assert contents == "alpha\n1\ntwo\n1\n"
        frozen = machine.snapshot()
        assert bench.content(frozen, "docs/deep/two.md") == b"two\n"
        assert bench.content(frozen, "docs/n") == b"1\n"

    def test_restore_of_an_unknown_image_is_refused_and_changes_nothing(
        self, machine: Machine
    ) -> None:
        machine.run("echo mine > a.txt")
        before = machine.snapshot()
        with pytest.raises(NotFound) as caught:
            machine.restore(Oid(b"\x02" * 32))
        assert caught.value.kind == "no_object"
        assert machine.snapshot() == before

    def test_restore_keeps_ignored_files(self, bench: EngineHarness, machine: Machine) -> None:
        machine.run("echo '*.log' > .ortetignore; echo 1 > a.log; mkdir logs; echo 1 > logs/b.log")
        image = bench.commit(machine)
        machine.run(
            "echo 2 > a.log; echo 2 > a.txt; mkdir more; echo 3 > more/c.log; echo x > more/x"
        )
        machine.restore(image)
        assert machine.run("cat a.log a.txt logs/b.log more/c.log").stdout == "2\nalpha\n1\n3\n"
        assert not (machine.path / "more" / "x").exists()

    def test_restore_brings_back_every_file_type_and_mode(
        self, bench: EngineHarness, machine: Machine
    ) -> None:
        empty = bench.commit(machine)
        machine.run(
            "mkfifo pipe; ln -s /nowhere dangling; ln -s loop loop; mkdir -m 1777 sticky;"
            "truncate -s 1M sparse; printf end >> sparse; : > void; cp run.sh suid;"
            "chmod 6755 suid; ln suid sticky/suid; ln dangling sticky/dangling;"
            "touch -d @-86400.5 old; touch -d @4102444800.000000001 young"
        )
        full = bench.commit(machine)
        machine.restore(empty)
        assert machine.snapshot() == empty
        report = machine.restore(full)
        assert report.losses == []
        assert machine.snapshot() == full
        stats = machine.run("stat -c '%n %a %F %Y' suid sticky pipe young old").stdout
        assert stats.splitlines()[:4] == [
            f"suid 6755 regular file {(machine.path / 'suid').stat().st_mtime_ns // 10**9}",
            f"sticky 1777 directory {(machine.path / 'sticky').stat().st_mtime_ns // 10**9}",
            f"pipe 644 fifo {(machine.path / 'pipe').stat().st_mtime_ns // 10**9}",
            "young 644 regular empty file 4102444800",
        ]


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
