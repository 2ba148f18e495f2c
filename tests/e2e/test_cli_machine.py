"""Live machines of the host agent: started, used, attached to, killed and started again."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import socket
import struct
import subprocess
import termios
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.fixtures.commands import Ortet
from tests.fixtures.waiting import WAIT, eventually

import ortet as library

pytestmark = [pytest.mark.criu, pytest.mark.files({"page": "first\n"})]

_TICKER = "import time\nwhile True: print('tick', flush=True); time.sleep(0.05)"


@pytest.fixture
def live(ortet: Ortet, work: Path) -> Iterator[Ortet]:
    """A directory with a private machine that lives, called proj-live."""
    ortet.env["ORTET_AGENT"] = "on"
    for name in ("ORTET_CRIU",):
        if name in os.environ:
            ortet.env[name] = os.environ[name]
    ortet("init", cwd=work)
    ortet("commit", "-m", "first", cwd=work)
    ortet("start", cwd=work)
    yield ortet
    ortet("agent", "stop", "--force", cwd=work)


def machines(ortet: Ortet, work: Path) -> dict[str, Any]:
    return {one["name"]: one for one in ortet.json("ps", cwd=work)}


def test_a_program_keeps_running_between_commands(live: Ortet, work: Path) -> None:
    assert machines(live, work)["proj-live"]["jobs"] == []
    live("spawn", "ticker", "--", "python3", "-c", _TICKER, cwd=work)
    one = machines(live, work)["proj-live"]
    assert [job["name"] for job in one["jobs"]] == ["ticker"]
    assert one["state"] == "live" and one["memory"] > 0 and one["age"] >= 0
    eventually(lambda: "tick\ntick\n" in live("logs", "ticker", cwd=work).out)
    done = live("run", "-w", "proj-live", "--", "sh", "-c", "echo hi; exit 3", cwd=work, code=3)
    assert done.out == "hi\n"
    assert live.kind("spawn", "ticker", "--", "true", cwd=work, code=5) == "name_taken"
    assert live.kind("logs", "nobody", cwd=work, code=4) == "no_job"


def test_the_directory_stays_as_it_is_until_it_lands(live: Ortet, work: Path) -> None:
    live("run", "-w", "proj-live", "echo second > page", cwd=work)
    assert (work / "page").read_text() == "first\n"
    status = live.json("status", "-w", "proj-live", cwd=work)
    assert [change["path"] for change in status["changes"]] == ["page"]
    live("land", "proj-live", cwd=work)  # done where the machine is
    assert (work / "page").read_text() == "second\n"


def test_programs_continue_after_stop_and_start(live: Ortet, work: Path) -> None:
    counter = "import time\nn = 0\nwhile True: n += 1; print(n, flush=True); time.sleep(0.02)"
    live("spawn", "counter", "--", "python3", "-c", counter, cwd=work)
    eventually(lambda: "\n5\n" in live("logs", "counter", cwd=work).out)
    live("stop", "proj-live", cwd=work)
    assert machines(live, work) == {}
    assert live.kind("logs", "counter", cwd=work, code=4) == "not_live"
    live("start", "proj-live", cwd=work)
    assert machines(live, work)["proj-live"]["engine"] == "criu"  # it carries processes
    said = [int(line) for line in live("logs", "counter", cwd=work).out.split()]
    assert said == list(range(1, len(said) + 1)) and len(said) >= 5
    live("verify", cwd=work)


def test_forks_of_a_machine_run_and_keep_their_own_files(live: Ortet, work: Path) -> None:
    live("spawn", "sleeper", "--", "sleep", "1000", cwd=work)
    assert machines(live, work)["proj-live"]["engine"] == "criu"  # it carries processes
    live("fork", "-w", "proj-live", "-n", "2", cwd=work)
    # on a busy host a machine may be "silent": it answers `ps` too late
    eventually(lambda: {one["state"] for one in machines(live, work).values()} == {"live"})
    found = machines(live, work)
    assert sorted(found) == ["proj-live", "proj-live/1", "proj-live/2"]
    assert all(one["jobs"][0]["name"] == "sleeper" for one in found.values())
    live("run", "-w", "proj-live/1", "echo mine > page", cwd=work)
    assert live("run", "-w", "proj-live/2", "cat page", cwd=work).out == "first\n"
    live("rm", "proj-live/1", cwd=work)
    assert sorted(machines(live, work)) == ["proj-live", "proj-live/2"]
    back = work.with_name("back")
    live("restore", "proj-live/1", "--to", str(back), cwd=work)  # it was committed first
    assert (back / "page").read_text() == "mine\n"


def test_a_dead_machine_is_listed_and_can_be_started_again(live: Ortet, work: Path) -> None:
    live("spawn", "sleeper", "--", "sleep", "1000", cwd=work)
    live("commit", "-w", "proj-live", "-m", "with a sleeper", cwd=work)
    live("run", "-w", "proj-live", "echo later > page", cwd=work)
    before = machines(live, work)["proj-live"]
    told = live.json("agent", "status", cwd=work)
    pids = [told["pid"], *(worker["pid"] for worker in told["workers"])]
    fds = [os.pidfd_open(pid) for pid in (*pids, before["pid"])]
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    for fd in fds:  # the machine dies with them
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        assert poll.poll(WAIT * 1000)
        os.close(fd)
    dead = machines(live, work)["proj-live"]
    assert dead["state"] == "dead" and dead["restore"] == "ortet start proj-live"
    assert dead["head"] == live.json("log", "proj-live", cwd=work)[0]["oid"]
    doctor = live.json("doctor", "--clean", cwd=work)
    assert {one["what"] for one in doctor["leftovers"]} <= {"socket", "stage", "group"}
    live("start", "proj-live", cwd=work)
    found = machines(live, work)["proj-live"]
    assert [job["name"] for job in found["jobs"]] == ["sleeper"]
    assert live("run", "-w", "proj-live", "cat page", cwd=work).out == "first\n"
    kept = live.json("log", "HEAD@{1}", "-w", "proj-live", cwd=work)[0]
    assert kept["message"] == "before restore"  # what it had changed since is not lost


def test_a_killed_machine_keeps_its_files_and_rm_removes_it(live: Ortet, work: Path) -> None:
    live("run", "-w", "proj-live", "echo later > page", cwd=work)
    live("kill", "proj-live", cwd=work)
    assert machines(live, work) == {}
    live("start", "proj-live", cwd=work)
    assert live("run", "-w", "proj-live", "cat page", cwd=work).out == "later\n"
    assert live.kind("rm", "proj", cwd=work, code=4) == "not_private"
    live("rm", "--force", "proj-live", cwd=work)
    assert live.kind("run", "-w", "proj-live", "true", cwd=work, code=4) == "no_workspace"


def test_agent_stop_is_refused_while_machines_run(live: Ortet, work: Path) -> None:
    assert live.kind("agent", "stop", cwd=work, code=5) == "machines_live"
    assert "proj-live" in machines(live, work)
    assert live.json("doctor", cwd=work)["agent"]["running"]


def test_start_without_an_agent_is_refused(live: Ortet, work: Path) -> None:
    done = live("--json", "start", "x", cwd=work, code=4, env={"ORTET_AGENT": "off"})
    assert done.error["kind"] == "no_workspace"
    live("kill", "proj-live", cwd=work)
    done = live("--json", "start", "proj-live", cwd=work, code=9, env={"ORTET_AGENT": "off"})
    assert done.error["kind"] == "agent_off"


def test_exposed_port_reaches_the_machine(live: Ortet, work: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = ("python3", "-m", "http.server", str(port))
    live("spawn", "web", "--", *words, cwd=work)
    at = live.json("expose", str(port), cwd=work)["at"]

    def answers() -> bool:
        try:
            with socket.create_connection(("127.0.0.1", at), 5) as sock:
                sock.sendall(b"GET /page HTTP/1.0\r\n\r\n")
                return sock.makefile("rb").read().endswith(b"first\n")
        except OSError:
            return False

    eventually(answers)
    assert live.kind("expose", "70000", cwd=work, code=2) == "bad_port"


def test_cp_copies_files_into_and_out_of_a_machine(live: Ortet, work: Path, tmp_path: Path) -> None:
    (tmp_path / "in" / "deep").mkdir(parents=True)
    (tmp_path / "in" / "deep" / "f").write_bytes(bytes(range(256)) * 1000)
    (tmp_path / "in" / "link").symlink_to("/etc/hostname")
    live("cp", str(tmp_path / "in"), "proj-live:there", cwd=work)
    done = live("run", "-w", "proj-live", "find there | sort", cwd=work)
    assert done.out.split() == ["there", "there/deep", "there/deep/f", "there/link"]
    live("cp", "proj-live:there/deep", str(tmp_path / "out"), cwd=work)
    assert (tmp_path / "out" / "f").read_bytes() == bytes(range(256)) * 1000
    live("cp", "proj-live:page", ".", cwd=tmp_path, env={"ORTET_URL": str(live.store)})
    assert (tmp_path / "page").read_text() == "first\n"
    live("cp", str(work / "page"), "proj-live:/tmp/other", cwd=work)
    assert live("run", "-w", "proj-live", "cat /tmp/other", cwd=work).out == "first\n"
    assert live.kind("cp", "proj-live:none", ".", cwd=work, code=4) == "no_file"
    assert live.kind("cp", "a", "b", cwd=work, code=2) == "bad_usage"
    live("run", "-w", "proj-live", "ln -s /etc/hosts evil", cwd=work)
    assert live.kind("cp", "proj-live:evil", str(tmp_path / "got"), cwd=work, code=5)
    assert not (tmp_path / "got").is_symlink()


class Terminal:
    """`ortet attach` at a terminal of its own."""

    def __init__(self, ortet: Ortet, *args: str, cwd: Path) -> None:
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
        self.before = termios.tcgetattr(theirs)
        self.fd, self.theirs = ours, theirs
        self.process = subprocess.Popen(
            ortet.argv("attach", *args),
            cwd=cwd,
            env=ortet.env,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        self.seen = b""

    def expect(self, text: bytes) -> None:
        while text not in self.seen:
            ready, _, _ = select.select([self.fd], [], [], WAIT)
            assert ready, f"{text!r} did not come: {self.seen!r}"
            self.seen += os.read(self.fd, 4096)
        self.seen = self.seen.partition(text)[2]

    def write(self, data: bytes) -> None:
        os.write(self.fd, data)

    def end(self) -> int:
        """It has ended, and the terminal is as it was."""
        code = self.process.wait(WAIT)
        assert termios.tcgetattr(self.theirs) == self.before
        os.close(self.fd)
        os.close(self.theirs)
        return code


def test_an_attached_shell_can_be_left_and_attached_again(live: Ortet, work: Path) -> None:
    first = Terminal(live, "proj-live", cwd=work)
    first.expect(b"leaves it running")
    first.expect(b"# ")
    first.write(b"x=4$((1+1)); stty size; echo got-$x\r")
    first.expect(b"30 100")
    first.expect(b"got-42")
    fcntl.ioctl(first.fd, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
    first.process.send_signal(signal.SIGWINCH)
    first.write(b"until stty size | grep -q '40 120'; do sleep 0.02; done; echo resi''zed\r")
    first.expect(b"resized")
    first.write(b"\x1d")
    first.expect(b"comes back")
    assert first.end() == 0
    live("commit", "-w", "proj-live", "-m", "with a shell", cwd=work)
    second = Terminal(live, "proj-live", cwd=work)
    second.expect(b"# ")
    second.write(b"echo again-$x\r")
    second.expect(b"again-42")
    live("commit", "-w", "proj-live", "-m", "while somebody is at it", cwd=work)
    second.write(b"echo still-$x\r")
    second.expect(b"still-42")
    second.write(b"\r~.")
    second.expect(b"comes back")
    assert second.end() == 0
    third = Terminal(live, "proj-live", cwd=work)
    third.expect(b"# ")
    third.write(b"exit 5\r")
    third.expect(b"ended with 5")
    assert third.end() == 5


def test_commands_run_while_the_machine_is_committed(live: Ortet, work: Path) -> None:
    """No connection is on its way while the machine is frozen."""
    live("spawn", "sleeper", "--", "sleep", "1000", cwd=work)

    def runs(number: int) -> list[str]:
        words = ("run", "-w", "proj-live", f"echo {number}")
        return [live(*words, cwd=work).out for _ in range(5)]

    with ThreadPoolExecutor(2) as pool:
        outs = [pool.submit(runs, number) for number in range(2)]
        for number in range(5):
            live("commit", "-w", "proj-live", "-m", f"beside {number}", cwd=work)
        assert [out.result() for out in outs] == [["0\n"] * 5, ["1\n"] * 5]
    live("verify", cwd=work)


def test_a_secret_is_passed_to_one_command_only(live: Ortet, work: Path) -> None:
    live("secret", "set", "TOKEN_A", cwd=work, stdin=b"a-value-nobody-guesses")
    words = ("run", "-w", "proj-live", "--secret", "TOKEN_A", "echo ${#TOKEN_A}")
    assert live(*words, cwd=work).out == "22\n"
    done = live("run", "-w", "proj-live", "echo ${TOKEN_A:-unset}", cwd=work)
    assert done.out == "unset\n"
    live("run", "-w", "proj-live", "--secret", "TOKEN_A", "echo $TOKEN_A > leak", cwd=work)
    assert live.kind("commit", "-w", "proj-live", cwd=work, code=6) == "secret_found"


def test_attach_needs_a_terminal(live: Ortet, work: Path) -> None:
    assert live.kind("attach", cwd=work, code=2) == "no_terminal"


def test_logs_are_followed_to_the_end(live: Ortet, work: Path) -> None:
    live(
        "spawn", "short", "--", "sh", "-c", "for i in 1 2 3; do echo $i; sleep 0.1; done", cwd=work
    )
    assert live("logs", "short", "--follow", cwd=work).out == "1\n2\n3\n"


def test_doctor_clean_removes_processes_left_by_a_machine(live: Ortet, work: Path) -> None:
    """Processes among mounts of a home that nobody has open."""
    live("kill", "proj-live", cwd=work)
    with library.open(live.store) as hub:
        home = live.store / "local" / "machines" / hub.workspaces.table.need("proj-live").machine
    for name in ("up", "work", "at"):
        (home / name).mkdir()
    options = f"lowerdir=/etc,upperdir={home}/up,workdir={home}/work"
    program = f"mount -t overlay x -o {options} {home}/at && echo ready && exec sleep 1000"
    argv = ["unshare", "-m", "sh", "-c", program]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as left:
        assert left.stdout is not None
        assert left.stdout.readline() == b"ready\n"
        try:
            wanted = {"what": "process", "path": str(home), "pid": left.pid}
            # the processes of the machine that was killed let go of its lock one after the other
            eventually(lambda: wanted in live.json("doctor", cwd=work)["leftovers"])
            live("doctor", "--clean", cwd=work)
            assert left.wait(WAIT) == -9
        finally:
            left.kill()
    assert live.json("doctor", cwd=work)["leftovers"] == []


def test_start_chooses_and_stores_the_network(live: Ortet, work: Path) -> None:
    names = ("run", "-w", "proj-live", "--", "cat", "/etc/resolv.conf")
    assert "10.0.2.3" not in live(*names, cwd=work).out
    assert live.kind("start", "--network", "outbound", cwd=work, code=5) == "already_live"
    live("stop", "proj-live", cwd=work)
    live("start", "--network", "outbound", cwd=work)
    assert "10.0.2.3" in live(*names, cwd=work).out
    live("start", "--network", "outbound", cwd=work)  # as it is
    live("stop", "proj-live", cwd=work)
    live("start", "proj-live", cwd=work)  # which is remembered
    assert "10.0.2.3" in live(*names, cwd=work).out
