"""All that a command started is found and killed."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.fixtures import forked
from tests.fixtures.waiting import eventually

from ortet.machines.command import run_command
from ortet.machines.standalone.process_tree import RUN_MARK_VARIABLE, kill_run, run_pids

Eye = Callable[[Path], Any]
Torture = Callable[[Path], None]


def _alive(pid: int) -> bool:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):  # it may be reaped while we read
        return False
    return text.rpartition(")")[2].split()[0] not in ("Z", "X")


ESCAPES = {
    "child": "sleep 600 & echo $! >> pids; wait",
    "own session": "setsid sh -c 'echo $$ >> pids; exec sleep 600' & wait",
    "double fork": "(setsid sh -c 'echo $$ >> pids; exec sleep 600' </dev/null >/dev/null 2>&1 &) ;"
    " sleep 600",
    "deaf": "(trap '' TERM HUP INT; echo $$ >> pids; while :; do sleep 1; done) & wait",
    "stopped": "sh -c 'echo $$ >> pids; kill -STOP $$' & wait",
    "environment cleared": "env -i setsid sh -c 'echo $$ >> pids; sleep 600' & wait",
}


@pytest.mark.parametrize("name", ESCAPES)
def test_the_time_out_kills_all_descendants(tmp_path: Path, name: str) -> None:
    pids: list[int] = []
    (tmp_path / "pids").touch()
    for timeout in (0.4, 2, 10, 50):  # a busy host may need longer to start all of them
        result = run_command(f"echo $$ > pids; {ESCAPES[name]}", cwd=tmp_path, timeout=timeout)
        assert (result.exit_code, result.timed_out) == (124, True)
        pids = [int(line) for line in (tmp_path / "pids").read_text().split()]
        if len(pids) >= 2:
            break
    assert len(pids) >= 2
    assert not [pid for pid in pids if _alive(pid)]


def test_the_time_out_stops_a_tree_that_keeps_forking(tmp_path: Path) -> None:
    # every process forks into new sessions while it runs, up to a depth that protects the host
    script = tmp_path / "breed.py"
    script.write_text(
        "import os, sys, time\n"
        "depth = int(sys.argv[1])\n"
        "while True:\n"
        "    if depth < 6 and os.fork() == 0:\n"
        "        os.setsid(); depth += 1; continue\n"
        "    time.sleep(0.01 if depth < 6 else 600)\n"
        "    if depth >= 6: continue\n"
        "    depth += 1\n"
    )
    seen: list[str] = []

    def random(count: int) -> bytes:
        seen.append(os.urandom(count).hex())  # another may do the same on this host
        return bytes.fromhex(seen[-1])

    result = run_command(
        [sys.executable, str(script), "0"], cwd=tmp_path, timeout=0.6, random=random
    )
    assert result.timed_out
    assert run_pids(seen[0], -1) == set()


def test_a_run_inside_a_run_keeps_the_outer_mark(tmp_path: Path) -> None:
    code = (
        "import sys; from ortet.machines.command import run_command; "
        "print(run_command('echo $ORTET_RUN', cwd='.').stdout)"
    )
    marks = run_command([sys.executable, "-c", code], cwd=tmp_path).stdout.strip().split(":")
    assert len(marks) == 2
    assert len({*marks}) == 2


def test_a_timeout_does_not_kill_processes_with_another_mark(tmp_path: Path) -> None:
    bystander = subprocess.Popen(["sleep", "600"], env={RUN_MARK_VARIABLE: "0123456789abcdef"})
    try:
        assert run_command("sleep 600", cwd=tmp_path, timeout=0.1).timed_out
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def test_an_unprivileged_user_can_kill_its_own() -> None:
    code = (
        "import os; from ortet.machines.command import run_command; "
        "os.setgid(65534); os.setuid(65534); "
        "r = run_command('setsid sleep 600 & echo $!; wait', cwd='/', timeout={}); "
        "print(r.exit_code, r.stdout)"
    )
    for timeout in (0.3, 3, 30):  # a busy host may need longer to start it
        outcome = forked.run(
            [sys.executable, "-c", code.format(timeout)], capture_output=True, text=True, check=True
        )
        exit_code, *pids = outcome.stdout.split()
        assert exit_code == "124"
        if pids:
            break
    (pid,) = pids
    assert not _alive(int(pid))


def test_a_process_whose_first_thread_ended_is_found_and_killed(tmp_path: Path) -> None:
    number = 60 if platform.machine() == "x86_64" else 93  # exit, of one thread
    program = (
        "import ctypes, threading, time\n"
        "threading.Thread(target=time.sleep, args=(600,)).start()\n"
        f"ctypes.CDLL(None).syscall({number}, 0)\n"
    )
    with forked.Popen([sys.executable, "-c", program], start_new_session=True) as process:
        state = Path(f"/proc/{process.pid}/status")

        def is_zombie() -> bool:
            assert process.poll() is None
            return "State:\tZ" in state.read_text()

        eventually(is_zombie)
        assert run_pids("nobody's", process.pid) == {process.pid}
        kill_run("nobody's", process.pid)
        assert run_pids("nobody's", process.pid) == set()
        assert process.wait() == -9
