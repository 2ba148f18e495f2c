"""The vault: secrets by name, encrypted, outside of every commit. What refers to one by its name
finds what it is now, however old the commit."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec

from ortet._util.codec import Hasher, decode, encode
from ortet._util.failpoints import failpoint
from ortet._util.validation import check_text
from ortet.backends.base import Catalog, CatalogRow, RowChange
from ortet.errors import Conflict, Corrupt, Invalid, NotFound, Refused, Unsupported
from ortet.ids import Clock, Random
from ortet.vault.expiry import Expires, format_expiry, is_expired, parse_expiry
from ortet.vault.keys import Keyring

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

VAULT_ROW_KIND = "vault"
BROWSER_PREFIX = "browser/"
"""Names that begin so are states of browsers: sessions make and forget them."""

MAX_SECRET_BYTES = 16 << 20
_NONCE_BYTES = 12
_AAD_PREFIX = b"ortet vault 1\0"
_TRIES = 20
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@+-]*(?:/[A-Za-z0-9][A-Za-z0-9._@+-]*)*\Z")


class SealedEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """An entry as it is stored. The name is bound to it: an entry cannot stand for another."""

    key: bytes  # id of the key it was sealed with
    nonce: bytes
    box: bytes
    time: int
    expires: int = 0  # ns since 1970, 0: never


class Secret(str):
    """A value of the vault. It is the text; what prints it as an object sees only its name, and
    what records events does not take it: `msgspec` encodes no subclass of str."""

    __slots__ = ("name",)
    name: str

    @classmethod
    def of(cls, name: str, value: str) -> Secret:
        made = cls(value)
        made.name = name
        return made

    def __repr__(self) -> str:
        return f"<Secret {self.name!r}>"


class Vault:
    """Entries are rows of the catalog, each sealed by ChaCha20-Poly1305 under a key of the ring: a
    put is one transaction, the last one counts, and other hosts of the store see it."""

    def __init__(self, catalog: Catalog, keyring: Keyring, *, clock: Clock, random: Random) -> None:
        self.change_count = 0  # made by this process
        self._catalog = catalog
        self._keyring = keyring
        self._clock = clock
        self._random = random

    def __repr__(self) -> str:
        return "<Vault>"

    def put(self, name: str, value: str, *, expires: Expires = None) -> None:
        """Keep a secret; under a name that is taken it replaces the one before.

        `expires`: from when on it is of no use: a datetime, a timedelta from now, seconds since
        1970, or text as "2027-01-31", "90d" or "12h". It is not given to anybody then.
        """
        if _check_name(name).startswith(BROWSER_PREFIX):
            raise Invalid("bad_name", f"names in {BROWSER_PREFIX} are for browsers: give another")
        change = self.seal(name, value, parse_expiry(expires, self._clock.now_ns()))
        assert change.value is not None
        failpoint("vault.before-put")
        self._catalog.put_row(VAULT_ROW_KIND, change.key, change.value)
        self.change_count += 1
        failpoint("vault.after-put")

    def get(self, name: str) -> Secret:
        """What it is now; Refused("secret_expired") when it is of no use any more."""
        row = self._row(name)
        expires = self._decode_entry(row).expires
        if is_expired(expires, self._clock.now_ns()):
            raise Refused(
                "secret_expired",
                f"secret {name!r} expired at {format_expiry(expires)}: get a new one and set it "
                "again with "
                f"`ortet secret set {name}` or hub.vault.put({name!r}, …, expires=…)",
                secret=name,
                expires=expires,
            )
        return self._read(row)

    def value_even_expired(self, name: str) -> Secret:
        """The same, also of one that expired: to know it where it must not be."""
        return self._read(self._row(name))

    def expires(self, name: str) -> int:
        """When that is, in ns since 1970; 0: never."""
        return self._decode_entry(self._row(name)).expires

    def has(self, name: str) -> bool:
        return self._catalog.row(VAULT_ROW_KIND, _check_name(name)) is not None

    def names(self, prefix: str = "") -> list[str]:
        """Sorted; states of browsers only if asked for by their `prefix`."""
        check_text(prefix=prefix)
        found = [row.key for row in self._rows() if row.key.startswith(prefix)]
        return [name for name in found if prefix or not name.startswith(BROWSER_PREFIX)]

    def forget(self, *names: str) -> None:
        """Destroy entries, also what the database still holds of them; all, or none."""
        for name in names:
            if not self.has(name):
                raise _missing(name)
        if names:
            gone = [RowChange(VAULT_ROW_KIND, name, None) for name in names]
            self._catalog.move([], verb="vault", detail="forget", rows=gone)
            self._catalog.scrub()
            self.change_count += 1

    def rotate(self) -> int:
        """Seal every entry under another key; returns how many. All of them, or none.

        With a key file the key is made here. With the variable, put the new key in front of the old
        one and a comma between them, rotate, then take the old one away.
        """
        keys = self._keyring.add(self._random)
        for _ in range(_TRIES):
            rows = list(self._rows())
            changes = [
                self._seal_with(
                    row.key,
                    self._decrypt(row, keys),
                    keys[0],
                    expires=self._decode_entry(row).expires,
                    expect=row.version,
                )
                for row in rows
            ]
            failpoint("vault.rotate")
            try:
                self._catalog.move([], verb="vault", detail="rotate", rows=changes)
            except Conflict as error:  # an entry was put meanwhile
                if error.kind != "row_moved":
                    raise
                continue
            self._catalog.scrub()
            return len(changes)
        raise Conflict("row_moved", "the vault is being written to all the time: rotate it later")

    # for who writes an entry together with an event

    def seal(self, name: str, value: str, expires: int = 0) -> RowChange:
        """The change that puts an entry."""
        if not isinstance(value, str) or not value:
            raise Invalid("bad_value", f"the secret for {name!r} is no text, or empty: give some")
        try:
            data = value.encode()
        except UnicodeEncodeError:  # whose message would show it
            raise Invalid("bad_value", f"the secret for {name!r} is no UTF-8 text") from None
        if len(data) > MAX_SECRET_BYTES:
            raise Invalid(
                "bad_value", f"the secret for {name!r} has more than {MAX_SECRET_BYTES} bytes"
            )
        _cipher(bytes(32))  # before a key is made
        keys = self._keyring.keys() or self._keyring.add(self._random)
        return self._seal_with(_check_name(name), data, keys[0], expires=expires)

    def fingerprint(self, value: str) -> str:
        """The same for the same value, and no help in guessing it without the key."""
        keys = self._keyring.keys() or self._keyring.add(self._random)
        return Hasher(Hasher(keys[0]).oid(_AAD_PREFIX + b"mark")).oid(value.encode()).hex()[:32]

    def sealed_rows(self, prefix: str) -> Iterator[CatalogRow]:
        """As they are stored, sealed."""
        return (row for row in self._rows() if row.key.startswith(prefix))

    # inside

    def _rows(self) -> Iterator[CatalogRow]:
        after = ""
        while page := self._catalog.rows(VAULT_ROW_KIND, after):
            yield from page
            after = page[-1].key

    def _row(self, name: str) -> CatalogRow:
        row = self._catalog.row(VAULT_ROW_KIND, _check_name(name))
        if row is None:
            raise _missing(name)
        return row

    def _read(self, row: CatalogRow) -> Secret:
        return Secret.of(row.key, self._decrypt(row, self._keyring.keys()).decode())

    def _decode_entry(self, row: CatalogRow) -> SealedEntry:
        try:
            return decode(SealedEntry, row.value)
        except Corrupt:
            raise _damaged(row.key) from None

    def _seal_with(
        self, name: str, data: bytes, key: bytes, *, expires: int, expect: int | None = None
    ) -> RowChange:
        nonce = self._random(_NONCE_BYTES)
        box = _cipher(key).encrypt(nonce, data, _associated_data(name, expires))
        entry = SealedEntry(_id(key), nonce, box, self._clock.now_ns(), expires)
        return RowChange(VAULT_ROW_KIND, name, encode(entry), expect=expect)

    def _decrypt(self, row: CatalogRow, keys: list[bytes]) -> bytes:
        entry = self._decode_entry(row)
        key = next((key for key in keys if _id(key) == entry.key), None)
        if key is None:
            raise Refused(
                "wrong_key",
                f"entry {row.key!r} of the vault was sealed with key {entry.key.hex()}, which "
                f"{self._keyring.source} does not have: give that key, or put the secret again",
            )
        cipher = _cipher(key)
        from cryptography.exceptions import InvalidTag

        try:
            return cipher.decrypt(entry.nonce, entry.box, _associated_data(row.key, entry.expires))
        except (InvalidTag, ValueError):
            raise _damaged(row.key) from None


def _cipher(key: bytes) -> ChaCha20Poly1305:
    try:
        from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
    except ImportError:
        raise Unsupported(
            "vault_missing",
            "the vault needs the package cryptography: run pip install 'ortet[vault]'",
        ) from None
    return ChaCha20Poly1305(key)


def _associated_data(name: str, expires: int) -> bytes:
    """What an entry is bound to: nobody can make it another's, or last longer."""
    return _AAD_PREFIX + name.encode() + (b"\0%d" % expires if expires else b"")


def _id(key: bytes) -> bytes:
    return Hasher(key).oid(_AAD_PREFIX)[:8]


def _check_name(name: str) -> str:
    if isinstance(name, str) and len(name) <= 200 and _NAME.match(name):
        return name
    raise Invalid(
        "bad_name",
        "this cannot name an entry of the vault: use letters, digits and . _ @ + - in parts joined "
        "by slashes",
    )


def _missing(name: str) -> NotFound:
    return NotFound(
        "no_secret",
        f"the vault has no {name!r}: `ortet secret set {name}` or hub.vault.put({name!r}, …) puts "
        "it there",
    )


def _damaged(name: str) -> Corrupt:
    return Corrupt(
        "bad_entry", f"entry {name!r} of the vault was changed or damaged: put the secret again"
    )
