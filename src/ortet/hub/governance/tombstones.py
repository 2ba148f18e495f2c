"""Signed records of what was erased: what stands in its place, and which events lost their body."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from threading import get_ident
from typing import TYPE_CHECKING

import msgspec

from ortet._util.codec import Hasher, decode, encode
from ortet.backends.base import Catalog, RowChange
from ortet.backends.sweep_epoch import EpochFencedCatalog
from ortet.errors import Conflict, Corrupt
from ortet.ids import Oid, Random, from_hex
from ortet.objects.tail import sync_directory

if TYPE_CHECKING:
    from ortet.hub.hub import Hub

TOMBSTONE_KIND, RECEIPT_KIND, PENDING_KIND = "tombstone", "erasure", "erasing"
"""Kinds of rows: of an object that was replaced; of an erasure; of one that is not finished."""

SECRET_BYTES = 32
_SECRET_ROW = ("store", "secret")


class Tombstone(msgspec.Struct, frozen=True):
    """An object that is no more. `seqs` are the events of `timeline` it lost."""

    old: bytes
    new: bytes
    kind: int
    timeline: str
    seqs: list[int]
    time: int
    by: str
    signature: bytes = b""


class ErasedEvent(msgspec.Struct, frozen=True):
    """One event whose body is gone. `hash` is that of the event in its chain, in hex."""

    timeline: str
    seq: int
    kind: str
    hash: str


class ErasureReceipt(msgspec.Struct, frozen=True):
    """What an erasure destroyed. `left` are objects, in hex, that another process still holds in an
    unfinished pack: repeat the call when it has ended."""

    id: str
    time: int
    by: str
    session: str
    events: list[ErasedEvent]
    replaced: list[tuple[str, str]]
    left: list[str]
    signature: bytes = b""

    @property
    def complete(self) -> bool:
        return not self.left


class PendingErasure(msgspec.Struct, frozen=True):
    """An erasure that was begun: whoever erases next ends it first."""

    id: str
    by: str
    session: str
    events: list[ErasedEvent]
    effects: list[tuple[str, str]]  # (family, id) of deeds whose arguments or outcome are meant
    letters: list[tuple[str, str]] = []  # (session, key) of what is not in the journal yet
    replaced: list[tuple[str, str]] = []
    rows: list[tuple[str, str]] = []  # (kind, key) of what events said of the world around
    signature: bytes = b""


def load_or_create_secret(root: Path, random: Random) -> bytes:
    """The key this store signs with; made at first use, and never part of a commit or bundle."""
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
    if written == SECRET_BYTES:  # else the disk is full, and half a key would stay for ever
        with suppress(FileExistsError):  # another process was faster: its key counts
            os.link(part, file)
    part.unlink()
    sync_directory(file.parent)
    return _check_secret(file, file.read_bytes())


def _check_secret(file: Path, secret: bytes) -> bytes:
    if len(secret) != SECRET_BYTES:
        raise Corrupt("bad_secret", f"{file} is damaged: restore it from a copy")
    return secret


class Signer:
    """Marks records so that only who can read the store's secret can make them."""

    def __init__(self, secret: bytes) -> None:
        self._hasher = Hasher(secret)

    def sign(self, data: bytes) -> bytes:
        return self._hasher.oid(data)

    def sign_tombstone(self, record: Tombstone) -> Tombstone:
        return msgspec.structs.replace(record, signature=self._signature(record))

    def sign_receipt(self, record: ErasureReceipt) -> ErasureReceipt:
        return msgspec.structs.replace(record, signature=self._signature(record))

    def sign_pending(self, record: PendingErasure) -> PendingErasure:
        return msgspec.structs.replace(record, signature=self._signature(record))

    def has_valid_signature(self, record: Tombstone | ErasureReceipt | PendingErasure) -> bool:
        return record.signature == self._signature(record)

    def _signature(self, record: Tombstone | ErasureReceipt | PendingErasure) -> bytes:
        return self.sign(encode(msgspec.structs.replace(record, signature=b"")))


def store_signer(hub: Hub) -> Signer:
    """With the secret of the store: in a file of it, or, where hosts share one, in its catalog."""
    if isinstance(hub.catalog, EpochFencedCatalog):
        return Signer(shared_secret(hub.catalog, hub.random))
    hub.objects.require_exclusive("what is signed with the store's secret")
    return Signer(load_or_create_secret(hub.root, hub.random))


def shared_secret(catalog: Catalog, random: Random) -> bytes:
    """Of a store that has no disk of its own, made by who needs it first. Whoever reads the tables
    can sign: the database's own log of connections tells who that was."""
    row = catalog.row(*_SECRET_ROW)
    if row is None:
        with suppress(Conflict):  # another was faster
            catalog.put_row(*_SECRET_ROW, random(SECRET_BYTES), expect=0)
        return shared_secret(catalog, random)
    if len(row.value) != SECRET_BYTES:
        raise Corrupt("bad_secret", "the secret in the catalog is damaged: restore it from a copy")
    return row.value


def replacement_of(catalog: Catalog, oid: Oid) -> Oid | None:
    """What stands for an erased object; None for one that was not. Erased again, the last one."""
    found: Oid | None = None
    while row := catalog.row(TOMBSTONE_KIND, (found or oid).hex()):
        found = Oid(decode(Tombstone, row.value).new)
    return found


def tombstones(catalog: Catalog) -> Iterator[Tombstone]:
    after = ""
    while page := catalog.rows(TOMBSTONE_KIND, after):
        for row in page:
            record = decode(Tombstone, row.value)
            if from_hex(row.key) != record.old:
                raise Corrupt("bad_tombstone", f"tombstone {row.key} names another object")
            yield record
        after = page[-1].key


def receipts(catalog: Catalog) -> Iterator[ErasureReceipt]:
    """Of every erasure, oldest first."""
    after = ""
    while page := catalog.rows(RECEIPT_KIND, after):
        yield from (decode(ErasureReceipt, row.value) for row in page)
        after = page[-1].key


def record_row(record: Tombstone | ErasureReceipt) -> RowChange:
    if isinstance(record, Tombstone):
        return RowChange(TOMBSTONE_KIND, record.old.hex(), encode(record))
    return RowChange(RECEIPT_KIND, record.id, encode(record))


def erased_events(hub: Hub) -> set[tuple[str, int]]:
    """(timeline, seq) of all that was erased here, as signed; Corrupt when a signature is not ours.

    A body that is missing and not named here was taken away by somebody else.
    """
    # a remote hub has no secret, and takes what its server says: `ortet verify` there looks
    far = hub.objects.is_remote and not isinstance(hub.catalog, EpochFencedCatalog)
    mine = None if far else store_signer(hub)
    found: set[tuple[str, int]] = set()
    records: list[Tombstone | ErasureReceipt] = [*tombstones(hub.catalog), *receipts(hub.catalog)]
    for record in records:
        if mine is not None and not mine.has_valid_signature(record):
            raise Corrupt(
                "bad_signature",
                "a record of an erasure was not made by this store: restore catalog.db and "
                "local/secret from the same copy",
            )
        if isinstance(record, ErasureReceipt):
            found.update((one.timeline, one.seq) for one in record.events)
        else:
            found.update((record.timeline, seq) for seq in record.seqs)
    for row in hub.catalog.rows(
        PENDING_KIND
    ):  # cut short: some of its events are gone, some not yet
        pending = decode(PendingErasure, row.value)
        if mine is None or mine.has_valid_signature(pending):
            found.update((one.timeline, one.seq) for one in pending.events)
    return found
