"""The set of known secrets, and their removal from recorded data and command output.

A module of its own, because it joins the vault with the secret scanner of `machines`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from msgspec.structs import replace

from ortet.backends.base import Catalog
from ortet.errors import OrtetError
from ortet.ids import Clock
from ortet.machines.base import Result
from ortet.machines.secrets.names import is_secret
from ortet.machines.secrets.scanner import MIN_SECRET_BYTES, SecretScanner
from ortet.vault.vault import Vault

_MAX_AGE_NS = 1_000_000_000
"""Age after which `SecretFilter.redact` reads the list of secrets again."""


class SecretFilter:
    """Finds and replaces known secrets: those of the vault and of the environment."""

    def __init__(
        self,
        catalog: Catalog,
        vault: Callable[[], Vault],
        environ: Mapping[str, str],
        clock: Clock,
    ) -> None:
        self._catalog = catalog
        self._vault = vault
        self._environ = environ
        self._clock = clock
        self._is_off = False
        self._scanner: SecretScanner | None = None
        self._versions: list[tuple[str, int]] = []  # vault entries of the scanner
        self._checked = (0, 0)  # time of the last check, and changes of the vault until then

    def scanner(self) -> SecretScanner | None:
        """Return a scanner for secrets that no commit may contain, or None.

        None means that there are none, or that `allow` is active.
        """
        if self._is_off:
            return None
        versions, after = list[tuple[str, int]](), ""
        while page := self._catalog.rows("vault", after):
            versions += [(r.key, r.version) for r in page if not r.key.startswith("browser/")]
            after = page[-1].key
        if self._scanner is None or self._versions != versions:
            self._scanner = known_secrets(self._vault(), versions, self._environ)
            self._versions = versions
        self._checked = self._clock.now_ns(), self._vault().change_count
        return self._scanner or None

    def redact(self, value: Any) -> Any:
        """Return plain data with every known secret replaced by its name.

        The list of secrets is at most one second old. A secret that another process has just added
        may be missed here. A commit reads the list again.
        """
        if self._is_off:
            return value
        when, changes = self._checked
        age = self._clock.now_ns() - when
        if changes != self._vault().change_count or not 0 <= age < _MAX_AGE_NS:
            self.scanner()
        return self._scanner.redact(value) if self._scanner else value

    def redact_bytes(self, data: bytes) -> bytes:
        """Return bytes with every known secret replaced by its name. The list is read again."""
        scanner = self.scanner()
        return scanner.redact_bytes(data) if scanner else data

    @contextmanager
    def allow(self, allow: bool) -> Iterator[None]:
        """Within the block, commits may contain secrets if `allow` is True."""
        before, self._is_off = self._is_off, self._is_off or allow
        try:
            yield
        finally:
            self._is_off = before


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
