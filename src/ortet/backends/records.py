"""The records that a catalog returns and accepts."""

from __future__ import annotations

import msgspec

from ortet.ids import Oid


class Head(msgspec.Struct, frozen=True):
    """The commit that a branch or tag points to.

    `version` grows by one with every move. A head that is deleted and created again continues above
    its last version.
    """

    name: str
    oid: Oid
    version: int
    time: int


class Move(msgspec.Struct, frozen=True):
    """One compare-and-set of a head.

    `expect` None: the head must not exist. `to` None: delete the head.
    """

    name: str
    expect: Oid | None
    to: Oid | None


class Op(msgspec.Struct, frozen=True):
    """One entry of the operation log. The entries of one `name` are the reflog of that head."""

    seq: int
    time: int
    verb: str
    name: str
    old: Oid | None
    new: Oid | None
    actor: str
    detail: str


class Lease(msgspec.Struct, frozen=True):
    """The right to write under `name` until `expires`. `fence` grows with every new holder."""

    name: str
    owner: str
    fence: int
    expires: int


class LeaseClaim(msgspec.Struct, frozen=True):
    """A request for a lease, as part of a transaction. It fails if the lease is held."""

    name: str
    owner: str
    ttl_ns: int


class CatalogRow(msgspec.Struct, frozen=True):
    """A small versioned record: a workspace, machine, session or hold. `value` is canonical bytes.

    `version` grows by one with every write. A row that is deleted and created again continues above
    its last version.
    """

    kind: str
    key: str
    value: bytes
    version: int


class RowChange(msgspec.Struct, frozen=True):
    """A write to a row, or its deletion if `value` is None.

    `expect` is the version that the row must have; 0: it must not exist; None: any version.
    """

    kind: str
    key: str
    value: bytes | None
    expect: int | None = None
