"""Commands on the host: real processes, real pipes, real signals."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest

from ortet.errors import Invalid, NotFound
from ortet.machines.command import run_command

Eye = Callable[[Path], Any]
Torture = Callable[[Path], None]


def _alive(pid: int) -> bool:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):  # it may be reaped while we read
        return False
    return text.rpartition(")")[2].split()[0] not in ("Z", "X")


def _end(pid: int) -> None:
    if _alive(pid):
        os.kill(pid, signal.SIGKILL)


def test_a_string_goes_to_the_shell_and_a_list_is_executed(tmp_path: Path) -> None:
    shell = run_command("echo $((1 + 1)); echo bad >&2; exit 3", cwd=tmp_path)
    assert (shell.exit_code, shell.stdout, shell.stderr) == (3, "2\n", "bad\n")
    assert not shell.timed_out
    assert shell.duration > 0
    direct = run_command(["echo", "$((1 + 1))", "a  b"], cwd=tmp_path)
    assert (direct.exit_code, direct.stdout) == (0, "$((1 + 1)) a  b\n")


def test_a_command_runs_in_cwd_with_the_given_environment_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ORTET_TEST_GONE", "1")
    monkeypatch.setenv("ORTET_TEST_KEPT", "kept")
    result = run_command(
        'pwd; echo "${ORTET_TEST_GONE-unset} $ORTET_TEST_KEPT $ORTET_TEST_NEW"',
        cwd=tmp_path,
        env={"ORTET_TEST_GONE": None, "ORTET_TEST_NEW": "new", "NEVER_THERE": None},
    )
    assert result.stdout == f"{tmp_path}\nunset kept new\n"
    assert os.environ["ORTET_TEST_GONE"] == "1"


def test_stdin_is_the_given_bytes_or_empty(tmp_path: Path) -> None:
    big = os.urandom(3_000_000).hex()
    echoed = run_command("cat", cwd=tmp_path, stdin=big.encode())
    assert echoed.stdout == big
    assert run_command("cat; echo end", cwd=tmp_path).stdout == "end\n"
    assert run_command("cat; echo end", cwd=tmp_path, stdin=b"").stdout == "end\n"


def test_a_command_that_does_not_read_its_stdin_still_ends(tmp_path: Path) -> None:
    result = run_command("exec 0<&-; echo ok", cwd=tmp_path, stdin=b"x" * 5_000_000)
    assert (result.exit_code, result.stdout) == (0, "ok\n")


def test_output_is_streamed_as_it_comes(tmp_path: Path) -> None:
    fifo = tmp_path / "go"
    os.mkfifo(fifo)
    seen: list[tuple[str, bytes]] = []

    def output(stream: Literal["stdout", "stderr"], data: bytes) -> None:
        seen.append((stream, data))
        if data == b"first\n":  # the command goes on only because this was seen before its end
            fifo.write_text("go")

    result = run_command("echo first; cat go; echo last >&2", cwd=tmp_path, output=output)
    assert b"".join(data for name, data in seen if name == "stdout") == b"first\ngo"
    assert (result.stdout, result.stderr) == ("first\ngo", "last\n")


def test_a_command_that_fills_stdout_and_stderr_does_not_block(tmp_path: Path) -> None:
    code = "import sys\nfor _ in range(400): sys.stdout.write('o'*9999); sys.stderr.write('e'*9999)"
    result = run_command([sys.executable, "-c", code], cwd=tmp_path)
    assert len(result.stdout) == len(result.stderr) == 400 * 9999


def test_bytes_that_are_not_utf8_are_replaced(tmp_path: Path) -> None:
    assert run_command(r"printf 'a\377b'", cwd=tmp_path).stdout == "a�b"


def test_the_middle_of_a_long_output_is_cut(tmp_path: Path) -> None:
    total = 0

    def output(stream: Literal["stdout", "stderr"], data: bytes) -> None:
        nonlocal total
        total += len(data)

    code = "import sys\nsys.stdout.write('A'*500_000 + 'B'*500_000)"
    result = run_command([sys.executable, "-c", code], cwd=tmp_path, limit=1000, output=output)
    assert result.stdout == "A" * 500 + "\n[... 999000 bytes cut ...]\n" + "B" * 500
    assert total == 1_000_000
    exact = run_command(["printf", "x" * 1000], cwd=tmp_path, limit=1000)
    assert exact.stdout == "x" * 1000


def test_a_command_that_cannot_start_answers_as_a_shell_would(tmp_path: Path) -> None:
    missing = run_command(["no-such-program-here", "x"], cwd=tmp_path)
    assert (missing.exit_code, missing.stdout) == (127, "")
    assert missing.stderr == "no-such-program-here: command not found\n"
    assert run_command("no-such-program-here", cwd=tmp_path).exit_code == 127
    plain = tmp_path / "plain"
    plain.write_text("not a program")
    assert run_command([str(plain)], cwd=tmp_path).exit_code == 126
    plain.chmod(0o755)
    assert run_command([str(plain)], cwd=tmp_path).exit_code == 126
    assert run_command([str(plain / "below")], cwd=tmp_path).exit_code == 127


def test_bad_requests_are_errors(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(NotFound, match="make it") as missing:
        run_command("true", cwd=tmp_path / "none")
    assert missing.value.kind == "no_directory"
    with pytest.raises(Invalid) as file:
        run_command("true", cwd=tmp_path / "file")
    assert file.value.kind == "not_a_directory"
    for bad in ([], ["a\0b"], [b"true"], "a\0b"):
        with pytest.raises(Invalid):
            run_command(bad, cwd=tmp_path)  # type: ignore[arg-type]
    with pytest.raises(Invalid):
        run_command("true", cwd=tmp_path, env={"A=B": "c"})


def test_an_exit_by_signal_is_128_and_its_number(tmp_path: Path) -> None:
    assert run_command("kill -TERM $$", cwd=tmp_path).exit_code == 128 + 15
    assert run_command("kill -KILL $$", cwd=tmp_path).exit_code == 128 + 9


def test_wrap_puts_a_launcher_in_front(tmp_path: Path) -> None:
    result = run_command(
        ["sh", "-c", "echo $WRAPPED"], cwd=tmp_path, wrap=lambda argv: ["env", "WRAPPED=yes", *argv]
    )
    assert result.stdout == "yes\n"


def test_output_before_the_time_out_is_kept(tmp_path: Path) -> None:
    for timeout in (0.3, 3, 30):  # a busy host may need longer to start it
        result = run_command("echo begun; exec sleep 600", cwd=tmp_path, timeout=timeout)
        if result.stdout:
            break
    assert (result.stdout, result.exit_code) == ("begun\n", 124)


def test_a_background_child_lives_on_and_does_not_delay(tmp_path: Path) -> None:
    for name in ("go", "go2"):
        os.mkfifo(tmp_path / name)
    # it holds both pipes and writes to them after the command's end, which it must survive
    result = run_command(
        "(read x < go; echo late; echo late >&2; echo alive > proof; read x < go2) & "
        "echo $!; echo done",
        cwd=tmp_path,
        timeout=60,
    )
    pid = int(result.stdout.split()[0])
    try:
        assert (result.exit_code, result.timed_out) == (0, False)
        assert result.stdout.endswith("done\n")
        assert _alive(pid)
        (tmp_path / "go").write_text("\n")
        with (tmp_path / "go2").open("w") as gate:  # opens when the child has come to its last read
            assert (tmp_path / "proof").read_text() == "alive\n"
            assert _alive(pid)
            gate.write("\n")
    finally:
        _end(pid)


def test_a_background_child_that_writes_for_ever_does_not_delay(tmp_path: Path) -> None:
    result = run_command("yes & echo $! > pid; sleep 0.05", cwd=tmp_path, timeout=60, limit=1000)
    pid = int((tmp_path / "pid").read_text())
    try:
        assert result.exit_code == 0
        assert not result.timed_out
        assert _alive(pid)
    finally:
        _end(pid)


def test_a_command_that_closes_its_streams_is_still_waited_for(tmp_path: Path) -> None:
    result = run_command("exec >&- 2>&-; sleep 0.2; echo x > proof; exit 5", cwd=tmp_path)
    assert result.exit_code == 5
    assert (tmp_path / "proof").exists()


def test_an_error_in_the_callers_output_kills_the_command(tmp_path: Path) -> None:
    def output(stream: Literal["stdout", "stderr"], data: bytes) -> None:
        raise KeyError(data.decode())

    with pytest.raises(KeyError) as error:
        run_command("echo $$; exec sleep 600", cwd=tmp_path, output=output)
    assert not _alive(int(error.value.args[0]))


def test_commands_in_threads_leave_no_open_descriptors(tmp_path: Path) -> None:
    gc.collect()  # what earlier tests left open
    before = set(os.listdir("/proc/self/fd"))
    results: list[str] = []
    threads = [
        threading.Thread(
            target=lambda n=n: results.append(run_command(f"echo {n}", cwd=tmp_path).stdout)
        )
        for n in range(16)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results, key=int) == [f"{n}\n" for n in range(16)]
    run_command("echo x >&2; sleep 600", cwd=tmp_path, timeout=0.1, stdin=b"y" * 1_000_000)
    assert set(os.listdir("/proc/self/fd")) - before == set()
