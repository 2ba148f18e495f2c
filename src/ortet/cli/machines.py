"""Machines that live in the host agent, as a command finds, starts and asks them."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from ortet._util.structs import known
from ortet.cli.commands import agentcall
from ortet.cli.daemon import client, live_machines
from ortet.errors import Conflict, Invalid, NotFound, OrtetError, Unavailable, Unsupported

if TYPE_CHECKING:
    from ortet.cli.call import Call
    from ortet.hub.hub import Hub
    from ortet.machines.base import Command, Output, Result
    from ortet.machines.control.client import Indoors

_PATIENCE = 3600.0  # seconds: what is done with a machine before may be a dump of much memory


class Living(msgspec.Struct, frozen=True):
    """A machine that the agent holds: what its door is, and since when it lives."""

    name: str
    engine: str
    pid: int
    path: str
    lock: str
    directory: str
    since: float

    def ask(self) -> Indoors:
        """Whoever keeps its programs, to be asked by this process."""
        from ortet.machines.control.client import Indoors

        return Indoors(self.pid, path=self.path, lock=self.lock)

    def run(
        self,
        command: Command,
        *,
        env: Mapping[str, str | None],
        cwd: str = "",
        timeout: float | None = None,
        stdin: bytes | None = None,
        output: Output | None = None,
        secrets: Sequence[str] = (),
    ) -> Result:
        """As Workspace.run, beside whatever else is done with the machine. `secrets` must be none:
        no commit may be made meanwhile, and of that only the agent can take care."""
        assert not secrets
        from ortet.machines.command import argv_of, check_run, environment
        from ortet.machines.folder import inside

        check_run(command, env=env, cwd=cwd, timeout=timeout, stdin=stdin, output=output)
        mark = os.urandom(8).hex()
        return self.ask().run(
            argv_of(command),
            env=environment(env, mark),
            cwd=os.path.join(self.directory, inside(cwd)),
            timeout=timeout,
            stdin=stdin,
            output=output,
            mark=mark,
        )


def by_its_agent(words: Sequence[str], error: OrtetError, call: Call) -> int | None:
    """A verb that found a machine open, done where it is: the exit code, or None when it is not in
    the agent."""
    from ortet.cli.entry import is_off

    if error.kind != "machine_open" or is_off():
        return None
    store = call.place()
    name = next((name for name in living(store) if name in words), None)
    if name is None:
        return None
    from ortet.cli.pager import lent

    try:
        with lent(call.new_pager()) as given:
            return client.perform(str(store), name, words, patience=_PATIENCE, **given._asdict())
    except (client.NoAgent, client.Lost):
        return None


def living(store: Path) -> dict[str, Living]:
    """All of a store, by name; none where no agent runs."""
    found = agentcall.live(store)
    return {
        name: msgspec.convert({"name": name, **about}, known(Living))
        for name, about in found.items()
    }


def found_dead(hub: Hub, living: Collection[str]) -> list[str]:
    """Those that lived, were not ended, and can be started again; what is gone is forgotten."""
    names = sorted(name for name in live_machines.remembered(hub.root) if name not in living)
    for name in names:
        if hub.registry.get(name) is None:  # dropped since
            live_machines.forget(hub.root, name)
    return [name for name in names if hub.registry.get(name) is not None]


def named(call: Call, name: str | None) -> str:
    """The machine that is meant: the one named, that of this directory, or the only one."""
    if name is not None:
        return name
    known = living(call.hub.root)
    pointer = call.pointer()
    if pointer is not None:
        here = os.path.realpath(pointer.directory)
        ours = [one.name for one in known.values() if os.path.realpath(one.directory) == here]
        if row := _of_directory(call, pointer.directory):
            return row
        if len(ours) == 1:
            return ours[0]
        return ""
    if len(known) == 1:
        return next(iter(known))
    raise Invalid("which_machine", "which machine? name one with -w (`ortet ps` lists them)")


def _of_directory(call: Call, directory: Path) -> str:
    for engine in ("criu", "overlay"):
        row = call.hub.registry.at(directory.resolve(), "private", engine)
        if row is not None:
            return row.name
    return ""


def need(call: Call, name: str | None) -> Living:
    """A machine that lives; NotFound, with the command that starts it, for one that does not."""
    meant = named(call, name)
    found = living(call.hub.root).get(meant)
    if found is None:
        if meant:
            call.hub.registry.need(meant)
        raise NotFound(
            "not_live",
            f"{meant or 'the machine of this directory'} does not live: `ortet start"
            f"{' ' + meant if meant else ''}` starts it (`ortet ps` lists those that do)",
        )
    return found


def begin(
    call: Call, name: str | None, *, restore: bool = False, network: str | None = None
) -> Living:
    """A machine that lives, or that is started now; `restore`: with what ran at its last commit."""
    meant = named(call, name)
    if found := living(call.hub.root).get(meant):
        if network not in (None, call.hub.registry.need(meant).network):
            raise Conflict(
                "already_live",
                f"{meant} lives, with the network it has: `ortet stop {meant}`, then start it so",
            )
        return found
    words = ["machine", "open", *(["--restore"] if restore else [])]
    words += ["--network", network] if network is not None else []
    if meant:
        call.hub.registry.need(meant)
        words += ["-w", meant]
    told = order(call, meant or f"{call.row().name}-live", words, start=True)
    for loss in told.pop("losses"):
        call.note(f"not kept: {loss['path']}: {loss['what']} ({loss['why']})")
    return msgspec.convert(told, known(Living))


def order(call: Call, key: str, words: Sequence[str], *, start: bool = False) -> dict[str, Any]:
    """Have the agent do a verb of its own and return what that answers; what it complains of goes
    to our standard error, and its exit code is then ours."""
    store = call.hub.root
    if start:
        _check_wanted()
        agentcall.start(store)
    read, write = os.pipe2(os.O_CLOEXEC)
    try:
        given = ["--json", *words] if call.json else list(words)
        code = client.perform(str(store), key, given, streams=(0, write, 2), patience=_PATIENCE)
    except client.NoAgent as error:
        os.close(read)
        raise Unavailable(
            "no_agent", f"the host agent does not do it ({error}): try again"
        ) from error
    except client.Lost as error:
        os.close(read)
        raise Unavailable(
            "agent_lost", "the host agent ended in the middle of this: look with `ortet ps`"
        ) from error
    finally:
        os.close(write)
    with os.fdopen(read, "rb") as file:
        said = file.read()
    if code:
        raise SystemExit(code)
    answer: dict[str, Any] = json.loads(said)
    return answer


def _check_wanted() -> None:
    from ortet.cli.entry import is_off

    if is_off():
        raise Unsupported(
            "agent_off",
            "a machine lives on in the host agent, which ORTET_AGENT=off forbids: unset it, or "
            "keep the machine in a program of your own (hub.workspace)",
        )
