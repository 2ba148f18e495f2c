"""The seam between what is done with a machine and how: Engine opens, Machine freezes and thaws."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from ortet.errors import Unsupported
from ortet.ids import Oid
from ortet.machines.limits import MachineLimits

if TYPE_CHECKING:
    from ortet.machines.control.jobs import Job, JobInfo, ProcessInfo
    from ortet.machines.kernels.host import KernelHost

Command = str | Sequence[str]
"""A str goes to sh -c, a list is executed."""

OutputCallback = Callable[[Literal["stdout", "stderr"], bytes], None]

Network = Literal["none", "outbound", "host"]
"""What a live machine reaches beside itself: nothing, others, or also loopback of the host."""


class Result(msgspec.Struct, frozen=True):
    """How a command ended. A time-out is exit code 124 with timed_out; a signal n is 128 + n."""

    exit_code: int
    stdout: str
    stderr: str
    duration: float
    timed_out: bool = False
    oom: bool = False  # the machine's memory limit was reached and a process of it killed


class Loss(msgspec.Struct, frozen=True, omit_defaults=True):
    """One thing that did not come back, or could not be captured: never silent."""

    path: str
    what: str  # "owner", "xattr", "device", "unreadable", "system", "process", "connection", ...
    why: str
    pid: int = 0  # of a process that it concerns, inside the machine
    command: str = ""


class Report(msgspec.Struct, frozen=True):
    """What a thaw or land did. Paths are relative to the workspace, surrogate-escaped."""

    written: int = 0
    removed: int = 0
    unchanged: int = 0
    losses: list[Loss] = []
    started: list[str] = []  # services and shells that go on, or were started again


class Capability(msgspec.Struct, frozen=True):
    """One line of `ortet doctor`: can this host do it, why not, and the one thing to change."""

    name: str
    ok: bool
    detail: str = ""
    fix: str = ""


class ControlSocket(msgspec.Struct, frozen=True):
    """Who keeps a machine's programs: what `Indoors` is to be given to ask it."""

    pid: int
    path: str
    lock: str


class MachineSpec(msgspec.Struct, frozen=True):
    """What to open. `home` is the machine's own directory in the store, made by the caller.

    `path` is the workspace as its processes see it. With `image` the machine starts from that image
    (private files); without, the directory at `path` is the state (in place).
    """

    id: str
    home: Path
    path: Path
    image: Oid | None = None
    scope: Literal["workspace", "host"] = "workspace"
    hide: tuple[Path, ...] = ()
    limits: MachineLimits = MachineLimits()  # of an engine that can: see `ortet doctor`
    network: Network = "none"  # of an engine whose machines have one of their own


class ChangeNotice(msgspec.Struct, frozen=True):
    """What was heard of a machine's files. `fresh`: directories are new, of which nothing is heard
    until they were looked at."""

    changed: bool = False
    fresh: bool = False


class Machine(ABC):
    """A live machine. One thread at a time."""

    engine: str
    path: Path
    """Where the host can read its files while it is open."""

    @abstractmethod
    def snapshot(self) -> Oid:
        """Put the present state into the store, not yet flushed; returns the Image's Oid.

        O(changes). The same state gives the same Oid. What could not be captured is in `losses`.
        """

    def snapshot_files(self) -> Oid:
        """As freeze, but of the files alone: to compare, not to come back to."""
        return self.snapshot()

    def wait_for_changes(self, timeout: float, wake_fd: int = -1) -> ChangeNotice | None:
        """Wait until files changed that are state, since the last look or call of this; at most
        `timeout` seconds (below 0: forever), or until `wake` can be read. None, at once, where
        nothing can be heard: then look."""
        return None

    @abstractmethod
    def mark_committed(self, image: Oid) -> None:
        """The caller has durably committed `image`, the last frozen one: caches may rest on it."""

    @abstractmethod
    def restore(self, image: Oid, paths: Sequence[bytes] | None = None) -> Report:
        """Make the files equal to `image` (only below `paths` if given), touching what differs.

        All or nothing: when it fails, also by kill -9, the old files are back at the next open.
        """

    @abstractmethod
    def run(
        self,
        command: Command,
        *,
        env: Mapping[str, str | None] | None = None,
        cwd: str = "",
        timeout: float | None = None,
        stdin: bytes | None = None,
        output: OutputCallback | None = None,
    ) -> Result:
        """Run to its end with the workspace as working directory; at the time-out it and all its
        descendants are killed. `output` is called with each chunk as it comes."""

    def run_with_secrets(
        self,
        secrets: Mapping[str, str],
        command: Command,
        *,
        env: Mapping[str, str | None],
        **options: Any,
    ) -> Result:
        """The same, with variables that only this command has: no image ever holds them."""
        return self.run(command, env={**env, **secrets}, **options)

    def withheld_variables(self) -> dict[str, str | None]:
        """Variables of this process that its programs do not get: None each."""
        return {}

    def announce_forks(self, specs: Sequence[MachineSpec]) -> None:
        """These forks of what is frozen next will be asked for: they may begin before it is
        settled. Nothing: they will not be, and what was begun for them goes."""
        del specs

    @abstractmethod
    def fork(self, specs: Sequence[MachineSpec]) -> list[Machine]:
        """Open copies of this machine as of the last settled image, one a spec; all or none."""

    def kernel_host(self) -> KernelHost:
        """Where Python kernels of this machine live."""
        raise Unsupported(
            "no_kernel",
            f"a machine of engine {self.engine!r} has no Python kernels: use engine='overlay', or "
            "spawn() an interpreter",
        )

    # programs that go on: what an engine without them refuses, in these words

    def spawn(
        self,
        name: str,
        command: Command,
        *,
        kind: Literal["service", "shell"] = "service",
        env: Mapping[str, str | None] | None = None,
        cwd: str = "",
        tty: tuple[int, int] | None = None,
        stdin: bool = False,
    ) -> Job:
        """Start a program that outlives this call, under a name; with `tty`, (rows, columns), at a
        terminal of its own. Conflict("name_taken") while another of that name runs."""
        raise self._no_processes_error()

    def job(self, name: str) -> Job:
        """The program of this name, running or ended."""
        raise self._no_processes_error()

    def jobs(self) -> list[JobInfo]:
        """What was spawned and is remembered."""
        raise self._no_processes_error()

    def ps(self) -> list[ProcessInfo]:
        """Every process of the machine."""
        raise self._no_processes_error()

    def expose(self, port: int, at: int = 0) -> int:
        """Let connections to a loopback port of the host, `at` or any free one, into the machine's
        `port`, until it closes; returns the port of the host."""
        raise self._no_processes_error()

    def exposed_ports(self) -> dict[int, int]:
        """Ports of the host that were opened so, by those of the machine."""
        return {}

    def unexpose(self, port: int) -> None:
        """Close one again; nothing happens where none leads to that port."""
        del port

    def _no_processes_error(self) -> Unsupported:
        return Unsupported(
            "no_processes",
            f"a machine of engine {self.engine!r} keeps no programs beyond a run: use "
            "engine='overlay', or 'criu', whose commits hold them (`ortet doctor` says what this "
            "host can)",
        )

    @property
    def control_socket(self) -> ControlSocket:
        """Where other processes of this host can ask whoever keeps its programs."""
        raise self._no_processes_error()

    @property
    def is_consistent(self) -> bool:
        """Whether no other process has left its files half-way: then it must be opened anew."""
        return True

    @property
    @abstractmethod
    def losses(self) -> list[Loss]:
        """What the last freeze could not capture."""

    @abstractmethod
    def close(self) -> None:
        """Stop its processes and give back mounts. Files of a private machine stay in its home."""


class Engine(ABC):
    """A way to run machines on this host."""

    name: str

    @abstractmethod
    def probe(self) -> list[Capability]:
        """What it needs of the host, checked for real. All ok: it can be used."""

    @abstractmethod
    def open(self, spec: MachineSpec) -> Machine:
        """Unsupported, with the reason and the fix, where the host cannot."""

    def prune(self) -> int:
        """Remove what it keeps to be fast and no machine rests on; returns how many things went."""
        return 0

    @abstractmethod
    def remove(self, home: Path) -> None:
        """Delete a closed machine's home, leftovers of a crash included."""

    def close(self) -> None:  # noqa: B027 - most have nothing to do
        """End what serves all of its machines, which are closed; it may be used again."""
