"""Command mcp: run a server of the Model Context Protocol, for coding agents."""

from __future__ import annotations

import sys

import click

from ortet.cli.call import CliCall, verb
from ortet.errors import Invalid, Unsupported


@verb()
@click.option(
    "-s",
    "--session",
    metavar="SESSION",
    help="The name or id of the session; by default the session of this directory.",
)
@click.option(
    "--agent",
    default="default",
    show_default=True,
    metavar="NAME",
    help="The agent that the session belongs to.",
)
@click.option(
    "--store", metavar="URL", help="The URL of the store; by default the store of this directory."
)
@click.option(
    "--allow-destructive", is_flag=True, help="Restore, rewind and forget without confirmation."
)
@click.option(
    "--http",
    "port",
    type=int,
    metavar="PORT",
    help="Listen for HTTP on this port; 0 takes any free port.",
)
@click.option(
    "--host", metavar="HOST", help="With --http: the address to listen on; by default 127.0.0.1."
)
@click.option("--no-auth", is_flag=True, help="With --http: require no token; on loopback only.")
def mcp(
    call: CliCall,
    *,
    session: str | None,
    agent: str,
    store: str | None,
    allow_destructive: bool,
    port: int | None,
    host: str | None,
    no_auth: bool,
) -> None:
    """Serve this directory to a coding agent, over standard streams or HTTP.

    The agent gets tools (commit, restore, recall, ...), resources and prompts; docs/guide/mcp.md
    has the settings of common clients. If there is no session, one named after the workspace is
    begun when the agent first writes. The session is open only during a call, so your own commands
    keep working.

    Over HTTP, clients send a token: the value of $ORTET_MCP_TOKEN, or a token that is made and
    shown when the server starts.

    \b
    Example:
      ortet mcp
      ortet -C path/to/project mcp --session fix-42
      ortet mcp --http 8377
    """
    from ortet.config.environment import mcp_token
    from ortet.mcp_server.context import McpContext

    for flag, is_given in (("--host", host is not None), ("--no-auth", no_auth)):
        if is_given and port is None:
            raise Invalid("bad_usage", f"{flag} is for --http: give a PORT, or leave it out")
    try:
        from ortet.mcp_server import transports
    except ImportError as error:
        raise Unsupported(
            "package_missing",
            f"the MCP server needs the package {error.name}: pip install 'ortet[mcp]'",
        ) from error
    with McpContext(session=session, agent=agent, store=store) as context:
        if port is None:
            if sys.stdin.isatty():
                call.output.note("a client of MCP speaks to this on standard input; Ctrl-C ends it")
            transports.serve_stdio(context, allow_destructive=allow_destructive)
        else:
            transports.serve_http(
                context,
                allow_destructive=allow_destructive,
                host=host or "127.0.0.1",
                port=port,
                token=mcp_token(),
                no_auth=no_auth,
            )
