"""Command doctor: what this host supports, and what is wrong with the store."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ortet.cli.call import CliCall, verb
from ortet.cli.terminal import output
from ortet.errors import NotFound, OrtetError, Unavailable

if TYPE_CHECKING:
    from ortet.backends.object_storage.pending_uploads import PendingUploads
    from ortet.machines.base import Capability
    from ortet.machines.cleanup import Leftover


_REQUIRED_SERVERS = ("server", "postgresql", "schema", "rights")
_ALL_SERVERS = (*_REQUIRED_SERVERS, "bucket", "valkey", "valkey cache")


@verb()
@click.option("--clean", is_flag=True, help="Remove remains of crashes, and unused cached layers.")
@click.option(
    "--give-up", metavar="HOST", help="Give up objects that a lost host has not uploaded."
)
def doctor(call: CliCall, clean: bool, give_up: str | None) -> None:
    """Check what this host supports, and say how to fix the rest.

    Each capability is really tried. No store is needed, and none is made. If the store is in
    servers, each of them is tested: the database, the bucket, Valkey. An object is written to the
    bucket and deleted. The exit code is 0 if the store can be used as configured, or does not exist
    yet.

    \b
    Example:
      ortet doctor
      ortet doctor --clean
    """
    from ortet.cli.daemon.control import agent_status
    from ortet.config.environment import criu_setting, store_url
    from ortet.machines.doctor import probe_host

    url = store_url(cwd=call.cwd)
    with call.output.progress("looking"):
        servers, store, trouble = _examine_servers(call, url)
        exists = trouble is None
        checks = [*servers, *probe_host(store, criu=criu_setting())]
    agent = agent_status(store)
    leftovers, layers = _leftovers(call, clean=clean) if exists else ([], 0)
    dead = _dead_machines(call, agent) if exists else []
    late = _pending_uploads(call, give_up) if exists else []
    data = {
        "store": url if servers else str(store),
        "exists": exists,
        "capabilities": checks,
        "agent": {"running": agent is not None, **(agent or {})},
        "dead": dead,
        "leftovers": leftovers,
        "cleaned": clean,
        "layers_removed": layers,
        "late": late,
        "given_up": exists and give_up is not None,
    }
    why = _store_problem(trouble)
    call.output.emit(data, _lines(call, str(data["store"]), why, capabilities=checks, agent=agent))
    if dead:
        names = output.plural(len(dead), "machine")
        call.output.note(
            f"{names} found dead: `ortet start {' '.join(dead)}` goes on from the last commit"
        )
    for thing in leftovers:
        pid = f" {thing.pid}" if thing.pid else ""
        call.output.note(f"{'removed' if clean else 'left over'}: {thing.what}{pid} {thing.path}")
    for owes in late:
        _print_pending_upload(call, owes, abandoned=give_up is not None)
    if leftovers and not clean:
        call.output.note("`ortet doctor --clean` removes what is left over")
    if give_up is not None and not exists:
        call.output.note(f"nothing was done about {output.safe(give_up)}: the store was not opened")
    if give_up is None or not exists:  # after a successful --give-up, unusable servers are no error
        _require_usable(servers)
    if trouble is not None and (give_up is not None or not _is_store_missing(trouble)):
        raise trouble


def _examine_servers(call: CliCall, url: str) -> tuple[list[Capability], Path, OrtetError | None]:
    """Check the servers of a store. A store in a directory has none.

    Return the results, the store's directory on this host, and the error if it cannot be opened.
    """
    from ortet.config.environment import cache_directory, read_variable, store_path
    from ortet.config.store_url import is_networked

    if not is_networked(url):
        return [], store_path(url), _open_error(call)
    from ortet.config.server_checks import examine_servers

    cache = cache_directory()
    checks = examine_servers(url, cache=cache, token=read_variable("ORTET_TOKEN") or "")
    try:
        _require_usable(checks, _REQUIRED_SERVERS)  # opening the store would migrate it
    except Unavailable as error:
        return checks, cache, error
    trouble = _open_error(call)
    return checks, cache if trouble else call.hub.root, trouble


def _open_error(call: CliCall) -> OrtetError | None:
    try:
        _ = call.hub
    except OrtetError as error:
        return error
    return None


def _require_usable(servers: list[Capability], names: tuple[str, ...] = _ALL_SERVERS) -> None:
    """Raise Unavailable if a server of the store cannot be used. Scripts need the exit code."""
    bad = [one.name for one in servers if one.name in names and not one.ok]
    if bad:
        raise Unavailable(
            "server_unusable",
            f"the store cannot be used as it is configured ({', '.join(bad)}): do what is said of "
            "each",
            servers=bad,
        )


def _is_store_missing(error: OrtetError) -> bool:
    return isinstance(error, NotFound) and error.kind == "no_store"


def _store_problem(error: OrtetError | None) -> str:
    if error is None:
        return ""
    if _is_store_missing(error):
        return "not made yet"
    if error.kind == "server_unusable":
        return "it cannot be opened from here, see below"
    return f"it cannot be opened: {error.message}"


def _dead_machines(call: CliCall, agent: dict[str, Any] | None) -> list[str]:
    from ortet.cli.daemon.machines import list_dead

    workers = agent["workers"] if agent else ()
    return list_dead(call.hub, {name for worker in workers for name in worker["live"]})


def _pending_uploads(call: CliCall, lost_host: str | None) -> list[PendingUploads]:
    """Return the hosts with data that only they have. With `lost_host`, give that host up."""
    from ortet.backends.object_storage.pending_uploads import abandon_host, list_pending_uploads

    catalog = call.hub.catalog
    return (
        list(list_pending_uploads(catalog).values())
        if lost_host is None
        else abandon_host(catalog, lost_host)
    )


def _print_pending_upload(call: CliCall, upload: PendingUploads, *, abandoned: bool) -> None:
    since, commits = output.format_time(upload.since), output.plural(len(upload.commits), "commit")
    what = f"{commits}, as far as it has said" if upload.commits else "something"
    host = output.safe(upload.host)
    if abandoned:
        gone = (
            f" ({', '.join(map(output.short_id, upload.commits[-5:]))})" if upload.commits else ""
        )
        call.output.note(f"{host} is waited for no more; `ortet verify` says what is missing{gone}")
        return
    call.output.note(
        f"{host} has not uploaded {what}, since {since}: others cannot read it until it has; if "
        f"that host is lost, `ortet doctor --give-up {host}`"
    )


def _leftovers(call: CliCall, *, clean: bool) -> tuple[list[Leftover], int]:
    return call.hub.maintenance.tidy() if clean else (call.hub.maintenance.leftovers(), 0)


def _lines(
    call: CliCall,
    store: str,
    problem: str,
    *,
    capabilities: list[Capability],
    agent: dict[str, Any] | None,
) -> Iterator[str]:
    yield f"store {output.safe(store)}{problem and ', '}{output.safe(problem)}"
    if agent:
        live = sum(len(worker["live"]) for worker in agent["workers"])
        machines = f", {output.plural(live, 'live machine')}" if live else ""
        yield f"agent running as {agent['pid']}{machines}"
    else:
        yield "agent not running"
    width = max(len(line.name) for line in capabilities)
    for line in capabilities:
        mark = (
            call.output.paint("yes", fg="green")
            if line.ok
            else call.output.paint("no ", fg="yellow")
        )
        yield f"  {mark}  {line.name:<{width}}  {output.safe(line.detail)}".rstrip()
        if not line.ok and line.fix:
            yield f"       {'':<{width}}  -> {output.safe(line.fix)}"
