"""doctor: what this host can do."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ortet.cli import output
from ortet.cli.call import Call, verb
from ortet.errors import NotFound, OrtetError, Unavailable

if TYPE_CHECKING:
    from ortet.backends.object_storage.pending_uploads import Owes
    from ortet.machines.base import Capability
    from ortet.machines.cleanup import Leftover


_NEEDED = ("server", "postgresql", "schema", "rights")
_SERVERS = (*_NEEDED, "bucket", "valkey", "valkey cache")


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
    It ends with 0 where the store can be used as it is configured, or is not made yet.

    \b
    Example:
      ortet doctor
      ortet doctor --clean
    """
    from ortet.cli.commands.agentcall import told
    from ortet.config.environment import store_url, wanted_criu
    from ortet.machines.doctor import examine

    url = store_url(cwd=call.here)
    with call.progress("looking"):
        servers, store, trouble = _servers(call, url)
        exists = trouble is None
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
        "given_up": exists and give_up is not None,
    }
    why = _why(trouble)
    call.emit(data, _lines(call, str(data["store"]), why, found=found, agent=agent))
    if dead:
        names = output.plural(len(dead), "machine")
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
    if give_up is not None and not exists:
        call.note(f"nothing was done about {output.safe(give_up)}: the store was not opened")
    if give_up is None or not exists:  # else that was done, whatever is wrong besides
        _check(servers)
    if trouble is not None and (give_up is not None or not _is_new(trouble)):
        raise trouble


def _servers(call: Call, url: str) -> tuple[list[Capability], Path, OrtetError | None]:
    """What the servers of a store say, none of one in a directory; where it is on this host, and
    why it cannot be opened, if so."""
    from ortet.config.environment import cache_place, store_path, variable
    from ortet.config.store_url import is_elsewhere

    if not is_elsewhere(url):
        return [], store_path(url), _opened(call)
    from ortet.config.checkup import examine_servers

    place = cache_place()
    found = examine_servers(url, cache=place, token=variable("ORTET_TOKEN") or "")
    try:
        _check(found, _NEEDED)  # opening it would migrate it
    except Unavailable as error:
        return found, place, error
    trouble = _opened(call)
    return found, place if trouble else call.hub.root, trouble


def _opened(call: Call) -> OrtetError | None:
    try:
        _ = call.hub
    except OrtetError as error:
        return error
    return None


def _check(servers: list[Capability], names: tuple[str, ...] = _SERVERS) -> None:
    """What a script goes by: a server that the store is configured with must be of use."""
    bad = [one.name for one in servers if one.name in names and not one.ok]
    if bad:
        raise Unavailable(
            "server_unusable",
            f"the store cannot be used as it is configured ({', '.join(bad)}): do what is said of "
            "each",
            servers=bad,
        )


def _is_new(trouble: OrtetError) -> bool:
    return isinstance(trouble, NotFound) and trouble.kind == "no_store"


def _why(trouble: OrtetError | None) -> str:
    if trouble is None:
        return ""
    if _is_new(trouble):
        return "not made yet"
    if trouble.kind == "server_unusable":
        return "it cannot be opened from here, see below"
    return f"it cannot be opened: {trouble.message}"


def _dead(call: Call, agent: dict[str, Any] | None) -> list[str]:
    from ortet.cli.machines import found_dead

    workers = agent["workers"] if agent else ()
    return found_dead(call.hub, {name for worker in workers for name in worker["live"]})


def _late(call: Call, lost: str | None) -> list[Owes]:
    """Hosts on whose disks alone there is something; of these the one that is given up."""
    from ortet.backends.object_storage.pending_uploads import give_up, owing

    catalog = call.hub.catalog
    return list(owing(catalog).values()) if lost is None else give_up(catalog, lost)


def _tell_late(call: Call, owes: Owes, *, given_up: bool) -> None:
    since, commits = output.when(owes.since), output.plural(len(owes.commits), "commit")
    what = f"{commits}, as far as it has said" if owes.commits else "something"
    host = output.safe(owes.host)
    if given_up:
        gone = f" ({', '.join(map(output.short, owes.commits[-5:]))})" if owes.commits else ""
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
    yield f"store {output.safe(store)}{why and ', '}{output.safe(why)}"
    if agent:
        live = sum(len(worker["live"]) for worker in agent["workers"])
        machines = f", {output.plural(live, 'live machine')}" if live else ""
        yield f"agent running as {agent['pid']}{machines}"
    else:
        yield "agent not running"
    width = max(len(line.name) for line in found)
    for line in found:
        mark = call.paint("yes", fg="green") if line.ok else call.paint("no ", fg="yellow")
        yield f"  {mark}  {line.name:<{width}}  {output.safe(line.detail)}".rstrip()
        if not line.ok and line.fix:
            yield f"       {'':<{width}}  -> {output.safe(line.fix)}"
