"""Modules of machines/standalone run as scripts: only the standard library is there for them."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.fixtures.waiting import WAIT

from ortet.machines import standalone
from ortet.machines.kernels import manager
from ortet.machines.kernels.local_host import LocalKernelHost
from ortet.machines.live.criu.binary import find_criu
from ortet.machines.standalone import ipc
from ortet.machines.standalone.syscalls import is_privileged

Process = subprocess.Popen[bytes]

FOLDER = Path(standalone.__file__).parent
NAMES = sorted(path.stem for path in FOLDER.glob("*.py") if path.stem != "__init__")

IMPORT = """
import importlib, sys
sys.path.append(sys.argv[1])
for name in ("ipc", "kernel_cell", "kernel_variables"):  # a kernel gets these modules as text
    sys.modules["_ortet_" + name] = importlib.import_module(name)
importlib.import_module(sys.argv[2])
print([name for name in sys.modules if name.partition(".")[0] == "ortet"])
"""


@pytest.mark.parametrize("name", NAMES)
def test_a_standalone_module_loads_without_site_packages_and_without_ortet(name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", IMPORT, str(FOLDER), name],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "[]\n"


def test_the_hub_does_not_search_the_folder_of_the_scripts() -> None:
    """Its modules have the names of others, as `requests`."""
    code = (
        "import sys; before = list(sys.path)\n"
        "import ortet.machines.live.engine, ortet.machines.overlay.engine, "
        "ortet.machines.kernels.manager\n"
        "print(sys.path == before)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"


def start_zygote(place: Path) -> None:
    """As `overlay/supervisor_client.py` starts it."""
    with start_script("zygote", "root" if is_privileged() else "user") as (_, sock):
        assert ipc.receive(sock)[0]["ready"] > 0


def start_live_supervisor(place: Path) -> None:
    """As `live/supervisor_client.py` starts it."""
    with start_script("live_supervisor", find_criu(""), str(place)) as (_, sock):
        assert ipc.receive(sock)[0]["ready"] > 0


def start_init(place: Path) -> None:
    """As a machine starts it: it reports on one descriptor, and listens at a path."""
    with start_script("init", str(place / "init.sock")) as (process, sock):
        assert sock.recv(1) == b"\n"
        with socket.socket(socket.AF_UNIX) as asking:
            asking.connect(str(place / "init.sock"))
            ipc.send(asking, {"do": "ps", "processes": False})
            assert ipc.receive(asking)[0]["jobs"] == []
        process.kill()


@contextmanager
def start_script(name: str, *arguments: str) -> Iterator[tuple[Process, socket.socket]]:
    """Start a script with one end of a socket, as the library does, and wait for its end."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        fd = theirs.fileno()
        command = [sys.executable, "-I", "-S", str(FOLDER / f"{name}.py"), str(fd), *arguments]
        process = subprocess.Popen(
            command,
            pass_fds=[fd],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,  # CRIU reports there that it works
            cwd="/",
        )
        theirs.close()
        ours.settimeout(WAIT)
        try:
            yield process, ours
            ours.close()
            assert process.wait(WAIT) in (0, -signal.SIGKILL)
        finally:
            process.kill()
            process.wait()


STARTS = {"zygote": start_zygote, "live_supervisor": start_live_supervisor, "init": start_init}
PROGRAMS = sorted(
    name for name in NAMES if "\nif __name__ ==" in (FOLDER / f"{name}.py").read_text()
)


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=pytest.mark.criu) if n == "live_supervisor" else n for n in PROGRAMS],
)
def test_a_standalone_program_starts_without_site_packages(name: str, tmp_path: Path) -> None:
    STARTS[name](tmp_path)


def test_a_kernel_starts_without_site_packages(tmp_path: Path) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", manager._BOOTSTRAP_CODE],
            pass_fds=[theirs.fileno()],
            env={"ORTET_KERNEL_FD": str(theirs.fileno())},
            stdin=subprocess.DEVNULL,
        )
        theirs.close()
        ours.settimeout(WAIT)
        ours.sendall(manager._bootstrap_message(LocalKernelHost("folder", tmp_path)))
        greeting, _ = ipc.receive(ours)
        assert "failed" not in greeting
    assert process.wait(WAIT) is not None
