"""Which secrets are known, and how what a command printed is recorded without them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec.structs import replace

from ortet.errors import OrtetError
from ortet.machines.base import Result
from ortet.machines.secrets.names import is_secret
from ortet.machines.secrets.needles import MIN_SECRET_BYTES
from ortet.machines.secrets.scanner import SecretScanner
from ortet.vault.vault import Vault


def known_secrets(
    vault: Vault, entries: Iterable[tuple[str, int]], environ: Mapping[str, str]
) -> SecretScanner:
    """Those of the vault that this host has the key for, and of the environment those of which name
    and value both look like it: here a doubt would refuse a commit."""
    values = {name: value for name, value in environ.items() if is_secret(name, value)}
    for name, _ in entries:
        try:
            values[name] = vault.value_even_expired(name)
        except OrtetError:  # sealed with a key that is elsewhere: then its value is not known here
            continue
    return SecretScanner(values)


def redact_result(result: Result, secrets: Mapping[str, str]) -> Result:
    """A result in which names stand for secrets."""
    stdout, stderr = result.stdout, result.stderr
    for name, value in sorted(secrets.items(), key=lambda item: -len(item[1])):
        if len(value) >= MIN_SECRET_BYTES:
            stdout, stderr = (text.replace(value, f"[{name}]") for text in (stdout, stderr))
    return replace(result, stdout=stdout, stderr=stderr)
