"""The contract of every engine: `Engine` opens machines, `Machine` snapshots and restores them."""

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
    from ortet.machines.jobs import Job, JobInfo, ProcessInfo
    from ortet.machines.kernel_host import KernelHost

Command = str | Sequence[str]
"""A command: a str is passed to `sh -c`, a list is executed directly."""

OutputCallback = Callable[[Literal["stdout", "stderr"], bytes], None]

Network = Literal["none", "outbound", "host"]
"""Which network a live machine reaches: none, outbound only, or also loopback of the host."""


class Result(msgspec.Struct, frozen=True):
    """The result of a command.

    Attributes:
        exit_code: Exit code. It is 124 after a timeout, and 128 + n if signal n killed the command.
        stdout: Standard output, as text.
        stderr: Standard error, as text.
        duration: Seconds that the command ran.
        timed_out: True if the command was killed at its timeout.
        oom: True if the machine reached its memory limit and a process was killed.
    """

    exit_code: int
    stdout: str
    stderr: str
    duration: float
    timed_out: bool = False
    oom: bool = False


class Loss(msgspec.Struct, frozen=True, omit_defaults=True):
    """One piece of state that could not be captured or restored. Losses are always reported.

    Attributes:
        path: The file, relative to the workspace, or the name of what was lost.
        what: Kind of the loss: "owner", "xattr", "device", "unreadable", "system", "process",
            "connection" and others.
        why: The reason.
        pid: The process that the loss is about, as numbered inside the machine, or 0.
        command: Command line of that process.
    """

    path: str
    what: str
    why: str
    pid: int = 0
    command: str = ""


class Report(msgspec.Struct, frozen=True):
    """The result of a restore or land. Paths are relative to the workspace, surrogate-escaped.

    Attributes:
        written: Number of files that were written.
        removed: Number of files that were removed.
        unchanged: Number of files that were left alone.
        losses: What this host could not restore.
        started: Services and shells that continue or were restarted.
    """

    written: int = 0
    removed: int = 0
    unchanged: int = 0
    losses: list[Loss] = []
    started: list[str] = []


class Capability(msgspec.Struct, frozen=True):
    """One line of `ortet doctor`: a feature, whether this host has it, and how to enable it."""

    name: str
    ok: bool
    detail: str = ""
    fix: str = ""


class ControlSocket(msgspec.Struct, frozen=True):
    """The address of the process that keeps a machine's programs, for a control client."""

    pid: int
    path: str
    lock: str


class MachineSpec(msgspec.Struct, frozen=True):
    """The description of a machine to open.

    `home` is the machine's own directory in the store; the caller creates it. `path` is the
    workspace as its processes see it. With `image` the machine starts from that image and its files
    are private. Without `image` the directory at `path` is the state (in place).
    """

    id: str
    home: Path
    path: Path
    image: Oid | None = None
    scope: Literal["workspace", "host"] = "workspace"
    hide: tuple[Path, ...] = ()
    limits: MachineLimits = MachineLimits()  # only for engines with limits: see `ortet doctor`
    network: Network = "none"  # only for engines whose machines have their own network


class ChangeNotice(msgspec.Struct, frozen=True):
    """The result of waiting for file changes.

    `fresh` is True if there are new directories. Changes inside them are reported only after the
    next snapshot has scanned them.
    """

    changed: bool = False
    fresh: bool = False


class Machine(ABC):
    """An open machine. Only one thread may use it at a time."""

    engine: str
    path: Path
    """The directory where the host can read the machine's files while it is open."""

    @abstractmethod
    def snapshot(self) -> Oid:
        """Put the present state into the store, without a flush, and return the Oid of the image.

        The cost depends on the number of changes. The same state gives the same Oid. State that
        could not be captured is listed in `losses`.
        """

    def snapshot_files(self) -> Oid:
        """Snapshot only the files. The result can be diffed but not restored."""
        return self.snapshot()

    def wait_for_changes(self, timeout: float, wake_fd: int = -1) -> ChangeNotice | None:
        """Wait until files that are state have changed since the last snapshot or call.

        Args:
            timeout: The longest time to wait, in seconds; below 0 means no limit.
            wake_fd: A descriptor; the call also returns when it becomes readable.

        Returns:
            None, immediately, if this machine cannot detect changes: take a snapshot instead.
        """
        return None

    @abstractmethod
    def mark_committed(self, image: Oid) -> None:
        """Tell the machine that `image`, its last snapshot, is durably committed.

        From then on caches may rely on the objects of `image`.
        """

    @abstractmethod
    def restore(self, image: Oid, paths: Sequence[bytes] | None = None) -> Report:
        """Make the files equal to `image`, and change only files that differ.

        If `paths` is given, only files at and below these paths are restored. The restore is all or
        nothing: if it fails, even by kill -9, the next open restores the old files.
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
        """Run a command to its end, with the workspace as working directory.

        At the timeout the command and all of its descendants are killed. `output` is called with
        each chunk as it arrives.
        """

    def run_with_secrets(
        self,
        secrets: Mapping[str, str],
        command: Command,
        *,
        env: Mapping[str, str | None],
        **options: Any,
    ) -> Result:
        """Run a command with secret variables that only this command gets.

        The secrets are never part of an image.
        """
        return self.run(command, env={**env, **secrets}, **options)

    def withheld_variables(self) -> dict[str, str | None]:
        """Return the variables of this process that the machine's programs do not get.

        Every value is None, as in `env` of `run`.
        """
        return {}

    def announce_forks(self, specs: Sequence[MachineSpec]) -> None:
        """Announce forks of the next snapshot.

        The engine may start them before that snapshot is committed. An empty list cancels the
        announcement and stops anything already started.
        """
        del specs

    @abstractmethod
    def fork(self, specs: Sequence[MachineSpec]) -> list[Machine]:
        """Open one copy of this machine for each spec, from the last committed image.

        All or none of the copies are opened.
        """

    def kernel_host(self) -> KernelHost:
        """Return the host of this machine's Python kernels."""
        raise Unsupported(
            "no_kernel",
            f"a machine of engine {self.engine!r} has no Python kernels: use engine='overlay', or "
            "spawn() an interpreter",
        )

    # Programs that outlive a call. An engine without them raises the same error everywhere.

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
        """Start a named program that outlives this call.

        With `tty`, (rows, columns), the program gets its own terminal. Raises
        Conflict("name_taken") while another program of that name runs.
        """
        raise self._no_processes_error()

    def job(self, name: str) -> Job:
        """Return the program of this name, running or ended."""
        raise self._no_processes_error()

    def jobs(self) -> list[JobInfo]:
        """Return all programs that were spawned and are still remembered."""
        raise self._no_processes_error()

    def ps(self) -> list[ProcessInfo]:
        """Return every process of the machine."""
        raise self._no_processes_error()

    def expose(self, port: int, at: int = 0) -> int:
        """Forward a loopback port of the host to `port` of the machine, until the machine closes.

        Args:
            port: The port inside the machine.
            at: The port of the host; 0 takes any free one.

        Returns:
            The port of the host.
        """
        raise self._no_processes_error()

    def exposed_ports(self) -> dict[int, int]:
        """Return the exposed ports: port of the machine -> port of the host."""
        return {}

    def unexpose(self, port: int) -> None:
        """Close the forward to this port. Do nothing if the port is not exposed."""
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
        """The address where other processes of this host can reach the machine's programs."""
        raise self._no_processes_error()

    @property
    def is_consistent(self) -> bool:
        """False if another process crashed while changing this machine's files.

        The machine must then be reopened.
        """
        return True

    @property
    @abstractmethod
    def losses(self) -> list[Loss]:
        """The state that the last snapshot could not capture."""

    @abstractmethod
    def close(self) -> None:
        """Stop the machine's processes and release its mounts.

        The files of a private machine stay in its home.
        """


class Engine(ABC):
    """A way to run machines on this host."""

    name: str

    @abstractmethod
    def probe(self) -> list[Capability]:
        """Test what the engine needs of the host. It is usable if every capability is ok."""

    @abstractmethod
    def open(self, spec: MachineSpec) -> Machine:
        """Open a machine.

        Raises:
            Unsupported: With the reason and the fix, if this host cannot run the machine.
        """

    def prune(self) -> int:
        """Remove cached data that no machine uses, and return the number of removed items."""
        return 0

    @abstractmethod
    def remove(self, home: Path) -> None:
        """Delete the home of a closed machine, including leftovers of a crash."""

    def close(self) -> None:  # noqa: B027 - most have nothing to do
        """Stop the processes that serve all machines of this engine.

        The machines must be closed already. The engine may be used again afterwards.
        """
