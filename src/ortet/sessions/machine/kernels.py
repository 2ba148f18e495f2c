"""The Python kernels of a session: runs are recorded, and declared variables are saved."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from ortet._util.structs import thread_safe_struct
from ortet._util.validation import (
    CALLABLE,
    FLAG,
    NUMBER,
    POSITIVE_COUNT,
    check_text,
    check_texts,
    optional,
    require,
)
from ortet.errors import Corrupt, Invalid, NotFound
from ortet.machines.base import OutputCallback
from ortet.machines.kernels.kernel import Kernel
from ortet.machines.kernels.link import CellResult, KernelVariable
from ortet.sessions.results import clip_middle

if TYPE_CHECKING:
    from ortet.sessions.actions.actions import ByArguments, KeyScope, Replay, Where
    from ortet.workspaces.workspace import Workspace


_ARTIFACT_PREFIX = "kernel/"  # prefix of the artifacts that hold variables
_MAX_VALUE_CHARS = 32 * 1024


class SessionKernels:
    """The kernels of one session.

    `act` records a call as an action. `machine` gives the workspace at first need. `find` and
    `store` read and write artifacts.
    """

    def __init__(
        self,
        act: Callable[..., Any],
        machine: Callable[[], Workspace],
        find: Callable[[str], bytes | None],
        store: Callable[[str, bytes, str], None],
    ) -> None:
        self.act = act
        self._machine = machine
        self._find = find
        self._store = store
        self._kernels: dict[str, SessionKernel] = {}
        self._forks: dict[str, SessionKernel] = {}

    def all(self) -> list[SessionKernel]:
        """Return the running kernels, forks last. A kept fork counts as a normal kernel."""
        both = {id(one): one for one in (*self._kernels.values(), *self._forks.values())}
        return [one for one in both.values() if one.alive]

    def add_fork(self, fork: SessionKernel) -> None:
        self._forks = {name: one for name, one in self._forks.items() if one.alive}
        self._forks[fork.name] = fork

    def get(
        self,
        name: str,
        *,
        python: str | None,
        env: Mapping[str, str | None] | None,
        keep: Sequence[str] | None,
    ) -> SessionKernel:
        check_text(name=name)
        if not name or "/" in name or "\0" in name:
            raise Invalid("bad_name", f"{name!r} is no name for a kernel: give one without '/'")
        declared = None if keep is None else _names(keep)
        kernel = self._kernels.get(name)
        if kernel is None or kernel.ended:
            kernel = SessionKernel(self, name, python=python, env=env)
            self._kernels[name] = kernel
        if declared is not None:
            kernel.declare(declared)
        return kernel

    def start(self, kernel: SessionKernel) -> Kernel:
        """Start the interpreter with the variables saved under its name."""
        live, new = self._machine().kernels.start(kernel.name, python=kernel.python, env=kernel.env)
        self._load(kernel, live, new=new)
        return live

    def replace_kernel(self, old: SessionKernel, by: SessionKernel) -> None:
        self._kernels[old.name] = by

    def save(self) -> None:
        """Save the declared variables of each kernel that ran something since the last commit."""
        for kernel in self._kernels.values():
            live = kernel.live
            if live is None or not live.alive or not live.declared_variables:
                continue
            mark = (live.link.pid, live.run_count, *live.declared_variables)
            if mark == kernel.saved:
                continue
            file, variables, lost = live.save()
            with file:
                file.seek(0)
                head = {"vars": variables, "lost": [[v.name, v.type, v.why] for v in lost]}
                data = json.dumps(head).encode() + b"\n" + file.read()
            kernel.saved, kernel.lost = mark, lost
            if data != self._find(_ARTIFACT_PREFIX + kernel.name):
                self._store(
                    _ARTIFACT_PREFIX + kernel.name, data, lost_variables_text(kernel.name, lost)
                )

    def close(self, why: str) -> None:
        for kernel in (*self._kernels.values(), *self._forks.values()):
            kernel.end(why)
        self._kernels, self._forks = {}, {}

    def _load(self, kernel: SessionKernel, live: Kernel, *, new: bool) -> None:
        """Load saved variables into a new interpreter.

        An interpreter that was restored with the machine has its variables; only their names are
        set.
        """
        data = self._find(_ARTIFACT_PREFIX + kernel.name)
        names: list[str] = []
        kernel.lost = []
        if data is not None:
            head, _, body = data.partition(b"\n")
            try:
                said = json.loads(head)
                variables, missing = said["vars"], [KernelVariable(*one) for one in said["lost"]]
            except (ValueError, KeyError, TypeError) as error:
                raise Corrupt(
                    "bad_kernel", f"the kept variables of {kernel.name!r} cannot be read: {error}"
                ) from error
            if new:
                with tempfile.TemporaryFile() as file:
                    file.write(body)
                    file.seek(0)
                    kernel.lost = [*missing, *live.load(file, variables)]
            names = [one["name"] for one in variables] + [var.name for var in missing]
        live.declared_variables = list(kernel.declared if kernel.declared is not None else names)
        if new and (kernel.declared is None or set(kernel.declared) == set(names)):
            kernel.saved = (live.link.pid, live.run_count, *live.declared_variables)


class SessionKernel:
    """A kernel whose runs are actions of a session; see `Kernel`. It starts at its first run."""

    def __init__(
        self,
        kernels: SessionKernels,
        name: str,
        *,
        python: str | None = None,
        env: Mapping[str, str | None] | None = None,
        live: Kernel | None = None,
        fork: bool = False,
    ) -> None:
        self.name = name
        self.python = python
        self.env = env
        self.live = live
        self.declared: list[str] | None = None
        self.lost: list[KernelVariable] = []
        self.saved: tuple[object, ...] = ()
        self._kernels = kernels
        self._fork = fork
        self._closed_reason = ""

    def __repr__(self) -> str:
        return f"<SessionKernel {self.name!r} ({'alive' if self.alive else 'not running'})>"

    @property
    def alive(self) -> bool:
        """True if the interpreter is running."""
        return self.live is not None and self.live.alive

    @property
    def ended(self) -> bool:
        """True if the kernel was used and has ended. The next kernel of this name is a new one."""
        return bool(self._closed_reason) or (self.live is not None and not self.live.alive)

    def run(
        self,
        code: str,
        *,
        why: str = "",
        timeout: float | None = None,
        output: OutputCallback | None = None,
        replay: Replay | None = None,
        key: str | ByArguments | None = None,
        scope: KeyScope | None = None,
        where: Where | None = None,
    ) -> CellResult:
        """Run code and record it as an action; see `Kernel.run`.

        Args:
            code: the code to run.
            why: the reason.
            timeout: the limit in seconds.
            output: called with output as it arrives.
            replay: how the run may be repeated: "pure", "recorded", "idempotent" or "once".
            key: an idempotency key.
            scope: "family" for the session and all its forks, or "timeline".
            where: "workspace", or "outside" for code whose effects a restore cannot undo.
        """
        check_text(code=code)
        optional(NUMBER, timeout=timeout)
        optional(CALLABLE, output=output)

        def run_here(_name: str, text: str) -> CellResult:
            return self._running_kernel().run(text, timeout=timeout, output=output)

        ran: CellResult = self._kernels.act(
            run_here,
            self.name,
            code,
            why=why,
            replay=replay,
            key=key,
            scope=scope,
            where=where,
            name="kernel.run",
            record=record_kernel_result,
            recall=parse_kernel_result,
        )
        return ran

    def fork(self, n: int = 1, *, why: str = "", force: bool = False) -> list[SessionKernel]:
        """Fork the interpreter into n copies; see `Kernel.fork`. Their runs are recorded too."""
        require(POSITIVE_COUNT, n=n)
        require(FLAG, force=force)
        made: list[Kernel] = []

        def fork_here(_name: str, count: int) -> list[str]:
            made.extend(self._running_kernel().fork(count, force=force))
            return [kernel.name for kernel in made]

        names = self._kernels.act(fork_here, self.name, n, why=why, name="kernel.fork")
        living = {kernel.name: kernel for kernel in made}  # empty in a replay
        forks = [
            SessionKernel(self._kernels, name, live=living.get(name), fork=True) for name in names
        ]
        for fork in forks:
            self._kernels.add_fork(fork)
        return forks

    def keep(self, fork: SessionKernel, *, why: str = "") -> SessionKernel:
        """Replace this kernel by one of its forks; see `Kernel.keep`."""
        if not isinstance(fork, SessionKernel) or not fork._fork:
            raise Invalid("not_a_fork", "give one of the kernels that kernel.fork() returned")

        def keep_here(_name: str, _fork: str) -> None:
            self._running_kernel().keep(fork._running_kernel())

        self._kernels.act(keep_here, self.name, fork.name, why=why, name="kernel.keep")
        fork.name, fork._fork, fork.declared = self.name, self._fork, self.declared
        if not self._fork:
            self._kernels.replace_kernel(self, fork)
        return fork

    def vars(self, *names: str) -> list[KernelVariable]:
        """Declare variables to be saved with each commit; see `Kernel.vars`."""
        found = self._running_kernel().vars(*names)
        self.declared = [*self._running_kernel().declared_variables]
        return found

    def declare(self, names: list[str]) -> None:
        """Set the names of the variables to save with each commit."""
        self.declared = names
        if self.live is not None and self.live.alive:
            self.live.declared_variables = list(names)

    def interrupt(self) -> None:
        """Interrupt the running code."""
        if self.live is not None:
            self.live.interrupt()

    def close(self) -> None:
        """End the interpreter. `kernel()` starts a new one."""
        self.end(f"kernel {self.name!r} is closed: kernel() starts a new one")

    def end(self, why: str) -> None:
        """End the interpreter. Later calls fail with `why`."""
        self._closed_reason = self._closed_reason or why
        if self.live is not None:
            self.live.end(why)

    def _running_kernel(self) -> Kernel:
        """Return the interpreter, started at first need.

        A fork known only from a replay has none.
        """
        if self._closed_reason:
            raise Invalid("closed", self._closed_reason)
        if self.live is None and self._fork:
            raise NotFound("no_kernel", f"fork {self.name!r} was only replayed: fork again")
        if self.live is None:
            self.live = self._kernels.start(self)
        return self.live


def record_kernel_result(ran: CellResult) -> dict[str, Any]:
    """Return the recorded form of a run, with both ends of long texts."""
    told: dict[str, Any] = {
        "value": ran.value if len(json.dumps(ran.value)) <= _MAX_VALUE_CHARS else None,
        "repr": clip_middle(ran.repr),
        "stdout": clip_middle(ran.stdout),
        "stderr": clip_middle(ran.stderr),
    }
    if ran.error is not None:
        error = msgspec.to_builtins(ran.error)
        told["error"] = {**error, "text": clip_middle(ran.error.text)}
    if ran.timed_out:
        told["timed_out"] = True
    return told


def parse_kernel_result(outcome: dict[str, Any]) -> CellResult:
    """Return a result from its recorded form. The duration is not recorded."""
    return msgspec.convert(outcome, thread_safe_struct(CellResult))


def lost_variables_text(name: str, lost: Iterable[KernelVariable]) -> str:
    parts = [f"{var.name} ({var.type}): {var.why}" if var.type else var.name for var in lost]
    return f"variables of kernel {name!r} are not kept: {'; '.join(parts)}" if parts else ""


def _names(keep: Any) -> list[str]:
    names = check_texts("keep", keep)
    for name in names:
        if not name.isidentifier():
            raise Invalid("bad_name", f"{name!r} is no name of a variable: as keep=['df']")
    return list(dict.fromkeys(names))
