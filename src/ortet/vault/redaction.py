"""The set of known secrets, and their removal from recorded command output.

A module of its own, because it joins the vault with the secret scanner of `machines`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec.structs import replace

from ortet.errors import OrtetError
from ortet.machines.base import Result
from ortet.machines.secrets.names import is_secret
from ortet.machines.secrets.scanner import MIN_SECRET_BYTES, SecretScanner
from ortet.vault.vault import Vault


def known_secrets(
    vault: Vault, entries: Iterable[tuple[str, int]], environ: Mapping[str, str]
) -> SecretScanner:
    """Return a scanner for the secrets of the vault and of the environment.

    Vault entries sealed with a key that this host does not have are left out. An environment
    variable counts only if both its name and its value look like a secret, because a false match
    would refuse a commit.
    """
    values = {name: value for name, value in environ.items() if is_secret(name, value)}
    for name, _ in entries:
        try:
            values[name] = vault.value_even_expired(name)
        except OrtetError:  # sealed with a key of another host, so the value is unknown here
            continue
    return SecretScanner(values)


def redact_result(result: Result, secrets: Mapping[str, str]) -> Result:
    """Replace secrets in the output by their names in brackets, except very short ones."""
    stdout, stderr = result.stdout, result.stderr
    for name, value in sorted(secrets.items(), key=lambda item: -len(item[1])):
        if len(value) >= MIN_SECRET_BYTES:
            stdout, stderr = (text.replace(value, f"[{name}]") for text in (stdout, stderr))
    return replace(result, stdout=stdout, stderr=stderr)
