"""Tests of Machine.restore."""

from __future__ import annotations

import pytest

from ortet.errors import NotFound
from ortet.ids import Oid
from ortet.machines.base import Machine
from ortet.testing.engine_parts import EngineHarness


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
