"""Tests of Machine.run."""

from __future__ import annotations

import signal

import pytest

from ortet.errors import Invalid, NotFound
from ortet.machines.base import Machine


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
