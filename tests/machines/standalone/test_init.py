"""Pid 1 of a live machine, asked over its socket."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import stat
import struct
import sys
from binascii import a2b_base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.fixtures.waiting import WAIT, eventually
from tests.machines.inits import ENV, Init, Line, pid_one, text

from ortet.machines.standalone import ipc


@pytest.fixture
def line(init: Init) -> Iterator[Line]:
    with init.line() as line:
        line.ask("ps", processes=False)  # it is let in
        yield line


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Init]:
    with pid_one(tmp_path) as init:
        yield init


def alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):  # it may be reaped while we read
        return False


class TestStreams:
    def test_output_comes_in_order_and_each_stream_by_itself(self, line: Line) -> None:
        job = line.start("sh", "-c", "for i in 1 2 3; do echo o$i; echo e$i >&2; done")
        assert line.ask("wait", id=job["id"], wait=WAIT)["code"] == 0
        out = line.ask("read", id=job["id"], stream="stdout", cursor=0)
        err = line.ask("read", id=job["id"], stream="stderr", cursor=0)
        assert a2b_base64(out["data"]) == b"o1\no2\no3\n"
        assert a2b_base64(err["data"]) == b"e1\ne2\ne3\n"
        assert out["eof"] and out["code"] == 0 and out["missed"] == 0

    def test_a_reader_goes_on_at_its_cursor(self, line: Line) -> None:
        job = line.start("printf", "0123456789")
        line.ask("wait", id=job["id"], wait=WAIT)
        first = line.ask("read", id=job["id"], cursor=0, most=4)
        assert a2b_base64(first["data"]) == b"0123" and not first["eof"]
        second = line.ask("read", id=job["id"], cursor=first["cursor"])
        assert a2b_base64(second["data"]) == b"456789" and second["eof"]

    def test_a_late_reader_learns_how_many_bytes_it_missed(self, line: Line) -> None:
        line.start("sh", "-c", "head -c 3000000 /dev/zero; echo end", name="loud")
        line.ask("wait", name="loud", wait=WAIT)
        piece = line.ask("read", name="loud", cursor=100)
        whole = 3_000_000 + len("end\n")
        assert piece["missed"] == whole - (1 << 20) - 100
        last = line.ask("read", name="loud", cursor=whole - 4)
        assert a2b_base64(last["data"]) == b"end\n" and last["missed"] == 0

    def test_a_cursor_beyond_the_end_reads_the_next_output(self, line: Line) -> None:
        job = line.start("sh", "-c", "echo a; read x; echo b", stdin=True)
        line.until(b"a\n", id=job["id"])
        assert line.ask("read", id=job["id"], cursor=1000)["cursor"] == 2

    def test_a_read_waits_for_data_up_to_its_timeout(self, line: Line) -> None:
        job = line.start("sh", "-c", "read x; echo got $x", stdin=True)
        empty = line.ask("read", id=job["id"], cursor=0, wait=0.05)
        assert empty["data"] == "" and empty["code"] is None and not empty["eof"]
        line.send("write", id=job["id"], data=text(b"it\n"))
        line.send("read", id=job["id"], cursor=0, wait=WAIT)
        assert line.receive()["left"] == 0
        assert a2b_base64(line.receive()["data"]) == b"got it\n"

    def test_a_service_shows_both_streams_as_they_came(self, line: Line) -> None:
        script = "echo 1; read x; echo 2 >&2; read x; echo 3"
        job = line.start("sh", "-c", script, name="both", stdin=True)
        for number in (b"1", b"2"):
            line.until(number, stream="output", name="both")
            line.ask("write", id=job["id"], data=text(b"\n"))
        line.until(b"3", stream="output", name="both")
        assert a2b_base64(line.ask("logs", name="both")["data"]) == b"1\n2\n3\n"
        assert a2b_base64(line.ask("logs", name="both", last=2)["data"]) == b"3\n"

    def test_a_write_with_eof_ends_the_input_of_a_job(self, line: Line) -> None:
        job = line.start("sh", "-c", "cat; echo over", stdin=True)
        line.ask("write", id=job["id"], data=text(b"x" * 100), eof=True)
        assert line.until(b"over", id=job["id"]) == b"x" * 100 + b"over\n"

    def test_a_write_of_unread_input_returns_after_its_timeout(
        self, line: Line, init: Init
    ) -> None:
        job = line.start("sleep", "1000", stdin=True)
        reply = line.ask("write", id=job["id"], data=text(b"x" * 3_000_000), wait=0.05)
        assert 0 < reply["left"] < 3_000_000
        with init.line() as other:
            assert other.ask("wait", id=job["id"])["code"] is None

    def test_input_without_a_pipe_is_refused(self, line: Line) -> None:
        job = line.start("cat")
        assert line.ask("write", id=job["id"], data="")["error"] == "no_input"

    def test_output_of_an_ended_run_is_read_while_a_child_holds_the_pipe(self, line: Line) -> None:
        job = line.start("sh", "-c", "sleep 1000 & echo done", kind="run")
        assert line.ask("wait", id=job["id"], wait=WAIT)["code"] == 0
        job = line.start("sh", "-c", "sleep 1000 & echo done")
        line.ask("wait", id=job["id"], wait=WAIT)
        piece = line.ask("read", id=job["id"], cursor=0)
        assert a2b_base64(piece["data"]) == b"done\n"
        assert piece["code"] == 0 and not piece["eof"]

    def test_a_server_left_behind_by_a_run_may_go_on_writing(
        self, line: Line, tmp_path: Path
    ) -> None:
        go, done = tmp_path / "go", tmp_path / "done"
        os.mkfifo(go)
        later = 'read x <"$0"; head -c 300000 /dev/zero; echo alive >"$1"; exec sleep 1000'
        job = line.start("sh", "-c", f"({later}) & echo up", str(go), str(done), kind="run")
        assert follow(line, job["id"])["busy"]
        assert line.ask("read", id=job["id"])["error"] == "no_job"
        go.write_text("go\n")
        eventually(done.exists)

    def test_a_run_waits_for_its_reader_and_loses_nothing(self, line: Line, init: Init) -> None:
        job = line.start("sh", "-c", "head -c 5000000 /dev/zero; echo end", kind="run")
        with init.line() as other:  # which looks at it meanwhile
            assert other.ask("wait", id=job["id"], wait=0.1)["code"] is None
        reply = follow(line, job["id"])
        assert len(reply["stdout"]) == 5_000_004 and reply["stdout"].endswith(b"end\n")

    def test_a_run_whose_reader_went_away_runs_on(self, init: Init, tmp_path: Path) -> None:
        with init.line() as line:
            script = 'head -c 5000000 /dev/zero; touch "$0"; exec sleep 1000'
            line.start("sh", "-c", script, str(tmp_path / "done"), kind="run")
        eventually((tmp_path / "done").exists)

    def test_a_second_reader_of_a_run_takes_no_output_from_the_first(
        self, line: Line, init: Init
    ) -> None:
        job = line.start("sh", "-c", "head -c 3000000 /dev/zero; echo end", kind="run")
        with init.line() as other:
            other.ask("read", id=job["id"], cursor=500_000, wait=WAIT)
        assert len(follow(line, job["id"])["stdout"]) == 3_000_004

    def test_the_reader_of_a_run_may_reconnect(self, init: Init) -> None:
        with init.line() as line:
            job = line.start("sh", "-c", "head -c 5000000 /dev/zero; echo end", kind="run")
            init.pause()  # however long it takes us to be back, it waits no longer than it should
        with init.line() as line:
            line.send("follow", id=job["id"], cursors=[0, 0], wait=WAIT)
            init.go_on()
            assert line.receive()["missed"] == [0, 0]
            assert len(follow(line, job["id"])["stdout"]) == 5_000_004

    def test_a_hundred_megabytes_need_no_more_memory_than_the_ring(
        self, line: Line, init: Init
    ) -> None:
        before = init.memory
        job = line.start("head", "-c", "100000000", "/dev/zero", kind="run")
        total, cursors, ended = 0, [0, 0], False
        while not ended:
            reply = line.ask("follow", id=job["id"], cursors=cursors, wait=WAIT)
            cursors, ended = reply["cursors"], reply["ended"]
            total = cursors[0]
        assert total == 100_000_000
        assert init.memory - before < 8 << 20


def listens(init: Init) -> bool:
    try:
        with init.line():
            return True
    except (FileNotFoundError, ConnectionRefusedError):
        return False


def follow(line: Line, number: int) -> dict[str, Any]:
    """A run to its end, as the hub does it."""
    read = {"stdout": b"", "stderr": b""}
    cursors = [0, 0]
    while True:
        reply = line.ask("follow", id=number, cursors=cursors, wait=WAIT)
        cursors = reply["cursors"]
        assert reply["missed"] == [0, 0]
        for stream in read:
            read[stream] += a2b_base64(reply[stream])
        if reply["ended"]:
            return {**reply, **read}


class TestTerminals:
    def test_a_half_typed_terminal_line_survives_a_snapshot(self, init: Init) -> None:
        with init.line() as line:
            line.start("bash", "--norc", "-i", kind="shell", name="sh", tty=[24, 80])
            line.until(b"$ ", name="sh")
            line.ask("write", name="sh", data=text(b"x=41; echo $((x+"))
            line.until(b"((x+", name="sh")
            assert line.ask("leave") == {}
            assert line.sock.recv(1) == b""
            assert init.connections == 0
        os.kill(init.pid, signal.SIGUSR1)
        with init.line() as line:
            line.ask("write", name="sh", data=text(b"1))\n"))
            assert b"42\r\n" in line.until(b"42", name="sh") + line.until(b"42\r\n", name="sh")

    def test_a_resized_terminal_is_seen_by_its_job(self, line: Line) -> None:
        line.start("bash", "--norc", "-i", kind="shell", name="sh", tty=[24, 80])
        line.until(b"$ ", name="sh")
        line.ask("write", name="sh", data=text(b"stty size\n"))
        line.until(b"24 80", name="sh")
        assert line.ask("resize", name="sh", rows=50, columns=132) == {}
        line.ask("write", name="sh", data=text(b"stty size\n"))
        line.until(b"50 132", name="sh")

    def test_a_shell_gets_its_pty_as_controlling_terminal(self, line: Line) -> None:
        line.start("bash", "--norc", "-i", kind="shell", name="sh", tty=[24, 80])
        line.until(b"$ ", name="sh")
        script = b"trap 'echo c$((1))ght; exit' INT; echo g$((1)); while :; do sleep 0.05; done"
        line.ask("write", name="sh", data=text(b"(" + script + b")\n"))
        line.until(b"g1", name="sh")
        line.ask("write", name="sh", data=text(b"\x03"))
        line.until(b"c1ght\r\n$ ", name="sh")
        line.ask("write", name="sh", eof=True)  # control-D
        assert line.ask("wait", name="sh", wait=WAIT)["code"] == 0
        assert line.ask("read", name="sh", cursor=1 << 20)["eof"]

    def test_a_job_that_lets_go_of_its_terminal_lives_on(self, line: Line) -> None:
        script = "trap '' TTOU; exec <&- >&- 2>&-; sleep 0.2; exec <>/dev/tty >&0 2>&0; echo back"
        line.start("bash", "-c", script, kind="shell", name="sh", tty=[24, 80])

        def is_back() -> bool:
            piece = line.ask("read", name="sh", cursor=0, wait=0.05)
            assert piece["code"] in (None, 0)
            return b"back" in a2b_base64(piece["data"])

        eventually(is_back)

    def test_a_job_without_a_terminal_has_no_terminal_size(self, line: Line) -> None:
        job = line.start("sleep", "1000")
        assert line.ask("resize", id=job["id"], rows=1, columns=1)["error"]


class TestStarting:
    def test_names_of_the_living_are_unique(self, line: Line) -> None:
        job = line.start("sleep", "1000", name="one")
        assert line.start("true", name="one")["error"] == "name_taken"
        line.ask("kill", id=job["id"])
        successor = line.start("echo", "new", name="one")
        assert line.until(b"new", name="one") == b"new\n"
        assert successor["id"] != job["id"]
        assert line.ask("read", id=job["id"])["error"] == "no_job"

    @pytest.mark.parametrize(
        ("changes", "said"),
        [
            ({"argv": ["no-such-program"]}, {"errno": 2, "directory": False}),
            ({"argv": ["/etc/passwd"]}, {"errno": 13, "directory": False}),
            ({"cwd": "/no/such"}, {"errno": 2, "directory": True}),
            ({"cwd": "/dev/null"}, {"errno": 20, "directory": True}),
            ({"argv": ["echo", "a\0b"]}, {"bad": "embedded null byte"}),
            ({"env": {"A=B": "c"}}, {"bad": "illegal environment variable name"}),
            ({"kind": "party"}, {"bad": "a job is one of run, service, shell"}),
            ({"argv": []}, {}),
            ({"argv": None}, {}),
            ({"env": None}, {}),
            ({"tty": [24]}, {}),
            ({"tty": "wide"}, {}),
        ],
    )
    def test_a_failed_start_leaves_no_job_and_no_descriptor(
        self, line: Line, init: Init, changes: dict[str, Any], said: dict[str, Any]
    ) -> None:
        before = init.descriptors
        reply = line.start("true", **changes)
        assert "id" not in reply
        assert said.items() <= reply.items()
        assert init.descriptors == before
        assert follow(line, line.start("true", kind="run")["id"])["code"] == 0

    def test_two_hundred_runs_leave_no_descriptor_and_no_zombie(
        self, line: Line, init: Init
    ) -> None:
        before = init.descriptors
        for number in range(200):
            assert (
                follow(line, line.start("sh", "-c", f"exit {number}", kind="run")["id"])["code"]
                == number
            )
        assert init.descriptors == before
        assert init.children == []
        assert line.ask("ps", processes=False)["jobs"] == []

    def test_only_the_newest_ended_jobs_keep_their_output(self, line: Line) -> None:
        for number in range(70):
            job = line.start("echo", str(number), name=f"job-{number}")
            line.ask("wait", id=job["id"], wait=WAIT)
        names = [job["name"] for job in line.ask("ps", processes=False)["jobs"]]
        assert len(names) <= 66 and names[-1] == "job-69"
        assert line.until(b"69", name="job-69") == b"69\n"

    def test_a_command_gets_signals_as_they_are_by_default(self, line: Line) -> None:
        read = "grep -E 'Sig(Ign|Blk|Cgt)' /proc/self/status"
        found = follow(line, line.start("sh", "-c", read, kind="run")["id"])["stdout"]
        ignored = int(found.split(b"SigIgn:")[1].split()[0], 16)
        blocked = int(found.split(b"SigBlk:")[1].split()[0], 16)
        assert blocked == 0
        for number in (signal.SIGPIPE, signal.SIGCHLD, signal.SIGUSR1, signal.SIGINT):
            assert not ignored >> (number - 1) & 1

    def test_a_command_is_not_exempt_from_the_oom_killer(self, line: Line) -> None:
        job = line.start("cat", "/proc/self/oom_score_adj", kind="run")
        assert follow(line, job["id"])["stdout"] == b"0\n"


class TestKilling:
    @pytest.mark.root
    def test_a_job_dies_with_daemonised_grandchildren(self, machine: Init, tmp_path: Path) -> None:
        hide = "setsid env -i sh -c 'sleep 1000 & sleep 1000' >/dev/null 2>&1 &"
        with machine.line() as line:
            job = line.start("sh", "-c", f"{hide} {hide} echo up; sleep 1000", kind="run")
            line.until(b"up", id=job["id"])
            eventually(lambda: len(line.ask("ps")["processes"]) == 8)
            assert line.ask("kill", id=job["id"])["code"] == -9
            assert line.ask("ps")["processes"] == []
            assert line.ask("wait", id=job["id"]) == {"code": -9, "busy": False}

    @pytest.mark.root
    def test_killing_a_job_leaves_other_jobs_running(self, machine: Init) -> None:
        with machine.line() as line:
            line.start("sh", "-c", "setsid env -i sleep 1000 & sleep 1000", name="other")
            eventually(lambda: len(line.ask("ps")["processes"]) == 3)
            job = line.start("sh", "-c", "sleep 1000; true", kind="run")
            line.ask("kill", id=job["id"])
            assert len(line.ask("ps")["processes"]) == 3

    def test_kill_finds_a_process_in_another_session_by_its_mark(
        self, line: Line, tmp_path: Path
    ) -> None:
        note = tmp_path / "pid"
        script = f"setsid sh -c 'echo $$ >{note}.new; mv {note}.new {note}; exec sleep 1000' &"
        mark = os.urandom(8).hex()  # other tests share our pids
        env = {**ENV, "ORTET_RUN": mark}
        job = line.start("sh", "-c", script, env=env, mark=mark)
        eventually(note.exists)
        pid = int(note.read_text())
        # while it is replaced by exec, a process has no environment to be found by
        eventually(lambda: Path(f"/proc/{pid}/comm").read_text() == "sleep\n")
        line.ask("kill", id=job["id"])
        assert not alive(pid)

    def test_a_signal_reaches_the_group_or_the_leader(self, line: Line) -> None:
        child = "(trap 'echo child' USR1; echo up; while :; do sleep 0.05; done)"
        script = f"trap 'echo leader' USR1; {child} & while :; do wait; done"
        job = line.start("bash", "-c", script)
        line.until(b"up", id=job["id"])
        line.ask("signal", id=job["id"], signal=int(signal.SIGUSR1))
        assert b"child" not in line.until(b"leader", id=job["id"])
        line.ask("signal", id=job["id"], signal=int(signal.SIGUSR1), group=True)
        line.until(b"child", id=job["id"])
        line.ask("kill", id=job["id"])
        assert line.ask("signal", id=job["id"], signal=9) == {"sent": False, "code": -9}

    def test_other_requests_are_answered_while_jobs_are_killed(
        self, line: Line, init: Init
    ) -> None:
        jobs = [line.start("sleep", "1000")["id"] for _ in range(20)]
        for job in jobs:
            line.send("kill", id=job)
        with init.line() as other:
            assert "jobs" in other.ask("ps", processes=False)
        assert [line.receive()["code"] for _ in jobs] == [-9] * 20


class TestMachine:
    @pytest.mark.root
    def test_orphans_are_reaped(self, machine: Init) -> None:
        with machine.line() as line:
            job = line.start(
                "sh", "-c", "for i in 1 2 3 4 5; do (true & true & ) & done", kind="run"
            )
            follow(line, job["id"])
            eventually(lambda: machine.children == [])
            eventually(lambda: line.ask("state")["busy"] is False)

    @pytest.mark.root
    def test_a_listing_says_which_job_a_process_belongs_to(self, machine: Init) -> None:
        with machine.line() as line:
            env = {**ENV, "ORTET_RUN": "cafe"}
            deep = "(setsid sleep 1000 &) ; sleep 1000; true"
            job = line.start("sh", "-c", deep, env=env, mark="cafe", name="deep", declared=True)
            other = line.start("sleep", "2000")
            expected = [
                (["sh", "-c"], job["id"]),
                (["sleep", "1000"], job["id"]),
                (["sleep", "1000"], job["id"]),
                (["sleep", "2000"], other["id"]),
            ]

            def owners() -> list[tuple[list[str], int]]:
                found = line.ask("ps")["processes"]
                return sorted((one["cmdline"][:2], one["job"]) for one in found)

            eventually(lambda: owners() == expected)
            told = line.ask("ps")
            one = told["processes"][0]
            assert one["rss"] > 0 and one["started"] > 1e9 and one["state"] in "RSD"
            listed = {each["name"]: each for each in told["jobs"]}["deep"]
            assert listed["declared"] and listed["cwd"] == "/" and listed["argv"][0] == "sh"

    @pytest.mark.root
    def test_state_lists_the_files_mapped_for_writing(self, machine: Init, tmp_path: Path) -> None:
        (tmp_path / "file").write_bytes(b"x" * 8192)
        script = (
            "import mmap, time; f = open('file', 'r+b'); m = mmap.mmap(f.fileno(), 0);"
            "print('up', flush=True); time.sleep(1000)"
        )
        with machine.line() as line:
            job = line.start(sys.executable, "-c", script, cwd=str(tmp_path))
            line.until(b"up", id=job["id"])
            assert line.ask("state", place=str(tmp_path)) == {"busy": True, "mapped": ["file"]}

    @pytest.mark.root
    def test_a_command_cannot_mount(self, machine: Init) -> None:
        with machine.line() as line:
            job = line.start("mount", "-t", "tmpfs", "none", "/run", kind="run")
            assert follow(line, job["id"])["code"] != 0

    @pytest.mark.root
    def test_a_process_inside_the_machine_may_not_use_the_socket(self, machine: Init) -> None:
        script = (
            "import socket; s = socket.socket(socket.AF_UNIX); s.connect('/run/ortet/init.sock')"
        )
        with machine.line() as line:
            job = line.start(sys.executable, "-c", f"{script}; print(s.recv(1))", kind="run")
            assert follow(line, job["id"])["stdout"] == b"b''\n"
        where = machine.path.parent.stat()
        assert stat.S_IMODE(where.st_mode) == 0o700

    @pytest.mark.root
    def test_pid_1_holds_no_descriptor_of_the_host(self, machine: Init) -> None:
        def held() -> list[str]:
            return sorted(link.partition(":")[0] for link in machine.held)

        # its wake-up and its socket; the descriptor to report on goes right after the report
        eventually(lambda: held() == ["/dev/null"] * 3 + ["pipe", "pipe", "socket"])

    @pytest.mark.root
    def test_a_copy_becomes_a_machine_of_its_own(self, machine: Init, tmp_path: Path) -> None:
        system, own = tmp_path / "etc/ortet/on-fork.d", tmp_path / "ws/.ortet-hooks/on-fork"
        for place, name, script in (
            (system, "20-b", "cat /etc/machine-id; hostname"),
            (system, "10-a", "echo first; echo wrong >&2; exit 3"),
            (own, "x", "pwd; exec sleep 1000"),
            (own, "y", "exit 0"),
        ):
            place.mkdir(parents=True, exist_ok=True)
            (place / name).write_text(f"#!/bin/sh\n{script}\n")
            (place / name).chmod(0o755)
        (own / "notes").write_text("not executable")
        for seconds in (0.5, 5, 25):  # a busy host may need longer for those that end
            with machine.line() as line:
                reply = line.ask(
                    "renew",
                    hooks="on-fork",
                    machine_id="0" * 32,
                    hostname="copy-7",
                    entropy=text(os.urandom(32)),
                    place=str(tmp_path / "ws"),
                    timeout=seconds,
                )
            late = [Path(one["path"]).name for one in reply["hooks"] if one["timed_out"]]
            if late == ["x"] and reply["hooks"][2]["output"]:
                break
        told = [(Path(one["path"]).name, one["code"], one["output"]) for one in reply["hooks"]]
        assert told == [
            ("10-a", 3, "first\nwrong\n"),
            ("20-b", 0, "0" * 32 + "\ncopy-7\n"),
            ("x", -9, f"{tmp_path}/ws\n"),
            ("y", 0, ""),
        ]
        assert [one["timed_out"] for one in reply["hooks"]] == [False, False, True, False]

    def test_renew_outside_of_a_machine_is_refused(self, line: Line) -> None:
        assert line.ask("renew", hooks="on-fork")["bad"]


class TestPeers:
    def test_a_slow_reader_does_not_hold_up_the_others(self, init: Init) -> None:
        with init.line() as slow, init.line() as other:
            job = slow.start("head", "-c", "1000000", "/dev/zero")
            slow.ask("wait", id=job["id"], wait=WAIT)
            for _ in range(20):  # and it takes no answer
                slow.send("read", id=job["id"], cursor=0, most=1 << 20)
            assert follow(other, other.start("echo", "hi", kind="run")["id"])["stdout"] == b"hi\n"
            assert len(a2b_base64(slow.receive()["data"])) == 1_000_000

    def test_a_long_wait_does_not_hold_up_the_others(self, init: Init) -> None:
        with init.line() as patient, init.line() as other:
            job = patient.start("sh", "-c", "read x", stdin=True)
            patient.send("wait", id=job["id"], wait=WAIT)
            other.ask("write", id=job["id"], data=text(b"x\n"))
            assert patient.receive()["code"] == 0

    @pytest.mark.parametrize(
        "junk",
        [
            b"GET / HTTP/1.1\r\n\r\n",
            b"\xff" * 100,
            struct.pack("!I", 4) + b"{}}}",
            struct.pack("!I", 2) + b"[]",
            struct.pack("!I", 4) + b"\xff\xfe\xfd\xfc",
            struct.pack("!I", 200_000) + b"[" * 200_000,
        ],
    )
    def test_a_peer_that_sends_invalid_messages_is_disconnected(
        self, init: Init, junk: bytes
    ) -> None:
        with init.line() as bad, init.line() as good:
            bad.sock.sendall(junk)
            with contextlib.suppress(ConnectionResetError):
                assert bad.sock.recv(1) == b""
            assert "jobs" in good.ask("ps", processes=False)

    @pytest.mark.parametrize(
        "request_",
        [{}, {"do": 7}, {"do": ["x"]}, {"do": "read"}, {"do": "read", "id": [1]}, {"do": "start"}],
    )
    def test_a_malformed_request_gets_an_error_reply(
        self, line: Line, request_: dict[str, Any]
    ) -> None:
        ipc.send(line.sock, request_)
        assert {"bad", "error"} & line.receive().keys()
        assert "jobs" in line.ask("ps", processes=False)

    def test_wrong_types_are_answered(self, line: Line) -> None:
        job = line.start("cat", stdin=True)["id"]
        for verb, more in (
            ("read", {"cursor": "x"}),
            ("read", {"stream": "stdin"}),
            ("read", {"wait": "long"}),
            ("write", {"data": 7}),
            ("write", {"data": "a"}),
            ("signal", {"signal": 1000}),
            ("resize", {}),
            ("follow", {"cursors": [0]}),
        ):
            reply = line.ask(verb, id=job, **more)
            assert "bad" in reply or "error" in reply, (verb, more)

    def test_a_wait_of_any_length_is_accepted(self, line: Line, init: Init) -> None:
        job = line.start("sh", "-c", "read x", stdin=True)
        with init.line() as other:
            assert line.ask("wait", id=job["id"], wait=float("nan"))["code"] is None
            for wait in (1e9, 1e300, float("inf")):
                line.send("wait", id=job["id"], wait=wait)
            other.ask("ps", processes=False)
            other.ask("write", id=job["id"], eof=True)
        assert [line.receive()["code"] for _ in range(3)] == [1, 1, 1]

    def test_a_connection_that_breaks_in_the_middle_of_a_message(self, init: Init) -> None:
        before = init.descriptors
        for _ in range(20):
            with init.line() as line:
                line.sock.sendall(struct.pack("!I", 1000) + b'{"do": ')
        with init.line() as line:
            assert "jobs" in line.ask("ps", processes=False)
        eventually(lambda: init.descriptors == before)

    def test_a_peer_that_disconnects_while_waiting_leaves_no_descriptor(self, init: Init) -> None:
        before = init.descriptors
        with init.line() as line:
            job = line.start("sleep", "1000")
            line.send("wait", id=job["id"], wait=1000)
        with init.line() as line:
            line.ask("kill", id=job["id"])
            line.ask("forget", id=job["id"])
        eventually(lambda: init.descriptors == before)

    def test_leave_answers_and_disconnects_all_peers_until_welcome(self, init: Init) -> None:
        with init.line() as waiting, init.line() as idle, init.line() as leaving:
            job = waiting.start("sh", "-c", "echo hi; exec sleep 1000", kind="run")
            waiting.until(b"hi", id=job["id"])
            waiting.send("follow", id=job["id"], cursors=[3, 0], wait=1000)
            leaving.ask("ps", processes=False)  # by now it has seen what came before
            assert leaving.ask("leave") == {}
            assert waiting.receive()["ended"] is False
            assert waiting.sock.recv(1) == idle.sock.recv(1) == leaving.sock.recv(1) == b""
            assert init.connections == 0
        with init.line() as early:
            early.send("ps", processes=False)
            assert init.connections == 0
            early.sock.settimeout(0.05)
            with pytest.raises(TimeoutError):
                early.receive()
            os.kill(init.pid, signal.SIGUSR1)
            early.sock.settimeout(WAIT)
            assert [one["id"] for one in early.receive()["jobs"]] == [job["id"]]

    def test_a_run_waits_for_its_reader_across_a_snapshot(self, init: Init) -> None:
        with init.line() as line:
            job = line.start("sh", "-c", "head -c 5000000 /dev/zero; echo end", kind="run")
            line.ask("leave")
        os.kill(init.pid, signal.SIGUSR1)
        with init.line() as line:
            assert len(follow(line, job["id"])["stdout"]) == 5_000_004

    def test_a_removed_socket_is_created_again(self, init: Init) -> None:
        init.path.unlink()
        os.kill(init.pid, signal.SIGUSR1)
        eventually(lambda: listens(init))  # a moment after it is there
        with init.line() as line:
            assert "jobs" in line.ask("ps", processes=False)

    def test_descriptors_sent_with_a_request_are_closed(self, init: Init) -> None:
        with init.line() as line:
            line.ask("ps", processes=False)
            before = init.descriptors
            with socket.socket() as sock:
                ipc.send(line.sock, {"do": "ps", "processes": False}, [sock.fileno()])
            line.receive()
            assert init.descriptors == before
