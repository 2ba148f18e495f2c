"""Python interpreters that keep running in the machine of a session: run, interrupt, fork, and
declare variables.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from ortet.errors import NotFound
from ortet.machines.kernels.link import CellResult, KernelVariable
from ortet.server.auth.tokens import Caller
from ortet.server.operations.machine import Env, Seconds
from ortet.server.operations.registry import operation
from ortet.server.pagination import Page, Paged, paginate
from ortet.server.schemas import OperationRequest
from ortet.server.session_pool.machine_access import find_open_session
from ortet.server.session_pool.pool import SessionPool
from ortet.sessions.machine.kernels import SessionKernel
from ortet.sessions.session import Session

Code = Annotated[str, msgspec.Meta(max_length=4 << 20)]
Variable = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]


class KernelInfo(msgspec.Struct, frozen=True):
    """`keeping`: the variables that a commit saves. A fork is named after its origin, such as
    main/1.
    """

    name: str
    fork: bool
    keeping: list[str]


class KernelsRequest(Paged, frozen=True):
    session: str = ""


@operation("GET", "/sessions/{session}/kernels", filtered=True)
def list_kernels(pool: SessionPool, ask: KernelsRequest, caller: Caller) -> Page[KernelInfo]:
    """List the interpreters that run in this server's machine of the session."""
    row = pool.row(ask.session, caller.sees)
    session, _ = find_open_session(pool, row.id)
    kernels = [_info(one) for one in session.programs.kernels()] if session is not None else []
    return paginate(kernels, ask, lambda one: one.name)


def _info(kernel: SessionKernel) -> KernelInfo:
    live = kernel.live
    return KernelInfo(
        kernel.name, "/" in kernel.name, list(live.declared_variables) if live else []
    )


class RunCode(OperationRequest, frozen=True):
    """`python`: the program of a new interpreter, by default the Python of the workspace's .venv,
    else of the server. `env`: variables of a new interpreter. `keep`: only these variables are part
    of commits. `key`: run the code once in all forks of the session. `timeout`: the number of
    seconds after which the code is interrupted.
    """

    name: str
    code: Code
    why: str = ""
    timeout: Seconds | None = None
    key: str | None = None
    scope: Literal["family", "timeline"] | None = None
    python: str | None = None
    env: Env | None = None
    keep: list[Variable] | None = None


@operation("POST", "/sessions/{session}/kernels/{name}/run", needs_host=True)
def run_code(session: Session, ask: RunCode) -> CellResult:
    """Run Python code in the interpreter of this name, and return the value of its last expression.
    The interpreter is started at first use. If the code raises an error, the answer has its
    traceback, and the interpreter keeps running.
    """
    kernel = _find_kernel(session, ask.name)
    if kernel is None or ask.keep is not None:
        _check_name(ask.name)
        kernel = session.kernel(ask.name, python=ask.python, env=ask.env, keep=ask.keep)
    return kernel.run(ask.code, why=ask.why, timeout=ask.timeout, key=ask.key, scope=ask.scope)


def _check_name(name: str) -> None:
    if "/" in name:
        raise _no_kernel(name)


def _find_kernel(session: Session, name: str) -> SessionKernel | None:
    return next((one for one in session.programs.kernels() if one.name == name), None)


def _require_kernel(session: Session | None, name: str) -> SessionKernel:
    kernel = _find_kernel(session, name) if session is not None else None
    if kernel is None:
        raise _no_kernel(name)
    return kernel


def _no_kernel(name: str) -> NotFound:
    return NotFound(
        "no_kernel", f"no kernel {name[:100]!r} lives in this server: run code in one to start it"
    )


class OfKernel(OperationRequest, frozen=True):
    session: str
    name: str


class KernelEnded(msgspec.Struct, frozen=True):
    name: str


@operation("POST", "/sessions/{session}/kernels/{name}/interrupt", filtered=True, needs_host=True)
def interrupt(pool: SessionPool, ask: OfKernel, caller: Caller) -> KernelInfo:
    """Raise KeyboardInterrupt in the code that an interpreter runs, if any."""
    row = pool.row(ask.session, caller.sees)
    kernel = _require_kernel(find_open_session(pool, row.id)[0], ask.name)
    kernel.interrupt()
    return _info(kernel)


@operation("DELETE", "/sessions/{session}/kernels/{name}", filtered=True, needs_host=True)
def close_kernel(pool: SessionPool, ask: OfKernel, caller: Caller) -> KernelEnded:
    """End an interpreter at once. The files of a fork are deleted."""
    row = pool.row(ask.session, caller.sees)
    kernel = _require_kernel(find_open_session(pool, row.id)[0], ask.name)
    kernel.close()
    return KernelEnded(ask.name)


class ForkKernelRequest(OperationRequest, frozen=True):
    """`force`: fork even if other threads run. The copies do not have these threads."""

    name: str
    n: Annotated[int, msgspec.Meta(ge=1, le=256)] = 1
    why: str = ""
    force: bool = False


class KernelForks(msgspec.Struct, frozen=True):
    forks: list[KernelInfo]


@operation("POST", "/sessions/{session}/kernels/{name}/fork", status=201, needs_host=True)
def fork_kernel(session: Session, ask: ForkKernelRequest) -> KernelForks:
    """Copy an interpreter. Each copy continues from the present state, with its own memory and
    files. In a path, the slash of a fork's name is written %2F.
    """
    kernel = _require_kernel(session, ask.name)
    return KernelForks([_info(one) for one in kernel.fork(ask.n, why=ask.why, force=ask.force)])


class KeepFork(OperationRequest, frozen=True):
    name: str
    fork: str
    why: str = ""


@operation("POST", "/sessions/{session}/kernels/{name}/keep", needs_host=True)
def keep_fork(session: Session, ask: KeepFork) -> KernelInfo:
    """Replace an interpreter by one of its forks. The files of the fork become the files of the
    machine.
    """
    kernel = _require_kernel(session, ask.name)
    return _info(kernel.keep(_require_kernel(session, ask.fork), why=ask.why))


class Declare(OperationRequest, frozen=True):
    name: str
    names: list[Variable] = []


class Variables(msgspec.Struct, frozen=True):
    """The declared variables. `why`: the reason why the variable cannot be saved, or ""."""

    variables: list[KernelVariable]


@operation("POST", "/sessions/{session}/kernels/{name}/vars", needs_host=True)
def declare_vars(session: Session, ask: Declare) -> Variables:
    """Declare the variables that a commit saves and a restore brings back. The list replaces the
    earlier list.
    """
    return Variables(_require_kernel(session, ask.name).vars(*ask.names))
