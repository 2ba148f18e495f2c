"""secret: what commands are given by name, and no commit may hold."""

from __future__ import annotations

import click

from ortet.surface.call import Call, group, verb
from ortet.surface.cmd_records import read_value


@group
def secret() -> None:
    """Keep what commands are given by name: `ortet run --secret NAME`.

    Secrets are entries of the vault. A commit in which one is found is refused.

    \b
    Example:
      ortet secret set DEPLOY_TOKEN < token.txt
      ortet run --secret DEPLOY_TOKEN -- ./deploy.sh
    """


@verb("set")
@click.argument("name")
@click.argument("more", nargs=-1, metavar="< FILE")
def secret_set(call: Call, name: str, more: tuple[str, ...]) -> None:
    """Keep what standard input says, without the newline at its end.

    \b
    Example:
      ortet secret set DEPLOY_TOKEN < token.txt
    """
    value = read_value(more)
    call.open_hub(create=True).vault.put(name, value)
    call.emit({"name": name}, [f"kept {name}"])


@verb("ls")
def secret_ls(call: Call) -> None:
    """List the names of secrets.

    \b
    Example:
      ortet secret ls
    """
    names = call.hub.vault.names()
    call.emit(names, names)


@verb("rm")
@click.argument("name")
def secret_rm(call: Call, name: str) -> None:
    """Destroy a secret.

    \b
    Example:
      ortet secret rm DEPLOY_TOKEN
    """
    call.hub.vault.forget(name)
    call.emit({"removed": name}, [f"removed {name}"])


for _command in (secret_set, secret_ls, secret_rm):
    secret.add_command(_command)
