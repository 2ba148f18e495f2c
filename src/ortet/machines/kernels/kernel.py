"""A Python kernel: a persistent interpreter inside a machine, that forks in milliseconds."""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from typing import IO, TYPE_CHECKING, Any

from ortet._util.validation import CALL, FLAG, NUMBER, TIMES, check_text, may_be, must_be
from ortet.errors import Conflict, Invalid, OrtetError, Unavailable
from ortet.machines.base import Output
from ortet.machines.kernels.host import Branch
from ortet.machines.kernels.link import Gone, Link, Said
from ortet.machines.kernels.ran import Ran, Var, ran_of, vars_of

if TYPE_CHECKING:
    from ortet.machines.kernels.manager import Kernels

MOST = 256 << 20
"""Bytes that the variables of one kernel may take when they are kept."""

_WORDS = 4000  # characters of its last ones
_DYING = 30.0  # seconds from the end of its socket to that of its process


class Kernel:
    """Runs code in one namespace that stays. One thread at a time, but for `interrupt` and `close`;
    forks may each run in a thread of their own."""

    def __init__(
        self,
        kernels: Kernels,
        name: str,
        link: Link,
        *,
        branch: Branch | None = None,
        launched: bool = False,
    ) -> None:
        self.name = name
        self.keeping: list[str] = []
        self.branch = branch  # None: it works on the machine's own files
        self.link = link
        self.launched = launched  # by the machine, which knows how it ends
        self.runs = 0
        self._kernels = kernels
        self._closed = ""
        self._retired = False
        self._turn = threading.Lock()

    def __repr__(self) -> str:
        state = "closed" if self._closed else "alive" if self.alive else "ended"
        return f"<Kernel {self.name!r} ({state})>"

    def __enter__(self) -> Kernel:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def alive(self) -> bool:
        return not self._closed and self.link.alive

    def run(self, code: str, *, timeout: float | None = None, output: Output | None = None) -> Ran:
        """Execute code, to the value of its last expression; top-level `await` works.

        An error in it is `Ran.error`, and the kernel goes on. At the time-out it is interrupted, as
        by Ctrl-C; a kernel that ignores that is killed: Unavailable("kernel_gone").
        """
        check_text(code=code)
        may_be(NUMBER, timeout=timeout)
        may_be(CALL, output=output)
        began = time.monotonic()
        with self._alone("run code"):
            self.runs += 1
            said = self._converse({"do": "run", "code": code}, timeout=timeout, output=output)
            try:
                return ran_of(
                    said.reply,
                    stdout=said.stdout,
                    stderr=said.stderr,
                    duration=time.monotonic() - began,
                    timed_out=said.timed_out,
                )
            except (ValueError, TypeError, RecursionError) as error:
                raise self._lose("it said something that no kernel says") from error

    def interrupt(self) -> None:
        """Raise KeyboardInterrupt in what it runs; while it runs nothing, nothing happens."""
        self.link.interrupt()

    def fork(self, n: int = 1, *, force: bool = False) -> list[Kernel]:
        """n kernels that go on from here: the same memory, shared until written to, and files of
        their own; all or none. A fork can be forked in turn.

        Threads would not be in the copies, so while some are alive it is a Conflict that names
        them, unless `force`. Random numbers differ in each copy.
        """
        must_be(TIMES, n=n)
        must_be(FLAG, force=force)
        with self._alone("fork"):
            return self._kernels.grow(self, n, force=force)

    def keep(self, fork: Kernel) -> Kernel:
        """Go on with this fork: its files become the machine's and its interpreter takes the place,
        and the name, of this one, which ends. Where this one is a fork itself, files stay apart."""
        if not isinstance(fork, Kernel) or fork.branch is None or fork is self:
            raise Invalid("not_a_fork", "give one of the kernels that kernel.fork() returned")
        with self._alone("be replaced"), fork._alone("be kept"):
            self._kernels.take(self, fork)
        return fork

    def vars(self, *names: str) -> list[Var]:
        """Declare variables that a commit keeps, and a restore brings back; returns all of them,
        and of those that cannot be kept why."""
        for name in names:
            if not isinstance(name, str) or not name.isidentifier():
                raise Invalid("bad_name", f"{name!r} is no name of a variable: as vars('df')")
        self.keeping += [name for name in dict.fromkeys(names) if name not in self.keeping]
        with self._alone("be asked for its variables"):
            said = self._converse({"do": "save", "names": self.keeping, "most": MOST})
        kept = {var.name: var for part in ("kept", "lost") for var in self._vars(said, part)}
        return [kept[name] for name in self.keeping if name in kept]

    def save(self) -> tuple[IO[bytes], list[dict[str, Any]], list[Var]]:
        """The declared variables: their bytes, which only a kernel may read, what each takes, and
        what is missing."""
        with self._alone("keep its variables"), ExitStack() as undo:
            file: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - the caller closes it
            undo.callback(file.close)
            message = {"do": "save", "names": self.keeping, "most": MOST}
            said = self._converse(message, [file.fileno()])
            lost, kept = self._vars(said, "lost"), self._vars(said, "kept")
            sizes = [one.get("size") for one in said.reply["kept"]]
            if not all(isinstance(size, int) and size >= 0 for size in sizes):
                raise self._lose("it said something that no kernel says")
            undo.pop_all()
        pairs = zip(kept, sizes, strict=True)
        return file, [{"name": v.name, "type": v.type, "size": size} for v, size in pairs], lost

    def load(self, file: IO[bytes], variables: Sequence[dict[str, Any]]) -> list[Var]:
        """Bring back what `save` wrote; what could not be brought back."""
        with self._alone("get variables"):
            said = self._converse({"do": "load", "vars": list(variables)}, [file.fileno()])
        return self._vars(said, "lost")

    def close(self) -> None:
        """End it, whatever it does; a fork's files go with it."""
        self.end(f"kernel {self.name!r} is closed: kernel() starts a new one")

    # for Kernels

    def end(self, why: str) -> None:
        if self._closed:
            return
        self._closed = why
        self._kernels.forget(self)

    @contextmanager
    def held(self) -> Iterator[bool]:
        """False when it is busy or gone; otherwise it stays idle during the block."""
        got = self._turn.acquire(blocking=False)
        try:
            yield got and self.alive
        finally:
            if got:
                self._release()

    def turn(self, what: str) -> AbstractContextManager[None]:
        """It stays idle during the block; Conflict when it is not."""
        return self._alone(what)

    def retire(self) -> None:
        """Give back its descriptors, as soon as no thread listens to them."""
        self._retired = True
        if self._turn.acquire(blocking=False):
            self._release()

    def get_ready(self, *, everywhere: bool = False) -> None:
        """Within a turn: Conflict when its files cannot follow to other layers."""
        self.check(self._converse({"do": "ready", "all": everywhere}).reply, force=True)

    def check(self, reply: dict[str, Any], *, force: bool) -> None:
        """What it found in the way, as a Conflict."""
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

    def follow(self, *fds: int) -> None:
        """Within a turn, after `get_ready`: to the machine's present files; with a root and a
        namespace to others, with a root alone to the machine's own."""
        self._converse({"do": "follow"}, fds)

    def say(self, message: dict[str, Any], fds: Sequence[int] = ()) -> None:
        """Within a turn; `hear` has the answer."""
        try:
            self.link.say(message, fds)
        except Gone as gone:
            raise self._lose(gone.why) from gone

    def hear(self, timeout: float | None = None) -> Said:
        return self._converse(None, timeout=timeout)

    # inside

    @contextmanager
    def _alone(self, what: str) -> Iterator[None]:
        if not self._turn.acquire(blocking=False):
            raise Conflict(
                "kernel_busy",
                f"kernel {self.name!r} runs code, so it cannot {what}: wait for it, or "
                "kernel.interrupt()",
            )
        try:
            if self._closed:
                raise Invalid("closed", self._closed)
            yield
        finally:
            self._release()

    def _release(self) -> None:
        if self._retired:
            self.link.close()
        self._turn.release()

    def _converse(
        self,
        message: dict[str, Any] | None,
        fds: Sequence[int] = (),
        *,
        timeout: float | None = None,
        output: Output | None = None,
    ) -> Said:
        try:
            said = self.link.converse(message, fds, timeout=timeout, output=output)
        except Gone as gone:
            raise self._lose(gone.why, gone.words) from gone
        except BaseException:
            # the caller's own doing, as Ctrl-C: what it runs must not answer the next call
            with suppress(Gone):
                self.link.converse(None, timeout=0)
            raise
        if message is not None:
            for fd in said.fds:
                os.close(fd)
        return said

    def _vars(self, said: Said, part: str) -> list[Var]:
        try:
            return vars_of(said.reply.get(part, []))
        except ValueError as error:
            raise self._lose("it said something that no kernel says") from error

    def _lose(self, why: str, words: str = "") -> OrtetError:
        """It is gone: what is left of it is ended, and the next kernel() starts anew."""
        if self._closed:
            return Conflict("closed", f"kernel {self.name!r} was closed while it ran code")
        how = self._kernels.autopsy(self) if not why and self.link.dead(_DYING) else ""
        what = f"{why}, so it was killed" if why else how or "its process was killed"
        text = (
            f"kernel {self.name!r} is gone ({what}): its variables are lost and files are as it "
            "left them; "
        )
        text += "fork again" if self.branch is not None else "kernel() starts a new one"
        self.end(text)
        return Unavailable("kernel_gone", text, stderr=words[-_WORDS:])
