"""Command serve: serve the store over HTTP."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click
import msgspec

from ortet._util.structs import thread_safe_struct
from ortet.cli.call import CliCall, verb
from ortet.errors import Invalid, Unsupported

if TYPE_CHECKING:
    from ortet.config.settings import ServeSettings
    from ortet.hub.hub import Hub


@verb()
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    metavar="HOST",
    help="The address to listen on.",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=7878,
    show_default=True,
    metavar="PORT",
    help="The port to listen on; 0 takes any free port.",
)
@click.option("--no-auth", is_flag=True, help="Require no token; on loopback only.")
@click.option(
    "--allow-host", multiple=True, metavar="NAME", help="A further host name of this server."
)
@click.option(
    "--allow-run",
    is_flag=True,
    help="Allow tokens with the right write to run commands on this host.",
)
@click.option(
    "--ray",
    metavar="CLUSTER",
    help="The cluster for swarms with on=ray: ray, or ray://HOST:PORT; by default none.",
)
@click.option(
    "--behind",
    multiple=True,
    metavar="ADDRESS",
    help="The address of a proxy whose X-Forwarded-For is trusted.",
)
@click.option(
    "--limit",
    "limits",
    multiple=True,
    metavar="NAME=VALUE",
    help="A setting as in [serve] of config.toml.",
)
def serve(
    call: CliCall,
    *,
    host: str,
    port: int,
    no_auth: bool,
    allow_host: tuple[str, ...],
    allow_run: bool,
    ray: str | None,
    behind: tuple[str, ...],
    limits: tuple[str, ...],
) -> None:
    """Serve the store over HTTP: every command, live events, and a web page.

    Clients send a token, which `ortet access create` makes. Ctrl-C stops the server after open
    requests have ended and sessions are released. A second Ctrl-C ends it at once.
    docs/guide/serving.md says more.

    \b
    Example:
      ortet serve --no-auth
    """
    try:
        from ortet.server import serve as server
        from ortet.server.app import make_app
        from ortet.server.auth import authenticate
    except ModuleNotFoundError as error:
        raise Unsupported(
            "extra_missing", f"{error.name} is not installed: pip install 'ortet[serve]'"
        ) from error
    if no_auth and not authenticate.is_loopback(host):
        raise Invalid(
            "no_auth_here",
            f"--no-auth is for loopback, and {host} is not: leave it out and use tokens",
        )
    from ortet.config.environment import open_hub, read_settings

    hub = _open_local_hub(call)
    settings = read_settings(hub.root)
    chosen = _apply_options(settings.serve, limits, ray)
    policy = authenticate.AccessPolicy(
        authenticate.allowed_hosts(host, allow_host), open_=no_auth, may_run=allow_run
    )
    with server.bind(host, port) as bound:
        app = make_app(
            hub.url,
            lambda place, create: open_hub(place, create=create),
            policy,
            chosen,
            min_free_bytes=settings.reserve << 20,
        )
        name = f"[{host}]" if ":" in host else host
        url = f"http://{name}:{bound.getsockname()[1]}"

        def started() -> None:
            call.output.emit({"url": url}, [f"ortet serves {_display_url(hub)} at {url}"])
            sys.stdout.flush()  # the process that started us waits for this line

        server.serve(app, bound, started, settings=chosen, trusted_proxies=behind)


def _open_local_hub(call: CliCall) -> Hub:
    from ortet.config.open_store import is_remote

    hub = call.open_hub(create=True)
    if is_remote(hub.url):
        raise Unsupported(
            "remote_store", "a server has this store already: start another where the store is"
        )
    return hub


def _display_url(hub: Hub) -> str:
    """Return the store's URL without options."""
    from ortet.config.open_shared_store import is_shared

    return hub.url.partition("?")[0] if is_shared(hub.url) else hub.url


def _apply_options(
    settings: ServeSettings, limits: tuple[str, ...], ray: str | None
) -> ServeSettings:
    """Return the settings with the changes of the command line options."""
    values = msgspec.structs.asdict(settings)
    if ray is not None:
        values["ray"] = ray
    for word in limits:
        name, _, value = word.partition("=")
        values[name] = value
    try:
        updated = msgspec.convert(values, thread_safe_struct(type(settings)), strict=False)
    except msgspec.ValidationError as error:
        names = ", ".join(type(settings).__struct_fields__)
        raise Invalid("bad_limit", f"--limit: {error}; there are {names}") from error
    if updated.ray:
        _check_cluster(updated.ray)
    return updated


def _check_cluster(address: str) -> None:
    """Check the address of a Ray cluster at start, not at the first swarm. Does not connect."""
    from ortet.swarm.workers.placement import parse_cluster

    try:
        parse_cluster(address, None)
    except Invalid as error:
        raise Invalid(
            "bad_place",
            f"--ray {address}: give ray for the cluster that this host is a node of, or the "
            "address of one, as ray://HOST:10001",
        ) from error
