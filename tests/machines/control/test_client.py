"""The hub's end of a live machine: runs as on the host, shells and services that outlive it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.fixtures.waiting import WAIT, eventually
from tests.machines.inits import ENV, Init, pid_one

from ortet.errors import Conflict, Invalid, NotFound, Refused, Unavailable
from ortet.machines.base import Result
from ortet.machines.command import run_command
from ortet.machines.control.client import InitClient


@pytest.fixture
def inside(init: Init) -> Iterator[InitClient]:
    inside = InitClient(init.pid, path=init.path)
    yield inside
    inside.close()


def run(inside: InitClient, script: str, **more: object) -> Result:
    return inside.run(["sh", "-c", script], env=ENV, cwd="/", **more)  # type: ignore[arg-type]


class TestRun:
    @pytest.mark.parametrize(
        "script",
        [
            "echo out; echo err >&2; exit 3",
            "kill -9 $$",
            "kill -TERM $$",
            "exec no-such-program",
            "printf '\\377\\376'; true",
            "sleep 1000 & echo done",
            "head -c 300000 /dev/zero | tr '\\0' x; echo end",
        ],
    )
    def test_a_run_in_a_machine_returns_what_it_returns_on_the_host(
        self, inside: InitClient, script: str
    ) -> None:
        here = run_command(script, cwd="/")
        there = inside.run(["/bin/sh", "-c", script], env=ENV, cwd="/")
        assert (there.exit_code, there.stdout) == (here.exit_code, here.stdout)
        assert there.stderr == here.stderr and not there.timed_out

    @pytest.mark.parametrize("argv", [["no-such-program"], ["/etc/passwd"], ["/no/such"]])
    def test_a_command_that_cannot_start_returns_the_shell_exit_code_and_message(
        self, inside: InitClient, argv: list[str]
    ) -> None:
        here = run_command(argv, cwd="/")
        there = inside.run(argv, env=ENV, cwd="/")
        assert (there.exit_code, there.stderr) == (here.exit_code, here.stderr)

    def test_a_bad_command_or_directory_is_refused(self, inside: InitClient) -> None:
        for argv, env, cwd, error, kind in (
            (["a\0b"], ENV, "/", Invalid, "bad_command"),
            (["true"], {"A=B": "x"}, "/", Invalid, "bad_command"),
            (["true"], ENV, "/no/such", NotFound, "no_directory"),
            (["true"], ENV, "/dev/null", Invalid, "not_a_directory"),
        ):
            with pytest.raises(error) as caught:
                inside.run(argv, env=env, cwd=cwd)
            assert caught.value.kind == kind

    def test_a_timeout_kills_every_process_the_run_started(
        self, inside: InitClient, tmp_path: Path
    ) -> None:
        note = tmp_path / "pid"
        script = f"echo before; setsid sh -c 'echo $$ >{note}; exec sleep 1000' & exec sleep 1000"
        mark = os.urandom(8).hex()  # other tests share our pids
        env = {**ENV, "ORTET_RUN": mark}
        argv = ["sh", "-c", script]
        note.touch()
        for timeout in (1, 5, 25):  # a busy host may need longer to start all of it
            result = inside.run(argv, env=env, cwd="/", timeout=timeout, mark=mark)
            assert (result.exit_code, result.timed_out) == (124, True)
            assert not inside.busy
            if result.stdout and note.read_text():
                break
        assert result.stdout == "before\n"
        assert not Path(f"/proc/{int(note.read_text())}").exists()

    def test_a_timeout_of_zero_expires_at_once(self, inside: InitClient) -> None:
        assert run(inside, "sleep 1000", timeout=0).timed_out
        assert inside.jobs() == []

    def test_input_is_fed_while_output_is_read(self, inside: InitClient) -> None:
        data = os.urandom(3_000_000).hex().encode()
        assert run(inside, "cat", stdin=data).stdout.encode() == data
        assert run(inside, "cat", stdin=b"").stdout == ""
        assert run(inside, "true", stdin=data).exit_code == 0
        assert run(inside, "head -c 5", stdin=data).stdout.encode() == data[:5]
        assert run(inside, "exec <&-; sleep 0.1; echo on", stdin=data).stdout == "on\n"

    def test_output_is_passed_on_as_it_is_written(self, inside: InitClient, tmp_path: Path) -> None:
        go = tmp_path / "go"
        os.mkfifo(go)
        seen: list[tuple[str, bytes]] = []

        def output(stream: str, data: bytes) -> None:
            seen.append((stream, data))
            if data == b"first\n":
                go.write_text("go\n")

        assert run(inside, f"echo first; read x <{go}; echo $x >&2", output=output).exit_code == 0
        assert seen == [("stdout", b"first\n"), ("stderr", b"go\n")]

    def test_a_listener_that_raises_ends_the_run(self, inside: InitClient, init: Init) -> None:
        def output(_: str, __: bytes) -> None:
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            run(inside, "echo x; exec sleep 1000", output=output)
        assert inside.jobs() == []
        eventually(lambda: init.children == [])

    def test_large_output_is_cut_in_the_middle_and_all_of_it_shown(
        self, inside: InitClient
    ) -> None:
        seen = 0

        def output(_: str, data: bytes) -> None:
            nonlocal seen
            seen += len(data)

        script = "head -c 20000000 /dev/zero; echo end"
        result = run(inside, script, output=output, limit=1000)
        assert seen == 20_000_004
        assert result.stdout.endswith("end\n") and "bytes cut" in result.stdout

    def test_busy_tells_whether_a_background_process_is_left(self, inside: InitClient) -> None:
        run(inside, "true")
        assert not inside.busy
        run(inside, "sleep 1000 >/dev/null 2>&1 &")
        assert inside.busy

    def test_threads_do_not_wait_for_one_another(self, inside: InitClient, tmp_path: Path) -> None:
        go = tmp_path / "go"
        os.mkfifo(go)
        results: list[Result] = []
        first = threading.Thread(target=lambda: results.append(run(inside, f"cat {go}")))
        first.start()
        assert run(inside, f"echo hi >{go}").exit_code == 0
        first.join()
        assert results[0].stdout == "hi\n"


class TestFreeze:
    def test_a_run_continues_across_a_snapshot(
        self, inside: InitClient, init: Init, tmp_path: Path
    ) -> None:
        up = tmp_path / "up"
        results: list[Result] = []
        script = f"touch {up}; read x; head -c 3000000 /dev/zero; cat"
        work = threading.Thread(
            target=lambda: results.append(run(inside, script, stdin=b"\n" + b"y" * 2_000_000))
        )
        work.start()
        eventually(up.exists)
        for _ in range(20):
            inside.disconnect()
            assert init.connections == 0
            inside.reconnect()
        work.join()
        assert results[0].stdout == "\0" * 3_000_000 + "y" * 2_000_000

    def test_a_snapshotted_machine_refuses_requests_of_its_owner(self, inside: InitClient) -> None:
        inside.disconnect()
        with pytest.raises(Unavailable) as caught:
            inside.ps()
        assert caught.value.kind == "machine_frozen"
        inside.disconnect()
        inside.reconnect()
        assert inside.jobs() == []

    def test_a_connection_closed_by_another_hub_is_reopened(
        self, inside: InitClient, init: Init
    ) -> None:
        assert inside.jobs() == []
        other = InitClient(init.pid, path=init.path)
        other.disconnect()
        other.reconnect()
        other.close()
        assert inside.jobs() == []
        other = InitClient(init.pid, path=init.path)
        other.disconnect()
        other.reconnect()
        other.close()
        inside.disconnect()
        inside.reconnect()
        assert inside.jobs() == []


class TestJobs:
    def test_a_shell_keeps_its_state_across_a_snapshot(self, inside: InitClient) -> None:
        argv = ["bash", "--norc", "-i"]
        shell = inside.spawn("sh", argv, env=ENV, cwd="/tmp", kind="shell", tty=(24, 80))
        shell.write(b"x=41\necho $((x+")
        inside.disconnect()
        inside.reconnect()
        again = inside.job("sh")
        assert (again.id, again.pid) == (shell.id, shell.pid)
        again.write(b"1)); pwd\n")
        seen, cursor = b"", 0
        while b"42\r\n/tmp\r\n" not in seen:
            piece = again.read(cursor, WAIT)
            assert piece.data, seen
            seen, cursor = seen + piece.data, piece.cursor
        again.resize(40, 100)
        again.write(b"stty size; exit 7\n")
        assert again.wait() == 7
        assert b"40 100" in again.logs()
        assert again.read(cursor).code == 7

    def test_a_service_can_be_listed_signalled_and_forgotten(self, inside: InitClient) -> None:
        script = "echo up; echo worse >&2; exec sleep 1000"
        argv = ["sh", "-c", script]
        service = inside.spawn("web", argv, env=ENV, cwd="/", declared=True)
        assert inside.busy
        with pytest.raises(Conflict) as caught:
            inside.spawn("web", ["true"], env=ENV, cwd="/")
        assert caught.value.kind == "name_taken"
        eventually(lambda: service.logs() == b"up\nworse\n")
        assert service.logs(6) == b"worse\n"
        (told,) = inside.jobs()
        assert (told.name, told.kind, told.argv, told.declared) == ("web", "service", argv, True)
        assert service.wait(0.01) is None
        with pytest.raises(Conflict):
            service.forget()
        assert service.signal(signal.SIGTERM)
        assert service.wait() == 143
        assert not service.signal(signal.SIGTERM)
        assert inside.jobs()[0].code == 143
        service.forget()
        with pytest.raises(NotFound):
            inside.job("web")
        with pytest.raises(NotFound):
            service.read()

    def test_a_job_receives_its_input_and_writes_beyond_its_pipe_are_refused(
        self, inside: InitClient
    ) -> None:
        job = inside.spawn("cat", ["wc", "-c"], env=ENV, cwd="/", stdin=True)
        job.write(b"x" * 3_000_000)
        job.write(b"y", eof=True)
        assert job.read(0, WAIT).data.strip() == b"3000001"
        deaf = inside.spawn("deaf", ["sleep", "1000"], env=ENV, cwd="/", stdin=True)
        with pytest.raises(Conflict) as caught:
            deaf.write(b"x" * 3_000_000, wait=0.05)
        assert caught.value.kind == "input_full"
        mute = inside.spawn("mute", ["sleep", "1000"], env=ENV, cwd="/")
        with pytest.raises(Invalid):
            mute.write(b"x")
        with pytest.raises(Invalid):
            mute.resize(1, 1)

    def test_spawn_of_an_invalid_program_is_refused_and_leaves_no_job(
        self, inside: InitClient, tmp_path: Path
    ) -> None:
        (tmp_path / "text").write_text("no program")
        for argv, error, kind in (
            (["no-such-program"], NotFound, "no_program"),
            ([str(tmp_path / "text")], Invalid, "not_executable"),
            (["a\0"], Invalid, "bad_command"),
        ):
            with pytest.raises(error) as caught:
                inside.spawn("x", argv, env=ENV, cwd="/")
            assert caught.value.kind == kind
        assert inside.jobs() == []


class TestMachine:
    @pytest.mark.root
    def test_every_request_works_over_the_socket_in_the_machine_root(self, tmp_path: Path) -> None:
        with pid_one(tmp_path) as init:
            inside = InitClient(init.pid)
            argv = ["sh", "-c", "sleep 1000; true"]
            job = inside.spawn("web", argv, env=ENV, cwd="/")
            eventually(lambda: len(inside.ps()) == 2)
            assert [one.job for one in inside.ps()] == [job.id] * 2
            assert run(inside, "echo $PPID").stdout == "1\n"
            assert inside.read_state(str(tmp_path)) == [] and inside.busy
            identity = {"machine_id": "1" * 32, "hostname": "copy", "entropy": b"\0" * 32}
            hook = tmp_path / ".ortet-hooks/on-restore/hook"
            hook.parent.mkdir(parents=True)
            hook.write_text("#!/bin/sh\nhostname\n")
            hook.chmod(0o755)
            (told,) = inside.renew_identity("on-restore", workspace_path=str(tmp_path), **identity)  # type: ignore[arg-type]
            assert (told.code, told.output, told.timed_out) == (0, "copy\n", False)
            with pytest.raises(Invalid):
                inside.renew_identity("on-monday", workspace_path="/", **identity)  # type: ignore[arg-type]
            job.kill()
            assert inside.ps() == []
            inside.close()

    @pytest.mark.root
    def test_requests_to_a_dead_machine_raise_machine_gone_with_advice(
        self, tmp_path: Path
    ) -> None:
        with pid_one(tmp_path) as init:
            inside = InitClient(init.pid)
            run(inside, "true")
            seen: list[BaseException] = []

            def work() -> None:
                try:
                    run(inside, "sleep 1000")
                except BaseException as error:
                    seen.append(error)

            thread = threading.Thread(target=work)
            thread.start()
            eventually(lambda: bool(inside.jobs()))
            os.kill(init.pid, signal.SIGKILL)
            thread.join()
            for act in (inside.ps, inside.disconnect, lambda: run(inside, "true")):
                with pytest.raises(Unavailable) as caught:
                    act()
                assert caught.value.kind == "machine_gone"
                assert "open the workspace again" in str(caught.value)
            inside.reconnect()
            inside.close()
        assert isinstance(seen[0], Unavailable) and seen[0].kind == "machine_gone"

    def test_connecting_to_a_pid_that_has_ended_is_unavailable(self) -> None:
        done = subprocess.Popen([sys.executable, "-c", ""])
        done.wait()
        with pytest.raises(Unavailable):
            InitClient(done.pid)

    def test_a_socket_that_a_program_removed_comes_back(
        self, inside: InitClient, init: Init
    ) -> None:
        init.path.unlink()
        assert inside.jobs() == []

    def test_a_removed_socket_comes_back_even_on_a_slow_host(
        self, inside: InitClient, init: Init
    ) -> None:
        init.path.unlink()
        init.pause()
        waking = threading.Timer(3.0, init.go_on)
        waking.start()
        assert inside.jobs() == []
        waking.join()

    def test_requests_are_not_sent_to_a_socket_of_another_process(
        self, inside: InitClient, init: Init
    ) -> None:
        init.path.unlink()
        with socket.socket(socket.AF_UNIX) as trap:
            place = os.open(init.path.parent, os.O_PATH)
            trap.bind(f"/proc/self/fd/{place}/{init.path.name}")
            os.close(place)
            trap.listen()
            with pytest.raises(Refused) as caught:
                inside.jobs()
            assert caught.value.kind == "not_the_machine"

    def test_a_machine_that_does_not_answer(
        self, inside: InitClient, init: Init, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from ortet.machines.control import connection

        monkeypatch.setattr(connection, "_REPLY_TIMEOUT_SECONDS", 0.1)
        os.kill(init.pid, signal.SIGSTOP)
        with pytest.raises(Unavailable) as caught:
            inside.jobs()
        assert caught.value.kind == "machine_silent"
        os.kill(init.pid, signal.SIGCONT)
        monkeypatch.undo()
        assert inside.jobs() == []
