"""Command access: create, list and revoke tokens for the server of this store."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ortet.cli.call import CliCall, group, verb
from ortet.cli.terminal import output

if TYPE_CHECKING:
    from ortet.server.auth.tokens import Tokens


@group
def access() -> None:
    """Create, list and revoke tokens for clients of `ortet serve`.

    \b
    Example:
      ortet access create ci --allow read --days 30
    """


@verb()
@click.argument("name")
@click.option(
    "--allow",
    type=click.Choice(["read", "write", "admin"]),
    default="write",
    show_default=True,
    help="The rights of the token; each includes those before it.",
)
@click.option(
    "--agent", "agents", multiple=True, metavar="AGENT", help="Only sessions of these agents."
)
@click.option(
    "--tenant",
    default="",
    metavar="TENANT",
    help="The tenant whose store the token opens; by default this store.",
)
@click.option(
    "--days",
    type=click.FloatRange(min=0, min_open=True),
    metavar="DAYS",
    help="The number of days for which the token is valid; by default it does not expire.",
)
@click.option("--no-raw", is_flag=True, help="Allow HTTP requests only, not `ortet.open`.")
def create(
    call: CliCall,
    name: str,
    *,
    allow: str,
    agents: tuple[str, ...],
    tenant: str,
    days: float | None,
    no_raw: bool,
) -> None:
    """Create a token called NAME. It is shown once: only its hash is stored.

    A tenant has a store of its own, which tokens of other tenants cannot see. A program that opens
    the server as its hub (`ortet.open`) writes to the store itself, as a program on the server's
    host would. Use --no-raw for a program that must not, such as an agent that waits for approvals.
    A token with --agent never allows it.

    \b
    Example:
      ortet access create ci --allow read --days 30
    """
    from ortet.server.auth.tokens import public_fields
    from ortet.server.session_pool.tenants import check_tenant

    seconds = None if days is None else days * 86400
    token, row = _tokens(call, create=True).create(
        name, allow, tenant=check_tenant(tenant), agents=agents, seconds=seconds, raw=not no_raw
    )
    until = f" until {output.format_time(row.expires)}" if row.expires else ""
    lines = [token, f"token {row.id} allows {allow}{until}; it is not shown again"]
    if call.output.quiet and not call.output.json:
        click.echo(token)  # print it even with -q: it cannot be shown again
    call.output.emit({"token": token, **public_fields(row)}, lines)


@verb()
def ls(call: CliCall) -> None:
    """List the tokens. Their secret parts are not shown.

    \b
    Example:
      ortet access ls
    """
    from ortet.server.auth.tokens import public_fields

    rows = list(_tokens(call).all())
    lines = output.table(
        [
            row.id,
            row.allows if row.raw else f"{row.allows} (no-raw)",
            row.tenant or "-",
            output.safe(",".join(row.agents)) or "-",
            f"until {output.format_time(row.expires)}" if row.expires else "-",
            output.safe(row.name),
        ]
        for row in rows
    )
    call.output.emit([public_fields(row) for row in rows], lines)


@verb()
@click.argument("token", metavar="ID|NAME")
def revoke(call: CliCall, token: str) -> None:
    """Revoke a token, at once and for every server.

    \b
    Example:
      ortet access revoke ci
    """
    from ortet.server.auth.tokens import public_fields

    row = _tokens(call).revoke(token)
    call.output.emit(public_fields(row), [f"token {row.id} ({output.safe(row.name)}) is revoked"])


def _tokens(call: CliCall, *, create: bool = False) -> Tokens:
    from ortet.server.auth.tokens import Tokens

    hub = call.open_hub(create=True) if create else call.hub
    return Tokens(hub.catalog, hub.clock, hub.random)


for _command in (create, ls, revoke):
    access.add_command(_command)
