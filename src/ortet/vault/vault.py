"""The vault: encrypted secrets by name, stored outside of every commit.

A reference holds only the name. Restoring an old commit therefore uses the current secret.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import msgspec

from ortet._util.codec import Hasher, decode, encode
from ortet._util.failpoints import failpoint
from ortet._util.validation import check_text
from ortet.backends.base import Catalog, CatalogRow, RowChange
from ortet.errors import Conflict, Corrupt, Invalid, NotFound, Refused, Unsupported
from ortet.ids import Clock, Random
from ortet.vault.keys import Keyring

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305


# Parsing and formatting of the expiry time of a secret.

Expires = datetime | timedelta | float | str | None

_DURATION = re.compile(r"(\d{1,6})\s*([smhdw])")
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_LATEST = 9e9  # seconds since 1970; the limit of a 64-bit number of ns


def parse_expiry(expires: Expires, now: int) -> int:
    """Return the time in ns since 1970, or 0 for never. A time without a zone is UTC."""
    if expires is None:
        return 0
    seconds = _seconds(expires, now / 1e9)
    if seconds is None or not 0 < seconds < _LATEST:
        raise Invalid(
            "bad_time",
            f"expires={expires!r}: give a datetime, a timedelta, '2027-01-31', '2027-01-31T12:00Z',"
            " or how long it lasts, as '90d', '12h', '30m'",
        )
    at = int(seconds * 1e9)
    if at <= now:
        raise Invalid("bad_time", f"expires={expires!r}: that is over, {format_expiry(at)}")
    return at


def is_expired(expires: int, now: int) -> bool:
    """Return True if a time has passed; 0 never expires."""
    return bool(expires) and expires <= now


def format_expiry(expires: int) -> str:
    """Return the time as readable text in UTC."""
    return datetime.fromtimestamp(expires // 1_000_000_000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _seconds(expires: Expires, now: float) -> float | None:
    if isinstance(expires, timedelta):
        return now + expires.total_seconds()
    if isinstance(expires, str):
        lasting = _DURATION.fullmatch(expires.strip())
        if lasting:
            return now + int(lasting[1]) * _UNITS[lasting[2]]
        try:
            expires = datetime.fromisoformat(expires.strip())
        except ValueError:
            return None
    if isinstance(expires, datetime):
        zoned = expires if expires.tzinfo else expires.replace(tzinfo=UTC)
        return (zoned - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds()
    if isinstance(expires, int | float) and not isinstance(expires, bool):
        return expires
    return None


VAULT_ROW_KIND = "vault"
BROWSER_PREFIX = "browser/"
"""Prefix of browser states, which sessions create and delete."""

MAX_SECRET_BYTES = 16 << 20
_NONCE_BYTES = 12
_AAD_PREFIX = b"ortet vault 1\0"
_TRIES = 20
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@+-]*(?:/[A-Za-z0-9][A-Za-z0-9._@+-]*)*\Z")


class SealedEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """A vault entry as stored. The name is authenticated, so entries cannot be swapped."""

    key: bytes  # id of the sealing key
    nonce: bytes
    box: bytes
    time: int
    expires: int = 0  # ns since 1970, 0: never


class Secret(str):
    """A secret value. It is a str whose repr shows only its name.

    Secrets cannot be recorded as events, because msgspec does not encode subclasses of str.
    """

    __slots__ = ("name",)
    name: str

    @classmethod
    def of(cls, name: str, value: str) -> Secret:
        """Return `value` as a Secret with a name."""
        made = cls(value)
        made.name = name
        return made

    def __repr__(self) -> str:
        return f"<Secret {self.name!r}>"


class Vault:
    """Stores secrets as catalog rows, each sealed with ChaCha20-Poly1305.

    A put is one transaction and the last one wins. All hosts of the store see the entries.
    """

    def __init__(self, catalog: Catalog, keyring: Keyring, *, clock: Clock, random: Random) -> None:
        self.change_count = 0  # changes made by this process
        self._catalog = catalog
        self._keyring = keyring
        self._clock = clock
        self._random = random

    def __repr__(self) -> str:
        return "<Vault>"

    def put(self, name: str, value: str, *, expires: Expires = None) -> None:
        """Store a secret. An existing entry of that name is replaced.

        Args:
            name: Letters, digits and . _ @ + - in parts joined by slashes.
            value: The secret; not empty.
            expires: When the secret becomes invalid: a datetime, a timedelta from now, seconds
                since 1970, or text such as "2027-01-31", "90d" or "12h". It is not returned after
                that time.
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
        """Return the current value of a secret.

        Raise Refused("secret_expired") if it has expired.
        """
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
        """Return the value even if it has expired, to find it where it must not occur."""
        return self._read(self._row(name))

    def expires(self, name: str) -> int:
        """Return the expiry time in ns since 1970; 0: never."""
        return self._decode_entry(self._row(name)).expires

    def has(self, name: str) -> bool:
        """Return True if an entry exists, even an expired one."""
        return self._catalog.row(VAULT_ROW_KIND, _check_name(name)) is not None

    def names(self, prefix: str = "") -> list[str]:
        """Return the names in sorted order.

        Browser states are listed only if `prefix` selects them.
        """
        check_text(prefix=prefix)
        found = [row.key for row in self._rows() if row.key.startswith(prefix)]
        return [name for name in found if prefix or not name.startswith(BROWSER_PREFIX)]

    def forget(self, *names: str) -> None:
        """Destroy entries, also in the files of the database. Destroy all of them or none."""
        for name in names:
            if not self.has(name):
                raise _missing(name)
        if names:
            gone = [RowChange(VAULT_ROW_KIND, name, None) for name in names]
            self._catalog.move([], verb="vault", detail="forget", rows=gone)
            self._catalog.scrub()
            self.change_count += 1

    def rotate(self) -> int:
        """Seal all entries under a new key, in one transaction. Return how many there are.

        With a key file, the new key is created here. With the environment variable, put the new key
        and a comma before the old key, rotate, then remove the old key.
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
            except Conflict as error:  # an entry was written concurrently
                if error.kind != "row_moved":
                    raise
                continue
            self._catalog.scrub()
            return len(changes)
        raise Conflict("row_moved", "the vault is being written to all the time: rotate it later")

    # for callers that write an entry together with an event

    def seal(self, name: str, value: str, expires: int = 0) -> RowChange:
        """Return the row change that stores an entry, for use in a transaction of the caller."""
        if not isinstance(value, str) or not value:
            raise Invalid("bad_value", f"the secret for {name!r} is no text, or empty: give some")
        try:
            data = value.encode()
        except UnicodeEncodeError:  # the message of this exception would contain the secret
            raise Invalid("bad_value", f"the secret for {name!r} is no UTF-8 text") from None
        if len(data) > MAX_SECRET_BYTES:
            raise Invalid(
                "bad_value", f"the secret for {name!r} has more than {MAX_SECRET_BYTES} bytes"
            )
        _cipher(bytes(32))  # fail before a key is created, if the package is missing
        keys = self._keyring.keys() or self._keyring.add(self._random)
        return self._seal_with(_check_name(name), data, keys[0], expires=expires)

    def fingerprint(self, value: str) -> str:
        """Return a keyed hash: equal for equal values, and useless for guessing without the key."""
        keys = self._keyring.keys() or self._keyring.add(self._random)
        return Hasher(Hasher(keys[0]).oid(_AAD_PREFIX + b"mark")).oid(value.encode()).hex()[:32]

    def sealed_rows(self, prefix: str) -> Iterator[CatalogRow]:
        """Iterate over stored entries without decrypting them."""
        return (row for row in self._rows() if row.key.startswith(prefix))

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
    """Return the associated data of an entry, so that its name and expiry cannot be changed."""
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
