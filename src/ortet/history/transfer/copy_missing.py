"""Copies commits from one store to another. Only missing objects are sent.

A copy can be interrupted and repeated: objects are sent before those that refer to them, and are
not sent twice. Every object is hashed at the source and at the target.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import msgspec

from ortet._util.failpoints import failpoint
from ortet.errors import Corrupt, Unsupported
from ortet.history.commits import History
from ortet.history.references import ERASABLE_KINDS, references, walk_postorder
from ortet.history.transfer.bundle import Progress, check_replacement, get_checked, read_checked
from ortet.ids import Oid
from ortet.objects.base import Kind, ObjectRef, ObjectStore

FLUSH_EVERY_BYTES = 32 << 20
"""The target is flushed after this many bytes."""
_OBJECT_OVERHEAD_BYTES = 500
"""The estimated fixed cost of an object."""


class ObjectCopyReport(msgspec.Struct, frozen=True):
    """The result of a copy: objects and bytes sent, objects known before, and replacements."""

    objects: int
    bytes: int
    known: int
    heirs: dict[Oid, tuple[Oid, Kind]]


def copy_missing(
    source: ObjectStore,
    target: ObjectStore,
    tips: Sequence[Oid],
    *,
    flush: Callable[[], None],
    heads: Sequence[Oid] = (),
    progress: Progress | None = None,
) -> ObjectCopyReport:
    """Copy the commits `tips`, with everything they need, into `target`, and flush it.

    The caller creates the heads. The ancestors of the target's own `heads` are not checked: the
    target has everything they need.
    """
    if source.hasher.key_id != target.hasher.key_id:
        raise Unsupported(
            "other_key",
            f"one store has key {source.hasher.key_id.hex()}, the other "
            f"{target.hasher.key_id.hex()}: what has one key's hashes cannot be in the other",
        )
    heirs: dict[Oid, tuple[Oid, Kind]] = {}
    order = _needed_objects(source, tips, _complete_commits(source, heads), heirs)
    missing = {oid: kind for oid, kind in order.items() if _is_missing(target, oid, kind)}
    size = waiting = 0
    held = order.keys() - missing.keys()
    for count, (oid, data) in enumerate(read_checked(source, order, set(held)), 1):
        if target.put(order[oid], data) != oid:
            raise Corrupt("bad_hash", f"object {oid.hex()} changed on its way: try again")
        size += len(data)
        waiting += len(data) + _OBJECT_OVERHEAD_BYTES
        if waiting >= FLUSH_EVERY_BYTES:  # durable objects are not sent again
            flush()
            waiting = 0
        failpoint("carry.after-object")
        if progress:
            progress(count, len(missing))
    flush()
    return ObjectCopyReport(len(missing), size, len(held), heirs)


def _is_missing(target: ObjectStore, oid: Oid, kind: Kind) -> bool:
    """Return True if the target needs the object. An erased object is not copied again."""
    if kind in ERASABLE_KINDS and target.replacement_of(oid) != oid:
        check_replacement(target, oid)
        return False
    return not target.has(oid)


def _complete_commits(source: ObjectStore, heads: Sequence[Oid]) -> set[Oid]:
    """Return the commits that the target has completely, as far as the source knows them."""
    return set(History(source).ancestors(*(oid for oid in set(heads) if source.has(oid))))


def _needed_objects(
    source: ObjectStore,
    tips: Sequence[Oid],
    complete: set[Oid],
    replacements: dict[Oid, tuple[Oid, Kind]],
) -> dict[Oid, Kind]:
    def links_of(link: ObjectRef) -> Iterator[ObjectRef]:
        if link.kind is Kind.COMMIT and link.oid in complete:
            return
        for below in references(link.kind, get_checked(source, link.oid)):
            heir = source.replacement_of(below.oid) if below.kind in ERASABLE_KINDS else below.oid
            if heir != below.oid:
                replacements[below.oid] = heir, below.kind
            yield ObjectRef(heir, below.kind)

    order: dict[Oid, Kind] = {}
    for link, _ in walk_postorder([ObjectRef(oid, Kind.COMMIT) for oid in tips], links_of):
        if link.kind is not Kind.COMMIT or link.oid not in complete:
            order.setdefault(link.oid, link.kind)
    return order
