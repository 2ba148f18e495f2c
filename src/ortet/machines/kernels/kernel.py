"""A Python kernel: a persistent interpreter inside a machine that forks in milliseconds."""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from typing import IO, Any, Protocol

from ortet._util.validation import (
    CALLABLE,
    FLAG,
    NUMBER,
    POSITIVE_COUNT,
    check_text,
    optional,
    require,
)
from ortet.errors import Conflict, Invalid, OrtetError, Unavailable
from ortet.machines.base import OutputCallback
from ortet.machines.kernel_host import KernelLayer
from ortet.machines.kernels.link import (
    CellResult,
    KernelGone,
    KernelLink,
    KernelReply,
    KernelVariable,
    parse_cell_result,
    parse_variables,
)

MAX_VARIABLES_BYTES = 256 << 20
"""Limit in bytes for the saved variables of one kernel."""

_STDERR_TAIL_CHARS = 4000  # length of the stderr tail that an error reports
_EXIT_TIMEOUT_SECONDS = 30.0  # from the end of the kernel's socket to the end of its process


class KernelOwner(Protocol):
    """The object that manages the kernels of a machine. A kernel asks it to fork and to end."""

    def fork_kernel(self, kernel: Kernel, n: int, *, force: bool) -> list[Kernel]: ...

    def adopt_fork(self, kernel: Kernel, fork: Kernel) -> None: ...

    def release_kernel(self, kernel: Kernel) -> None: ...

    def exit_reason(self, kernel: Kernel) -> str: ...


class Kernel:
    """Runs code in one persistent namespace.

    Only one thread may use a kernel at a time, except for `interrupt` and `close`. Each fork may be
    used by a thread of its own.
    """

    def __init__(
        self,
        owner: KernelOwner,
        name: str,
        link: KernelLink,
        *,
        layer: KernelLayer | None = None,
        launched: bool = False,
    ) -> None:
        self.name = name
        self.declared_variables: list[str] = []
        self.layer = layer  # None: the kernel works on the machine's own files
        self.link = link
        self.launched = launched  # True if the machine started the process and knows its exit code
        self.run_count = 0
        self._owner = owner
        self._closed_reason = ""
        self._is_retired = False
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        state = "closed" if self._closed_reason else "alive" if self.alive else "ended"
        return f"<Kernel {self.name!r} ({state})>"

    def __enter__(self) -> Kernel:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def alive(self) -> bool:
        """True if the kernel is not closed and its process runs."""
        return not self._closed_reason and self.link.alive

    def run(
        self, code: str, *, timeout: float | None = None, output: OutputCallback | None = None
    ) -> CellResult:
        """Execute code and return the value of its last expression; top-level `await` works.

        An exception in the code is reported as `CellResult.error`, and the kernel stays usable. At
        the time-out the code is interrupted as by Ctrl-C. A kernel that ignores the interrupt is
        killed.

        Args:
            code: Python source text.
            timeout: seconds after which the code is interrupted; None for no limit.
            output: called with each piece of stdout and stderr as it arrives.

        Raises:
            Unavailable: "kernel_gone", if the process ended or was killed.
            Conflict: "kernel_busy", if another call is using the kernel.
        """
        check_text(code=code)
        optional(NUMBER, timeout=timeout)
        optional(CALLABLE, output=output)
        began = time.monotonic()
        with self._exclusive("run code"):
            self.run_count += 1
            reply = self._request({"do": "run", "code": code}, timeout=timeout, output=output)
            try:
                return parse_cell_result(
                    reply.reply,
                    stdout=reply.stdout,
                    stderr=reply.stderr,
                    duration=time.monotonic() - began,
                    timed_out=reply.timed_out,
                )
            except (ValueError, TypeError, RecursionError) as error:
                raise self._mark_gone("it said something that no kernel says") from error

    def interrupt(self) -> None:
        """Raise KeyboardInterrupt in the running code. Do nothing if no code runs."""
        self.link.interrupt()

    def fork(self, n: int = 1, *, force: bool = False) -> list[Kernel]:
        """Return `n` kernels that continue from this one; create all of them or none.

        The forks share this kernel's memory until they write to it, and each has files of its own.
        A fork can be forked again. Random number generators are seeded differently in each fork.

        Raises:
            Conflict: "threads_alive", with the names of threads that would be missing in the forks,
                unless `force`; "files_stuck", if open files cannot be opened again in a fork.
        """
        require(POSITIVE_COUNT, n=n)
        require(FLAG, force=force)
        with self._exclusive("fork"):
            return self._owner.fork_kernel(self, n, force=force)

    def keep(self, fork: Kernel) -> Kernel:
        """Replace this kernel by one of its forks, and return the fork.

        The fork takes over the name of this kernel, which ends. The fork's files become the files
        of the machine. If this kernel is itself a fork, the files stay separate from the machine's.
        """
        if not isinstance(fork, Kernel) or fork.layer is None or fork is self:
            raise Invalid("not_a_fork", "give one of the kernels that kernel.fork() returned")
        with self._exclusive("be replaced"), fork._exclusive("be kept"):
            self._owner.adopt_fork(self, fork)
        return fork

    def vars(self, *names: str) -> list[KernelVariable]:
        """Declare variables that a commit saves and a restore loads.

        Returns all declared variables. `KernelVariable.why` says why a variable cannot be saved.
        """
        for name in names:
            if not isinstance(name, str) or not name.isidentifier():
                raise Invalid("bad_name", f"{name!r} is no name of a variable: as vars('df')")
        self.declared_variables += [
            name for name in dict.fromkeys(names) if name not in self.declared_variables
        ]
        with self._exclusive("be asked for its variables"):
            reply = self._request(
                {"do": "save", "names": self.declared_variables, "most": MAX_VARIABLES_BYTES}
            )
        variables = {
            var.name: var for part in ("kept", "lost") for var in self._parse_variables(reply, part)
        }
        return [variables[name] for name in self.declared_variables if name in variables]

    def save(self) -> tuple[IO[bytes], list[dict[str, Any]], list[KernelVariable]]:
        """Pickle the declared variables into a temporary file.

        Returns the file, the name, type and size of each saved variable, and the variables that
        could not be saved. Only a kernel may unpickle the file. The caller closes it.
        """
        with self._exclusive("keep its variables"), ExitStack() as undo:
            file: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - the caller closes it
            undo.callback(file.close)
            message = {"do": "save", "names": self.declared_variables, "most": MAX_VARIABLES_BYTES}
            reply = self._request(message, [file.fileno()])
            lost, saved = self._parse_variables(reply, "lost"), self._parse_variables(reply, "kept")
            sizes = [one.get("size") for one in reply.reply["kept"]]
            if not all(isinstance(size, int) and size >= 0 for size in sizes):
                raise self._mark_gone("it said something that no kernel says")
            undo.pop_all()
        pairs = zip(saved, sizes, strict=True)
        return file, [{"name": v.name, "type": v.type, "size": size} for v, size in pairs], lost

    def load(self, file: IO[bytes], variables: Sequence[dict[str, Any]]) -> list[KernelVariable]:
        """Load the variables that `save` wrote, and return those that could not be loaded."""
        with self._exclusive("get variables"):
            reply = self._request({"do": "load", "vars": list(variables)}, [file.fileno()])
        return self._parse_variables(reply, "lost")

    def close(self) -> None:
        """End the kernel, even while it runs code. The private files of a fork are deleted."""
        self.end(f"kernel {self.name!r} is closed: kernel() starts a new one")

    # for KernelManager

    def end(self, why: str) -> None:
        """Close the kernel; later calls fail with `why`."""
        if self._closed_reason:
            return
        self._closed_reason = why
        self._owner.release_kernel(self)

    @contextmanager
    def try_exclusive(self) -> Iterator[bool]:
        """Yield True and keep the kernel idle during the block.

        Yield False if it is busy or gone.
        """
        got = self._lock.acquire(blocking=False)
        try:
            yield got and self.alive
        finally:
            if got:
                self._release()

    def exclusive(self, action: str) -> AbstractContextManager[None]:
        """Keep the kernel idle during the block. Raise Conflict("kernel_busy") if it runs code."""
        return self._exclusive(action)

    def close_link_when_idle(self) -> None:
        """Close the kernel's descriptors as soon as no thread reads from them."""
        self._is_retired = True
        if self._lock.acquire(blocking=False):
            self._release()

    def check_can_follow(self, *, everywhere: bool = False) -> None:
        """Raise Conflict if the open files cannot follow to other layers.

        The caller holds the kernel exclusively.
        """
        self.raise_obstacles(self._request({"do": "ready", "all": everywhere}).reply, force=True)

    def raise_obstacles(self, reply: dict[str, Any], *, force: bool) -> None:
        """Raise Conflict for the threads or open files that prevent a fork."""
        threads, stuck = reply.get("threads") or [], reply.get("stuck") or []
        if threads and not force:
            raise Conflict(
                "threads_alive",
                f"{len(threads)} threads of kernel {self.name!r} would not be in a fork: "
                f"{', '.join(map(str, threads[:10]))}; end them first, or fork(…, force=True)",
                threads=threads,
            )
        if stuck:
            raise Conflict(
                "files_stuck",
                f"kernel {self.name!r} writes to files that a copy cannot open again: "
                f"{', '.join(map(str, stuck[:10]))}; close them first",
                files=stuck,
            )

    def switch_files(self, *fds: int) -> None:
        """Move the kernel to other file layers; the caller holds it exclusively.

        `check_can_follow` comes first. Without descriptors the kernel reopens its files on the
        machine's present layers. With a root and a namespace it moves to a private layer. With a
        root alone it moves to the machine's own files.
        """
        self._request({"do": "follow"}, fds)

    def send(self, message: dict[str, Any], fds: Sequence[int] = ()) -> None:
        """Send a message without waiting for its reply; `receive` returns the reply.

        The caller holds the kernel exclusively.
        """
        try:
            self.link.send(message, fds)
        except KernelGone as gone:
            raise self._mark_gone(gone.why) from gone

    def receive(self, timeout: float | None = None) -> KernelReply:
        """Wait for the reply to `send`; the caller closes its descriptors."""
        return self._request(None, timeout=timeout)

    # internals

    @contextmanager
    def _exclusive(self, action: str) -> Iterator[None]:
        if not self._lock.acquire(blocking=False):
            raise Conflict(
                "kernel_busy",
                f"kernel {self.name!r} runs code, so it cannot {action}: wait for it, or "
                "kernel.interrupt()",
            )
        try:
            if self._closed_reason:
                raise Invalid("closed", self._closed_reason)
            yield
        finally:
            self._release()

    def _release(self) -> None:
        if self._is_retired:
            self.link.close()
        self._lock.release()

    def _request(
        self,
        message: dict[str, Any] | None,
        fds: Sequence[int] = (),
        *,
        timeout: float | None = None,
        output: OutputCallback | None = None,
    ) -> KernelReply:
        try:
            reply = self.link.request(message, fds, timeout=timeout, output=output)
        except KernelGone as gone:
            raise self._mark_gone(gone.why, gone.stderr) from gone
        except BaseException:
            # The caller was interrupted, for example by Ctrl-C. The reply to this request must not
            # be taken for the reply to the next one.
            with suppress(KernelGone):
                self.link.request(None, timeout=0)
            raise
        if message is not None:
            for fd in reply.fds:
                os.close(fd)
        return reply

    def _parse_variables(self, reply: KernelReply, part: str) -> list[KernelVariable]:
        try:
            return parse_variables(reply.reply.get(part, []))
        except ValueError as error:
            raise self._mark_gone("it said something that no kernel says") from error

    def _mark_gone(self, why: str, stderr: str = "") -> OrtetError:
        """End what is left of a kernel whose process is gone, and return the error to raise.

        The next kernel() call starts a new process.
        """
        if self._closed_reason:
            return Conflict("closed", f"kernel {self.name!r} was closed while it ran code")
        how = (
            self._owner.exit_reason(self)
            if not why and self.link.wait_exit(_EXIT_TIMEOUT_SECONDS)
            else ""
        )
        what = f"{why}, so it was killed" if why else how or "its process was killed"
        text = (
            f"kernel {self.name!r} is gone ({what}): its variables are lost and files are as it "
            "left them; "
        )
        text += "fork again" if self.layer is not None else "kernel() starts a new one"
        self.end(text)
        return Unavailable("kernel_gone", text, stderr=stderr[-_STDERR_TAIL_CHARS:])
