"""Signatures with the secret of a store: erasure records and carry tokens."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from threading import get_ident
from typing import Any, Protocol, TypeVar

import msgspec

from ortet._util.codec import Hasher, encode
from ortet.backends.base import Catalog
from ortet.backends.sweep_epoch import EpochFencedCatalog
from ortet.errors import Conflict, Corrupt
from ortet.ids import Random
from ortet.objects.tail import sync_directory
from ortet.store.context import StoreContext

SECRET_BYTES = 32
_SECRET_ROW = ("store", "secret")


class SignedRecord(Protocol):
    """A record (a `msgspec.Struct`) that a store signs."""

    @property
    def signature(self) -> bytes: ...


SignedT = TypeVar("SignedT", bound=SignedRecord)


def load_or_create_secret(root: Path, random: Random) -> bytes:
    """Return the key that this store signs with; create it at first use.

    It is never part of a commit or bundle.
    """
    file = root / "local" / "secret"
    with suppress(FileNotFoundError):
        return _check_secret(file, file.read_bytes())
    part = file.with_name(f"secret.{os.getpid()}.{get_ident()}")
    fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        written = os.write(fd, random(SECRET_BYTES))
        os.fsync(fd)
    finally:
        os.close(fd)
    if written == SECRET_BYTES:  # on a full disk a partial key must not be kept
        with suppress(FileExistsError):  # another process was faster; use its key
            os.link(part, file)
    part.unlink()
    sync_directory(file.parent)
    return _check_secret(file, file.read_bytes())


def _check_secret(file: Path, secret: bytes) -> bytes:
    if len(secret) != SECRET_BYTES:
        raise Corrupt("bad_secret", f"{file} is damaged: restore it from a copy")
    return secret


class Signer:
    """Signs records with the store secret, which is needed to make a valid record."""

    def __init__(self, secret: bytes) -> None:
        self._hasher = Hasher(secret)

    def sign(self, data: bytes) -> bytes:
        return self._hasher.oid(data)

    def sign_record(self, record: SignedT) -> SignedT:
        """Return the record with the signature of its other fields."""
        struct: Any = record
        signed: SignedT = msgspec.structs.replace(struct, signature=self._signature(record))
        return signed

    def has_valid_signature(self, record: SignedRecord) -> bool:
        """Return True if this store signed the record and nobody changed it since."""
        return record.signature == self._signature(record)

    def _signature(self, record: SignedRecord) -> bytes:
        struct: Any = record
        return self.sign(encode(msgspec.structs.replace(struct, signature=b"")))


def store_signer(store: StoreContext) -> Signer:
    """Return a signer with the secret of the store.

    The secret is a file of the store, or a catalog row if several hosts share the store.
    """
    if isinstance(store.catalog, EpochFencedCatalog):
        return Signer(shared_secret(store.catalog, store.random))
    store.objects.require_exclusive("what is signed with the store's secret")
    return Signer(load_or_create_secret(store.root, store.random))


def shared_secret(catalog: Catalog, random: Random) -> bytes:
    """Return the secret of a shared store; create it at first use.

    Everybody who can read the tables can sign. The connection log of the database shows who did.
    """
    row = catalog.row(*_SECRET_ROW)
    if row is None:
        with suppress(Conflict):  # another process was faster
            catalog.put_row(*_SECRET_ROW, random(SECRET_BYTES), expect=0)
        return shared_secret(catalog, random)
    if len(row.value) != SECRET_BYTES:
        raise Corrupt("bad_secret", "the secret in the catalog is damaged: restore it from a copy")
    return row.value
