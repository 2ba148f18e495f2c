"""Pid 1 of a machine, asked over its socket."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.fixtures.waiting import eventually
from tests.machines.overlays import Overlay

from ortet.errors import Invalid, Unavailable, Unsupported
from ortet.machines.base import Result
from ortet.machines.command import communicate
from ortet.machines.overlay.supervisor_client import OverlayMachineProcess, Zygote, spawn_in_machine
from ortet.machines.standalone.syscalls import escape_option, is_privileged, overlay_options

pytestmark = pytest.mark.overlay


@pytest.fixture
def zygote() -> Iterator[Zygote]:
    """A zygote for each test, instead of one for the module."""
    zygote = Zygote(rootless=not is_privileged())
    yield zygote
    zygote.close()


@pytest.fixture
def overlay(zygote: Zygote, place: Path) -> Iterator[Overlay]:
    (place / "one/lower").mkdir(parents=True)
    (place / "one/lower/file").write_text("file")
    overlay = Overlay(zygote, place / "one", ["lower"])
    yield overlay
    overlay.machine.close()


def run(
    machine: OverlayMachineProcess, *argv: str, env: dict[str, str] | None = None, cwd: str = "/"
) -> Result:
    path = {"PATH": os.environ["PATH"]} if env is None else env
    process, pidfd = spawn_in_machine(machine, argv, env=path, cwd=cwd, stdin=False)
    return communicate(
        process,
        pidfd=pidfd,
        kill=lambda: process.kill("none"),
        started_at=time.monotonic(),
        timeout=None,
        stdin=None,
        output=None,
    )


class TestCommands:
    def test_a_program_is_found_by_the_path_it_will_have(
        self, overlay: Overlay, place: Path
    ) -> None:
        tool = place / "one/lower/tool"
        tool.write_text("#!/bin/sh\necho found\n")
        tool.chmod(0o755)
        result = run(overlay.machine, "tool", env={"PATH": f"/nowhere:{place}/one/lower"})
        assert result.stdout == "found\n"
        with pytest.raises(FileNotFoundError):
            run(overlay.machine, "tool", env={"PATH": "/nowhere"})

    def test_a_file_that_cannot_be_executed_raises_the_os_error(
        self, overlay: Overlay, place: Path
    ) -> None:
        (place / "one/lower/plain").write_text("text")
        with pytest.raises(PermissionError):
            run(overlay.machine, str(place / "one/lower/plain"))
        (place / "one/lower/plain").chmod(0o755)
        with pytest.raises(OSError) as caught:
            run(overlay.machine, str(place / "one/lower/plain"))
        assert caught.value.errno == errno.ENOEXEC

    def test_a_nul_byte_is_refused_and_harms_nothing(self, overlay: Overlay) -> None:
        with pytest.raises(Invalid) as caught:
            run(overlay.machine, "echo", "a\0b")
        assert caught.value.kind == "bad_command"
        with pytest.raises(Invalid):
            run(overlay.machine, "echo", env={"A=B": "x"})
        assert run(overlay.machine, "echo", "on").stdout == "on\n"

    def test_an_argument_that_is_not_utf8_reaches_the_command(self, overlay: Overlay) -> None:
        name = os.fsdecode(b"\xff\xfe")
        run(overlay.machine, "touch", name, cwd=str(overlay.base / "place"))
        assert name in os.listdir(overlay.view)

    def test_orphans_are_reaped(self, overlay: Overlay) -> None:
        run(overlay.machine, "sh", "-c", "(sh -c true &) ; true")
        eventually(lambda: not overlay.machine.ask({"do": "state"})[0]["busy"])
        assert (
            run(overlay.machine, "sh", "-c", "grep -c ^State:.Z /proc/[0-9]*/status").stdout.count(
                ":1"
            )
            == 0
        )

    def test_no_descriptors_leak_into_commands(self, overlay: Overlay) -> None:
        listing = run(overlay.machine, "sh", "-c", "ls /proc/self/fd").stdout.split()
        assert set(listing) == {"0", "1", "2", "3"}  # the last is ls's own

    def test_commands_may_not_mount(self, overlay: Overlay) -> None:
        assert run(overlay.machine, "mount", "-t", "tmpfs", "x", "/mnt").exit_code != 0


class TestLayers:
    def test_unmount_is_refused_while_a_host_process_uses_the_mount(self, overlay: Overlay) -> None:
        with (overlay.view / "file").open() as held:
            assert overlay.machine.ask({"do": "unmount"})[0] == {"done": False}
            assert held.read() == "file"
        assert overlay.machine.ask({"do": "unmount"})[0] == {"done": True}
        assert list(overlay.view.iterdir()) == []

    def test_a_failed_mount_returns_the_error_and_can_be_retried(self, overlay: Overlay) -> None:
        overlay.machine.ask({"do": "unmount"})
        options = overlay_options(["t/lower"], "t/nowhere", "t/work")
        reply, _ = overlay.machine.ask({"do": "mount", "options": options})
        assert "No such file" in reply["error"]
        (overlay.base / "upper2").mkdir()
        (overlay.base / "work2").mkdir()
        options = overlay_options(["t/lower"], "t/upper2", "t/work2")
        assert overlay.machine.ask({"do": "mount", "options": options})[0] == {}
        assert (overlay.view / "file").read_text() == "file"


class TestTheEnd:
    def test_a_plan_that_fails_says_why(self, zygote: Zygote, place: Path) -> None:
        plan = {
            "root": str(place),
            "held": {},
            "steps": [{"do": "bind", "at": "/", "source": str(place / "nowhere")}],
            "place": "/",
            "workspace": "",
        }
        machine = zygote.start(plan)
        with pytest.raises(Unsupported) as caught:
            machine.ready()
        assert caught.value.kind == "machine_refused"
        assert "No such file" in caught.value.message
        machine.close()

    def test_a_request_to_a_killed_supervisor_raises_machine_gone(self, overlay: Overlay) -> None:
        os.kill(overlay.machine.pid, 9)
        with pytest.raises(Unavailable) as caught:
            overlay.machine.ask({"do": "state"})
        assert caught.value.kind == "machine_gone"

    def test_the_zygote_ends_when_its_handle_is_dropped(self, place: Path) -> None:
        zygote = Zygote(rootless=False)
        (place / "two/lower").mkdir(parents=True)
        overlay = Overlay(zygote, place / "two", ["lower"])
        parent = int(Path(f"/proc/{overlay.machine.pid}/stat").read_text().split()[3])
        overlay.machine.close()
        del overlay, zygote
        assert not Path(f"/proc/{parent}").exists()


def test_overlay_options_escape_special_characters() -> None:
    assert escape_option("a:b,c\\d") == "a\\:b\\,c\\\\d"
    assert overlay_options(["l1", "l2"]) == "lowerdir=l1:l2"
    assert overlay_options(["l"], "u", "w", extra=["x"]) == "lowerdir=l,upperdir=u,workdir=w,x"


def test_paths_with_special_characters_can_be_mounted(zygote: Zygote, place: Path) -> None:
    base = place / "odd:na,me\\ and blank"
    (base / "lo:w,er").mkdir(parents=True)
    (base / "lo:w,er/file").write_text("found")
    overlay = Overlay(zygote, base, ["lo:w,er"])
    assert (overlay.view / "file").read_text() == "found"
    overlay.machine.close()
