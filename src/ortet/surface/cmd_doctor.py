"""doctor: what this host can do."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ortet.errors import OrtetError
from ortet.surface import render
from ortet.surface.call import Call, verb

if TYPE_CHECKING:
    from ortet.backend.owing import Owes
    from ortet.machine.abc import Capability
    from ortet.machine.leftovers import Leftover


_NEEDED = ("server", "postgresql", "schema", "rights")
_NOT_MADE = "not made yet"


@verb()
@click.option(
    "--clean", is_flag=True, help="Remove what crashes left, and cached layers of nobody."
)
@click.option(
    "--give-up", metavar="HOST", help="Wait no more for what a lost host has not uploaded."
)
def doctor(call: Call, clean: bool, give_up: str | None) -> None:
    """Say what this host can do, and what to change for the rest.

    Everything is tried for real. It needs no store and makes none. Of a store in servers, each of
    them is asked, too: a database, a bucket, Valkey. Something is put into the bucket and deleted.

    \b
    Example:
      ortet doctor
      ortet doctor --clean
    """
    from ortet.config import store_url, wanted_criu
    from ortet.machine.doctor import examine
    from ortet.surface.agentcall import told

    url = store_url(cwd=call.here)
    with call.progress("looking"):
        servers, store, why = _servers(call, url)
        exists = not why
        found = [*servers, *examine(store, criu=wanted_criu())]
    agent = told(store)
    left, layers = _leftovers(call, clean=clean) if exists else ([], 0)
    dead = _dead(call, agent) if exists else []
    late = _late(call, give_up) if exists else []
    data = {
        "store": url if servers else str(store),
        "exists": exists,
        "capabilities": found,
        "agent": {"running": agent is not None, **(agent or {})},
        "dead": dead,
        "leftovers": left,
        "cleaned": clean,
        "layers_removed": layers,
        "late": late,
        "given_up": give_up is not None,
    }
    call.emit(data, _lines(call, str(data["store"]), why, found=found, agent=agent))
    if dead:
        names = render.plural(len(dead), "machine")
        call.note(
            f"{names} found dead: `ortet start {' '.join(dead)}` goes on from the last commit"
        )
    for thing in left:
        pid = f" {thing.pid}" if thing.pid else ""
        call.note(f"{'removed' if clean else 'left over'}: {thing.what}{pid} {thing.path}")
    for owes in late:
        _tell_late(call, owes, given_up=give_up is not None)
    if left and not clean:
        call.note("`ortet doctor --clean` removes what is left over")


def _servers(call: Call, url: str) -> tuple[list[Capability], Path, str]:
    """What the servers of a store say, none of one in a directory; where it is on this host, and
    why it cannot be opened, if so."""
    from ortet.addresses import is_elsewhere
    from ortet.config import cache_place, store_path, variable

    if not is_elsewhere(url):
        store = store_path(url)
        return [], store, "" if (store / "FORMAT").exists() else _NOT_MADE
    from ortet.checkup import examine_servers

    place = cache_place()
    found = examine_servers(url, cache=place, token=variable("ORTET_TOKEN") or "")
    if all(one.ok for one in found if one.name in _NEEDED):  # opening it would migrate it
        try:
            return found, call.hub.root, ""
        except OrtetError as error:
            why = _NOT_MADE if error.kind == "no_store" else f"it cannot be opened: {error.message}"
            return found, place, why
    return found, place, "it cannot be opened from here, see below"


def _dead(call: Call, agent: dict[str, Any] | None) -> list[str]:
    from ortet.surface.machines import found_dead

    workers = agent["workers"] if agent else ()
    return found_dead(call.hub, {name for worker in workers for name in worker["live"]})


def _late(call: Call, lost: str | None) -> list[Owes]:
    """Hosts on whose disks alone there is something; of these the one that is given up."""
    from ortet.backend.owing import give_up, owing

    catalog = call.hub.catalog
    return list(owing(catalog).values()) if lost is None else give_up(catalog, lost)


def _tell_late(call: Call, owes: Owes, *, given_up: bool) -> None:
    since, commits = render.when(owes.since), render.plural(len(owes.commits), "commit")
    what = f"{commits}, as far as it has said" if owes.commits else "something"
    host = render.safe(owes.host)
    if given_up:
        gone = f" ({', '.join(map(render.short, owes.commits[-5:]))})" if owes.commits else ""
        call.note(f"{host} is waited for no more; `ortet verify` says what is missing{gone}")
        return
    call.note(
        f"{host} has not uploaded {what}, since {since}: others cannot read it until it has; if "
        f"that host is lost, `ortet doctor --give-up {host}`"
    )


def _leftovers(call: Call, *, clean: bool) -> tuple[list[Leftover], int]:
    return call.hub.tidy() if clean else (call.hub.leftovers(), 0)


def _lines(
    call: Call,
    store: str,
    why: str,
    *,
    found: list[Capability],
    agent: dict[str, Any] | None,
) -> Iterator[str]:
    yield f"store {render.safe(store)}{why and ', '}{render.safe(why)}"
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
