"""Command secret: secrets that commands get by name and that no commit may contain."""

from __future__ import annotations

from typing import Any

import click

from ortet.cli.call import CliCall, group, verb
from ortet.cli.commands.external_state import read_secret
from ortet.cli.terminal import output
from ortet.vault.vault import format_expiry, is_expired


@group
def secret() -> None:
    """Store secrets that commands get by name: `ortet run --secret NAME`.

    Secrets are entries of the vault. A commit that contains one is refused.

    \b
    Example:
      ortet secret set DEPLOY_TOKEN < token.txt
      ortet run --secret DEPLOY_TOKEN -- ./deploy.sh
    """


@verb("set")
@click.argument("name")
@click.argument("more", nargs=-1, metavar="< FILE")
@click.option("--expires", metavar="TIME", help="The expiry, such as 90d, 12h or 2027-01-31 (UTC).")
def secret_set(call: CliCall, name: str, more: tuple[str, ...], *, expires: str | None) -> None:
    """Store standard input as a secret, without the newline at its end.

    \b
    Example:
      ortet secret set DEPLOY_TOKEN < token.txt
      ortet secret set DEPLOY_TOKEN --expires 90d < token.txt
    """
    value = read_secret(more)
    vault = call.open_hub(create=True).vault
    vault.put(name, value, expires=expires)
    until = vault.expires(name)
    line = f"kept {name}, until {format_expiry(until)}" if until else f"kept {name}"
    call.output.emit({"name": name, "expires": until or None}, [line])


@verb("ls")
@click.option("--long", is_flag=True, help="Show the expiry of each secret.")
def secret_ls(call: CliCall, *, long: bool) -> None:
    """List the names of secrets.

    \b
    Example:
      ortet secret ls --long
    """
    vault, now = call.hub.vault, call.hub.clock.now_ns()
    if not long:
        call.output.emit(vault.names(), vault.names())
        return
    secrets = [
        {"name": name, "expires": ends or None, "expired": is_expired(ends, now)}
        for name in vault.names()
        for ends in [vault.expires(name)]
    ]
    call.output.emit(secrets, output.table(map(_row, secrets)))


def _row(secret: dict[str, Any]) -> tuple[str, str]:
    if not secret["expires"]:
        return secret["name"], ""
    state = "expired" if secret["expired"] else "until"
    return secret["name"], f"{state} {format_expiry(secret['expires'])}"


@verb("rm")
@click.argument("name")
def secret_rm(call: CliCall, name: str) -> None:
    """Delete a secret.

    \b
    Example:
      ortet secret rm DEPLOY_TOKEN
    """
    call.hub.vault.forget(name)
    call.output.emit({"removed": name}, [f"removed {name}"])


for _command in (secret_set, secret_ls, secret_rm):
    secret.add_command(_command)
