"""Live machines that meet trouble: what cannot be frozen, and what dies half-way."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tests.fixtures.waiting import WAIT

from ortet.errors import Conflict, Unavailable
from ortet.hub.hub import Hub
from ortet.machines.live import process as liveguard
from ortet.machines.live.criu.rpc import CriuError, CriuWorker
from ortet.machines.live.machine import LiveMachine
from ortet.machines.live.process import LAZY_PAGES_MIN_BYTES
from ortet.machines.overlay.supervisor_client import wait_readable
from ortet.workspaces.workspace import Workspace

pytestmark = [pytest.mark.criu, pytest.mark.files({"file": "one\n"})]

_URING = """
import ctypes, time
libc = ctypes.CDLL(None, use_errno=True)
params = ctypes.create_string_buffer(120)
ring = libc.syscall(425, 4, params)
print("ring" if ring >= 0 else "none", ctypes.get_errno(), flush=True)
time.sleep(1000)
"""
_HOLDER = """
import hashlib, os, sys
held = os.urandom(96 << 20)
for line in sys.stdin:
    sys.stdout.write(hashlib.sha256(held).hexdigest() + "\\n")
    sys.stdout.flush()
"""
_COUNT = "i=0; while sleep 0.02; do i=$((i+1)); echo $i > count; done"


def machine_of(workspace: Workspace) -> LiveMachine:
    machine = workspace.files.machine
    assert isinstance(machine, LiveMachine)
    return machine


def count(workspace: Workspace) -> int:
    """How far the counter is, once it has gone on."""
    wait = (
        'was=$(cat count); until now=$(cat count); [ "$now" ] && [ "$now" != "$was" ]; do :; done;'
    )
    wait += "echo $now"
    return int(workspace.run(wait, timeout=2 * WAIT).stdout)


@pytest.fixture
def counting(ws: Workspace) -> Workspace:
    ws.spawn("count", _COUNT)
    ws.run("until [ -s count ]; do :; done", timeout=2 * WAIT)
    return ws


class TestWhatCannotBeFrozen:
    @pytest.mark.parametrize(
        ("command", "said", "helps"),
        [
            ([sys.executable, "-c", _URING], "io_uring", "UV_USE_IO_URING=0"),
            (["unshare", "-U", "sleep", "1000"], "user namespace", "sandbox"),
            (["strace", "-o", "/dev/null", "sleep", "1000"], "debugger", "detach"),
        ],
    )
    def test_a_process_that_cannot_be_dumped_is_named_before_the_snapshot(
        self, ws: Workspace, command: list[str], said: str, helps: str
    ) -> None:
        job = ws.spawn("bad", command)
        if said == "io_uring":
            first = job.read(0, WAIT)
            assert first.data.startswith(b"ring"), (first, job.logs())
        else:
            until = "until pgrep -x sleep; do :; done; readlink /proc/$(pgrep -x sleep)/ns/user"
            ws.run(until, timeout=2 * WAIT)
        with pytest.raises(Conflict) as caught:
            ws.commit("no")
        assert caught.value.kind == "cannot_freeze"
        assert said in str(caught.value)
        assert helps in str(caught.value)
        assert ws.run("cat file").stdout == "one\n"  # it goes on as if nothing had been
        job.kill()
        ws.commit("yes")


class TestWhatDies:
    def test_a_commit_fails_cleanly_when_criu_is_killed_during_the_dump(
        self, counting: Workspace, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        machine = machine_of(counting)
        real = CriuWorker.dump

        def dump(worker: CriuWorker, pid: int, images: Path, **options: object) -> None:
            options["on_frozen"] = lambda: _kill_criu(machine)
            real(worker, pid, images, **options)  # type: ignore[arg-type]

        with monkeypatch.context() as patch:
            patch.setattr(CriuWorker, "dump", dump)
            with pytest.raises((Unavailable, Conflict)):
                counting.commit("killed")
        before = count(counting)
        counting.commit("again")
        assert count(counting) > before

    def test_after_pid_1_is_killed_the_machine_reopens_and_restores(
        self, hub: Hub, counting: Workspace
    ) -> None:
        commit = counting.commit("alive")
        os.kill(machine_of(counting).init_client.pid, signal.SIGKILL)
        with pytest.raises(Unavailable) as caught:
            counting.run("true")
        assert caught.value.kind == "machine_gone"
        directory = counting.row.directory
        counting.close()
        again = hub.workspace(directory, engine="criu")
        assert again.run("cat file").stdout == "one\n"
        again.restore(commit.oid)
        assert count(again) > 0

    def test_after_the_keeper_is_killed_the_machine_reopens_with_its_files(
        self, counting: Workspace, hub: Hub
    ) -> None:
        machine = machine_of(counting)
        gone = os.pidfd_open(machine.init_client.pid)
        os.kill(int(_parent(machine.init_client.pid)), signal.SIGKILL)
        wait_readable(gone, None)
        os.close(gone)
        with pytest.raises(Unavailable):
            counting.run("true")
        counting.close()
        again = hub.workspace(counting.row.directory, engine="criu")
        assert again.run("cat file").stdout == "one\n"

    def test_a_hub_that_ends_takes_its_machines_along(self, counting: Workspace, hub: Hub) -> None:
        pid = os.pidfd_open(machine_of(counting).init_client.pid)
        assert not wait_readable(pid, 0)
        hub.close()
        assert wait_readable(pid, 0)  # it has ended; who reaps it does so in a moment
        os.close(pid)


class TestRestore:
    def test_restore_on_another_kernel_is_refused_with_the_reason(
        self, counting: Workspace
    ) -> None:
        commit = counting.commit("here")
        ground = machine_of(counting)._context
        ground.host = replace(ground.host, kernel="3.10.0")
        counting.run("echo two > file")
        before = count(counting)
        with pytest.raises(Conflict) as caught:
            counting.restore(commit.oid)
        assert caught.value.kind == "other_host"
        assert "3.10.0" in str(caught.value)
        assert counting.run("cat file").stdout == "two\n"
        assert count(counting) > before

    def test_restore_in_another_directory_is_refused_but_restores_files_on_request(
        self, counting: Workspace, hub: Hub, tmp_path: Path
    ) -> None:
        commit = counting.commit("here")
        (tmp_path / "other").mkdir()
        (tmp_path / "other" / "mine").write_text("mine\n")
        other = hub.workspace(tmp_path / "other", engine="criu")
        with pytest.raises(Conflict) as caught:
            other.restore(commit.oid)
        assert caught.value.kind == "other_place"
        assert other.run("cat mine").stdout == "mine\n"
        other.restore(commit.oid, only={"files"})
        assert other.run("cat file; ls mine").stdout == "one\n"

    def test_a_failed_dump_leaves_no_image_directory(
        self, counting: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        counting.commit("here")
        home = machine_of(counting)._files.home.path
        before = set(home.glob("images-*"))

        def fail(worker: CriuWorker, *_: object, **__: object) -> None:
            worker.close()
            raise CriuError("dump", tmp_path / "none")

        with monkeypatch.context() as patch:
            patch.setattr(CriuWorker, "dump", fail)
            with pytest.raises(Conflict, match="could not freeze"):
                counting.commit("disk full, say")
        assert set(home.glob("images-*")) == before
        assert count(counting)

    def test_a_failed_restore_does_not_block_the_next_restore(
        self, counting: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        commit = counting.commit("here")

        def fail(worker: CriuWorker, *_: object, **__: object) -> None:
            worker.close()
            raise CriuError("restore", tmp_path / "none")

        with monkeypatch.context() as patch:
            patch.setattr(CriuWorker, "restore", fail)
            for _ in range(2):
                with pytest.raises(Conflict, match="could not bring the processes back"):
                    counting.restore(commit.oid)
        assert count(counting)
        counting.restore(commit.oid)
        assert count(counting)

    def test_programs_in_a_machine_cannot_mount_what_criu_does_not_know(
        self, counting: Workspace
    ) -> None:
        done = counting.run("mkdir /tmp/q && mount -t mqueue queues /tmp/q")
        assert done.exit_code == 32
        assert "permission denied" in done.stderr

    def test_restore_reports_only_running_jobs_as_started(self, counting: Workspace) -> None:
        counting.spawn("over", "exit 3").wait(WAIT)
        commit = counting.commit("one runs")
        report = counting.restore(counting.commit("again").oid)
        report = counting.restore(commit.oid)
        assert report.started == [job.name for job in counting.programs.jobs() if job.code is None]
        assert "over" in [job.name for job in counting.programs.jobs()]

    def test_two_forks_restore_the_same_commit_at_the_same_time(self, counting: Workspace) -> None:
        counting.commit("here")
        first, second = counting.fork(2)
        point = count(counting)
        threads = [
            threading.Thread(target=ws.restore, args=[f"{counting.name}"]) for ws in (first, second)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert count(first) and count(second) and count(counting) > point

    def test_a_machine_that_changed_its_system_goes_on_through_generations(
        self, counting: Workspace
    ) -> None:
        counting.run("echo changed > /etc/ortet-test; rm -f /etc/motd", timeout=2 * WAIT)
        one = counting
        for generation in range(3):
            (one,) = one.fork(1)
            assert one.run("cat /etc/ortet-test; ls /etc/motd").stdout == "changed\n"
            one.run(f"echo {generation} >> /etc/ortet-generations")
            assert count(one) > 0
        commit = one.commit("third")
        one.run("rm /etc/ortet-test")
        one.restore(commit.oid)
        told = one.run("cat /etc/ortet-test /etc/ortet-generations").stdout
        assert told == "changed\n0\n1\n2\n"
        assert not Path("/etc/ortet-test").exists()

    def test_a_fork_runs_after_a_host_mount_has_been_unmounted(
        self, hub: Hub, tmp_path: Path
    ) -> None:
        """Its processes saw the mount; in the copy its place is there, with what lies below."""
        disk, place = tmp_path / "disk", tmp_path / "work"
        disk.mkdir()
        place.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "ortet-test", disk], check=True)
        try:
            (disk / "note").write_text("mounted")
            ws = hub.workspace(place, engine="criu")
            assert ws.run(f"cat {disk}/note").stdout == "mounted"
            ws.spawn("count", _COUNT)
            ws.run("until [ -s count ]; do :; done", timeout=2 * WAIT)
            ws.commit("mounted")
        finally:
            subprocess.run(["umount", disk], check=True)
        (fork,) = ws.fork(1)
        assert count(fork) > 0

    def test_restore_by_the_folder_engine_reports_lost_processes(
        self, counting: Workspace, hub: Hub, tmp_path: Path
    ) -> None:
        commit = counting.commit("here")
        report = hub.restore(commit.oid, to=tmp_path / "plain")
        assert (tmp_path / "plain" / "file").read_text() == "one\n"
        (loss,) = [one for one in report.losses if one.what == "process"]
        assert loss.path == "count"
        assert "sleep 0.02" in loss.why


class TestMuchMemory:
    def test_a_copy_whose_memory_is_still_coming_is_committed_whole(self, ws: Workspace) -> None:
        """CRIU would dump such a process without complaint, and without the rest of its memory."""
        ws.spawn("holder", [sys.executable, "-c", _HOLDER], stdin=True)
        original = _digest(ws)
        assert memory_of(ws) > LAZY_PAGES_MIN_BYTES
        (fork,) = ws.fork(1)
        (grandchild,) = fork.fork(1)  # at once
        assert _digest(grandchild) == original
        assert _digest(fork) == original

    def test_a_snapshot_waits_until_lazy_memory_pages_have_arrived(
        self, counting: Workspace, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        pager = subprocess.Popen(["sleep", "1000"])
        machine = machine_of(counting)
        machine._live_process._pager_pidfd = os.pidfd_open(pager.pid)
        real = CriuWorker.dump

        def dump(worker: CriuWorker, pid: int, images: Path, **options: Any) -> None:
            assert pager.poll() is not None
            real(worker, pid, images, **options)

        monkeypatch.setattr(CriuWorker, "dump", dump)

        def wait(fd: int, timeout: int | None) -> bool:
            pager.kill()
            pager.wait()
            return wait_readable(fd, timeout)

        monkeypatch.setattr(liveguard, "wait_readable", wait)
        counting.commit("when all is there")
        assert machine._live_process._pager_pidfd == -1


def memory_of(workspace: Workspace) -> int:
    return max(process.rss for process in workspace.programs.ps())


def _digest(workspace: Workspace) -> bytes:
    job = workspace.programs.job("holder")
    cursor = len(job.logs())
    job.write(b"tell\n")
    told = b""
    while not told.endswith(b"\n"):
        piece = job.read(cursor, WAIT)
        assert piece.data, job.logs()
        told, cursor = told + piece.data, piece.cursor
    return told


def _parent(pid: int | str) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]


def _kill_criu(machine: LiveMachine) -> None:
    """All that the machine's keeper has."""
    keeper = _parent(machine.init_client.pid)
    killed = 0
    for place in Path("/proc").iterdir():
        if place.name.isdigit():
            with suppress(OSError):
                ours = b"criu: dump" in (place / "cmdline").read_bytes()
                if ours and _parent(place.name) == keeper:
                    os.kill(int(place.name), signal.SIGKILL)
                    killed += 1
    assert killed
