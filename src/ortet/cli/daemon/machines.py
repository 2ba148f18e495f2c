"""Finds, starts and uses the live machines of the host agent."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from ortet._util.structs import thread_safe_struct
from ortet.cli.daemon import client, control, live_machines
from ortet.cli.daemon.fast_path import is_agent_off
from ortet.errors import Conflict, Invalid, NotFound, OrtetError, Unavailable, Unsupported

if TYPE_CHECKING:
    from ortet.cli.call import CliCall
    from ortet.hub.hub import Hub
    from ortet.machines.base import Command, OutputCallback, Result
    from ortet.machines.control.client import InitClient

_COMMAND_TIMEOUT_SECONDS = 3600.0  # seconds: an earlier command may dump much memory of the machine


class LiveMachineInfo(msgspec.Struct, frozen=True):
    """A live machine of the host agent: its control socket, and when it started."""

    name: str
    engine: str
    pid: int
    path: str
    lock: str
    directory: str
    since: float

    def connect(self) -> InitClient:
        """Return a client for the machine's init process."""
        from ortet.machines.control.client import InitClient

        return InitClient(self.pid, path=self.path, lock_path=self.lock)

    def run(
        self,
        command: Command,
        *,
        env: Mapping[str, str | None],
        cwd: str = "",
        timeout: float | None = None,
        stdin: bytes | None = None,
        output: OutputCallback | None = None,
        secrets: Sequence[str] = (),
    ) -> Result:
        """Run a command in the machine, like Workspace.run, concurrently with other commands.

        `secrets` must be empty: no commit may happen while a command has secrets, and only the
        agent can ensure that.
        """
        assert not secrets
        from ortet.machines.command import argv_of, build_environment, check_run, relative_cwd

        check_run(command, env=env, cwd=cwd, timeout=timeout, stdin=stdin, output=output)
        mark = os.urandom(8).hex()
        return self.connect().run(
            argv_of(command),
            env=build_environment(env, mark),
            cwd=os.path.join(self.directory, relative_cwd(cwd)),
            timeout=timeout,
            stdin=stdin,
            output=output,
            mark=mark,
        )


def retry_in_agent(words: Sequence[str], error: OrtetError, call: CliCall) -> int | None:
    """Run a command in the agent if it failed because the agent has the machine open.

    Return the exit code, or None if the machine is not in the agent.
    """
    if error.kind != "machine_open" or is_agent_off():
        return None
    store = call.local_store_path()
    name = next((name for name in list_live(store) if name in words), None)
    if name is None:
        return None
    from ortet.cli.terminal.pager import streams_for_agent

    try:
        with streams_for_agent(call.output.start_pager()) as streams:
            return client.run_command(
                str(store), name, words, timeout=_COMMAND_TIMEOUT_SECONDS, **streams._asdict()
            )
    except (client.NoDaemon, client.DaemonLost):
        return None


def list_live(store: Path) -> dict[str, LiveMachineInfo]:
    """Return the live machines of a store by name. Empty if no agent runs."""
    machines = control.list_live_machines(store)
    return {
        name: msgspec.convert({"name": name, **about}, thread_safe_struct(LiveMachineInfo))
        for name, about in machines.items()
    }


def list_dead(hub: Hub, live: Collection[str]) -> list[str]:
    """Return machines that ended without a stop and can be started again.

    Records of dropped workspaces are deleted.
    """
    names = sorted(name for name in live_machines.recorded_machines(hub.root) if name not in live)
    for name in names:
        if hub.workspaces.table.get(name) is None:  # dropped in the meantime
            live_machines.remove_record(hub.root, name)
    return [name for name in names if hub.workspaces.table.get(name) is not None]


def resolve_name(call: CliCall, name: str | None) -> str:
    """Return the name of the machine: the given one, this directory's, or the only one."""
    if name is not None:
        return name
    live = list_live(call.hub.root)
    pointer = call.pointer()
    if pointer is not None:
        directory = os.path.realpath(pointer.directory)
        ours = [one.name for one in live.values() if os.path.realpath(one.directory) == directory]
        if row := _machine_of_directory(call, pointer.directory):
            return row
        if len(ours) == 1:
            return ours[0]
        return ""
    if len(live) == 1:
        return next(iter(live))
    raise Invalid(
        "which_machine", "several machines live: name one with -w (`ortet ps` lists them)"
    )


def _machine_of_directory(call: CliCall, directory: Path) -> str:
    for engine in ("criu", "overlay"):
        row = call.hub.workspaces.table.find_at(directory.resolve(), "private", engine)
        if row is not None:
            return row.name
    return ""


def require_live(call: CliCall, name: str | None) -> LiveMachineInfo:
    """Return a live machine. Raises NotFound("not_live"), with the command that starts it."""
    machine_name = resolve_name(call, name)
    live = list_live(call.hub.root).get(machine_name)
    if live is None:
        if machine_name:
            call.hub.workspaces.table.need(machine_name)
        start = f"ortet start {machine_name}".rstrip()
        raise NotFound(
            "not_live",
            f"{machine_name or 'the machine of this directory'} does not run: `{start}` starts it "
            "(`ortet ps` lists those that do)",
        )
    return live


def find_or_start(
    call: CliCall, name: str | None, *, restore: bool = False, network: str | None = None
) -> LiveMachineInfo:
    """Return a live machine, and start it if necessary.

    With `restore`, the processes of its last commit are restored.
    """
    machine_name = resolve_name(call, name)
    if live := list_live(call.hub.root).get(machine_name):
        if network not in (None, call.hub.workspaces.table.need(machine_name).network):
            raise Conflict(
                "already_live",
                f"{machine_name} runs already, with another network: end it with "
                f"`ortet stop {machine_name}`, then start it again",
            )
        return live
    words = ["machine", "open", *(["--restore"] if restore else [])]
    words += ["--network", network] if network is not None else []
    if machine_name:
        call.hub.workspaces.table.need(machine_name)
        words += ["-w", machine_name]
    reply = run_in_agent(call, machine_name or f"{call.row().name}-live", words, start=True)
    for loss in reply.pop("losses"):
        call.output.note(f"not kept: {loss['path']}: {loss['what']} ({loss['why']})")
    return msgspec.convert(reply, thread_safe_struct(LiveMachineInfo))


def run_in_agent(
    call: CliCall, key: str, words: Sequence[str], *, start: bool = False
) -> dict[str, Any]:
    """Run an internal command in the host agent and return its JSON answer.

    Its errors go to our standard error. If it fails, this process exits with its exit code.
    """
    store = call.hub.root
    if start:
        _check_agent_allowed()
        control.start_agent(store)
    read, write = os.pipe2(os.O_CLOEXEC)
    try:
        arguments = ["--json", *words] if call.output.json else list(words)
        code = client.run_command(
            str(store), key, arguments, streams=(0, write, 2), timeout=_COMMAND_TIMEOUT_SECONDS
        )
    except client.NoDaemon as error:
        os.close(read)
        raise Unavailable(
            "no_agent", f"the host agent does not do it ({error}): try again"
        ) from error
    except client.DaemonLost as error:
        os.close(read)
        raise Unavailable(
            "agent_lost",
            "the host agent ended during the command: check the machines with `ortet ps`",
        ) from error
    finally:
        os.close(write)
    with os.fdopen(read, "rb") as file:
        text = file.read()
    if code:
        raise SystemExit(code)
    answer: dict[str, Any] = json.loads(text)
    return answer


def _check_agent_allowed() -> None:
    if is_agent_off():
        raise Unsupported(
            "agent_off",
            "a live machine needs the host agent, which ORTET_AGENT=off turns off: unset it, or "
            "keep the machine in a program of your own (hub.workspace)",
        )
