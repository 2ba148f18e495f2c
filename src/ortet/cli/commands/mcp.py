"""Command mcp: run a server of the Model Context Protocol, for coding agents."""

from __future__ import annotations

import sys

import click

from ortet.cli.call import CliCall, verb
from ortet.errors import Invalid, Unsupported


@verb()
@click.option("-s", "--session", metavar="SESSION", help="Its name or id; else that of this place.")
@click.option("--agent", default="default", show_default=True, metavar="NAME", help="Whose it is.")
@click.option("--store", metavar="URL", help="The store, if not that of this directory.")
@click.option("--allow-destructive", is_flag=True, help="Restore, rewind, forget without asking.")
@click.option("--http", "port", type=int, metavar="PORT", help="Listen for HTTP; 0 takes any port.")
@click.option("--host", metavar="HOST", help="With --http: where to listen; 127.0.0.1 unless told.")
@click.option("--no-auth", is_flag=True, help="With --http: ask for no token; on loopback only.")
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
    has the settings of common clients. Without a session, one named after the workspace is begun
    when the agent first writes. It is open only during a call, so your own commands go on working.

    Over HTTP, clients show a token: that in $ORTET_MCP_TOKEN, else one that is made and shown when
    the server starts.

    \b
    Example:
      ortet mcp
      ortet -C path/to/project mcp --session fix-42
      ortet mcp --http 8377
    """
    from ortet.config.environment import mcp_token
    from ortet.mcp_server.context import McpContext

    for flag, given in (("--host", host is not None), ("--no-auth", no_auth)):
        if given and port is None:
            raise Invalid("bad_usage", f"{flag} is for --http: give a PORT, or leave it out")
    try:
        from ortet.mcp_server import transports
    except ImportError as error:
        raise Unsupported(
            "package_missing",
            f"the MCP server needs the package {error.name}: pip install 'ortet[mcp]'",
        ) from error
    with McpContext(session=session, agent=agent, store=store) as desk:
        if port is None:
            if sys.stdin.isatty():
                call.output.note("a client of MCP speaks to this on standard input; Ctrl-C ends it")
            transports.serve_stdio(desk, allow_destructive=allow_destructive)
        else:
            transports.serve_http(
                desk,
                allow_destructive=allow_destructive,
                host=host or "127.0.0.1",
                port=port,
                token=mcp_token(),
                no_auth=no_auth,
            )
