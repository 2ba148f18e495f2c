"""serve: the store over HTTP."""

from __future__ import annotations

import click

from ortet.errors import Invalid, Unsupported
from ortet.surface.call import Call, verb


@verb()
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), default=7878, show_default=True)
@click.option("--no-auth", is_flag=True, help="Ask for no token; on loopback only.")
@click.option("--allow-host", multiple=True, metavar="NAME", help="Another name of this server.")
@click.option("--allow-run", is_flag=True, help="Let tokens that may write run commands here.")
def serve(
    call: Call, *, host: str, port: int, no_auth: bool, allow_host: tuple[str, ...], allow_run: bool
) -> None:
    """Serve the store over HTTP: every verb, live events, a page for people.

    Who asks shows a token: `ortet access create` makes one. Stopped with Ctrl-C, it lets requests
    end, and sessions go.

    \b
    Example:
      ortet serve --no-auth
    """
    try:
        from ortet.surface.http import gate, server
        from ortet.surface.http.app import make_app
    except ModuleNotFoundError as error:
        raise Unsupported(
            "extra_missing", f"{error.name} is not installed: pip install 'ortet[serve]'"
        ) from error
    if no_auth and not gate.is_loopback(host):
        raise Invalid(
            "no_auth_here",
            f"--no-auth is for loopback, and {host} is not: leave it out and use tokens",
        )
    from ortet.config import open_hub

    root = str(call.open_hub(create=True).root)
    policy = gate.Policy(gate.hosts_of(host, allow_host), open_=no_auth, may_run=allow_run)
    app = make_app(root, lambda place, create: open_hub(place, create=create), policy)
    with server.bind(host, port) as bound:
        at = f"http://{host}:{bound.getsockname()[1]}"
        server.serve(app, bound, lambda: call.emit({"url": at}, [f"ortet serves {root} at {at}"]))
