"""The keys of the vault, from an environment variable or from a file of the user.

The file must be readable only by its owner.
"""

from __future__ import annotations

import os
from pathlib import Path

from ortet._util.failpoints import failpoint
from ortet.errors import Invalid, Refused
from ortet.ids import Random
from ortet.objects.tail import storage_error, sync_directory

KEY_BYTES = 32
VAULT_KEY_VARIABLE = "ORTET_VAULT_KEY"
_FILE = "vault.key"


class Keyring:
    """Reads and creates the keys of the vault.

    Args:
        text: The keys in the environment variable, separated by commas; the sealing key is the
            first.
        config_directory: The user's configuration directory with the key file. It is used if `text`
            is empty. Each line is a key; the sealing key is the last.

    The key file is not in the store, so a copy of the store does not contain its key. Lines are
    only appended. Several processes may therefore add keys at the same time, and stores of one user
    share the file.
    """

    def __init__(self, text: str, config_directory: Path | None) -> None:
        self._text = text.strip()
        self._file = config_directory / _FILE if config_directory is not None else None

    def __repr__(self) -> str:
        return f"<Keyring of {self.source}>"

    @property
    def source(self) -> str:
        """The variable or file that holds the keys, for messages."""
        return VAULT_KEY_VARIABLE if self._text else str(self._file or VAULT_KEY_VARIABLE)

    def keys(self) -> list[bytes]:
        """Return all keys, the sealing key first."""
        if self._text:
            return [self._key(word) for word in self._text.split(",")]
        file = self._require_file()
        try:
            with open(file, encoding="ascii", errors="replace") as opened:
                mode = os.fstat(opened.fileno()).st_mode
                lines = opened.read().split()
        except FileNotFoundError:
            return []
        except OSError as error:
            raise Refused(
                "no_vault_key",
                f"{file} cannot be read ({error.strerror}): see to it, or set {VAULT_KEY_VARIABLE}",
            ) from None
        if mode & 0o077:
            raise Refused(
                "open_key", f"others may read {file}, which unlocks the vault: run chmod 600 on it"
            )
        return [self._key(line) for line in reversed(lines)]

    def add(self, random: Random) -> list[bytes]:
        """Append a new sealing key to the file and return all keys.

        Keys of the environment variable are returned unchanged.
        """
        if self._text:
            return self.keys()
        file = self._require_file()
        line = random(KEY_BYTES).hex().encode() + b"\n"
        try:
            file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
            fd = os.open(file, flags, 0o600)
            try:
                os.write(fd, line)
                os.fsync(fd)
            finally:
                os.close(fd)
            sync_directory(file.parent)
        except OSError as error:
            raise storage_error(error, f"making a key for the vault at {file}") from error
        failpoint("vault.key")
        return self.keys()

    def _require_file(self) -> Path:
        if self._file is None:
            raise Invalid(
                "no_vault_key",
                "this user has no home directory for the key of the vault: set "
                f"{VAULT_KEY_VARIABLE} to 64 "
                "hexadecimal digits",
            )
        return self._file

    def _key(self, word: str) -> bytes:
        """Parse one key. The error message must not contain it."""
        try:
            key = bytes.fromhex(word.strip())
        except ValueError:
            key = b""
        if len(key) != KEY_BYTES:
            raise Invalid(
                "bad_vault_key",
                f"a key of {self.source} is not 64 hexadecimal digits: correct it, or take it from "
                "a copy",
            ) from None
        return key
