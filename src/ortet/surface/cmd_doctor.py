"""doctor: what this host can do."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ortet.surface import render
from ortet.surface.call import Call, verb

if TYPE_CHECKING:
    from ortet.machine.abc import Capability
    from ortet.machine.leftovers import Leftover


@verb()
@click.option(
    "--clean", is_flag=True, help="Remove what crashes left, and cached layers of nobody."
)
def doctor(call: Call, clean: bool) -> None:
    """Say what this host can do, and what to change for the rest.

    Everything is tried for real. It needs no store and makes none.

    \b
    Example:
      ortet doctor
      ortet doctor --clean
    """
    from ortet.config import store_path, store_url, wanted_criu
    from ortet.machine.doctor import examine
    from ortet.surface.agentcall import told

    store = store_path(store_url(cwd=call.here))
    with call.progress("looking"):
        found = examine(store, criu=wanted_criu())
    exists = (store / "FORMAT").exists()
    agent = told(store)
    left, layers = _leftovers(call, clean=clean) if exists else ([], 0)
    dead = _dead(call, agent) if exists else []
    data = {
        "store": str(store),
        "exists": exists,
        "capabilities": found,
        "agent": {"running": agent is not None, **(agent or {})},
        "dead": dead,
        "leftovers": left,
        "cleaned": clean,
        "layers_removed": layers,
    }
    call.emit(data, _lines(call, store, found, agent))
    if dead:
        names = render.plural(len(dead), "machine")
        call.note(
            f"{names} found dead: `ortet start {' '.join(dead)}` goes on from the last commit"
        )
    for thing in left:
        pid = f" {thing.pid}" if thing.pid else ""
        call.note(f"{'removed' if clean else 'left over'}: {thing.what}{pid} {thing.path}")
    if left and not clean:
        call.note("`ortet doctor --clean` removes what is left over")


def _dead(call: Call, agent: dict[str, Any] | None) -> list[str]:
    from ortet.surface.machines import found_dead

    workers = agent["workers"] if agent else ()
    return found_dead(call.hub, {name for worker in workers for name in worker["live"]})


def _leftovers(call: Call, *, clean: bool) -> tuple[list[Leftover], int]:
    return call.hub.tidy() if clean else (call.hub.leftovers(), 0)


def _lines(
    call: Call, store: Path, found: list[Capability], agent: dict[str, Any] | None
) -> Iterator[str]:
    made = "" if (store / "FORMAT").exists() else ", not made yet"
    yield f"store {render.safe(str(store))}{made}"
    if agent:
        live = sum(len(worker["live"]) for worker in agent["workers"])
        machines = f", {render.plural(live, 'live machine')}" if live else ""
        yield f"agent running as {agent['pid']}{machines}"
    else:
        yield "agent not running"
    width = max(len(line.name) for line in found)
    for line in found:
        mark = call.paint("yes", fg="green") if line.ok else call.paint("no ", fg="yellow")
        yield f"  {mark}  {line.name:<{width}}  {render.safe(line.detail)}".rstrip()
        if not line.ok and line.fix:
            yield f"       {'':<{width}}  -> {render.safe(line.fix)}"
