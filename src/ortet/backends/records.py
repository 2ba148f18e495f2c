"""The rows of a catalog as its users see them."""

from __future__ import annotations

import msgspec

from ortet.ids import Oid


class Head(msgspec.Struct, frozen=True):
    """Where a branch or tag points.

    `version` grows by one with every move; a head made again starts above where it ended.
    """

    name: str
    oid: Oid
    version: int
    time: int


class Move(msgspec.Struct, frozen=True):
    """One compare-and-set of a head. `expect` None: must not exist. `to` None: delete."""

    name: str
    expect: Oid | None
    to: Oid | None


class Op(msgspec.Struct, frozen=True):
    """A line of the operation log; with `name`, `old` and `new` it is the reflog of that head."""

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
    """A lease that is wanted; nobody may hold it."""

    name: str
    owner: str
    ttl_ns: int


class CatalogRow(msgspec.Struct, frozen=True):
    """A small versioned record: workspaces, machines, sessions, holds. `value` is canonical bytes.

    `version` grows by one with every write; a row made again starts above where it ended.
    """

    kind: str
    key: str
    value: bytes
    version: int


class RowChange(msgspec.Struct, frozen=True):
    """A write to a row, or with `value` None its end.

    `expect` is the version that must be there (0: none); None: any.
    """

    kind: str
    key: str
    value: bytes | None
    expect: int | None = None
